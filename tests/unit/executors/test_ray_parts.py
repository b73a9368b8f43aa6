"""Parts of the Ray executor that need no Ray: pool files, inventory, files on a node, hooks."""

import fcntl
import hashlib
import http.server
import os
import sys
import tarfile
import threading
import time

import pytest

from phalanx.core.contract.gang import GangContract, RolePlace, WorldShape
from phalanx.core.contract.job import JobIdentity, RankCommand, RoleContract
from phalanx.core.scaling.model import NodeWish, ScalingBounds
from phalanx.errors import SpecInvalid
from phalanx.executors.node_files import CodeSource, CodeUnavailable, NodeFiles
from phalanx.executors.outbound import outbound
from phalanx.executors.ray.inventory import RayInventory
from phalanx.launch.identity import LOCK_NAME
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.pool_file import read_pool_file
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.schemas.wire.assignments import Assignment

pytestmark = pytest.mark.unit


def pool(**fields):
    return RayPool.model_validate({"name": "r", "executor": "ray", **fields})


def seen(**fields):
    return {
        "id": "ab" * 28,
        "address": "10.0.0.7",
        "resources": {"CPU": 8.0, "GPU": 4.0, "memory": 1e9},
        "labels": {},
        "draining_deadline_ms": None,
        "silent": False,
        "foreign": {},
        **fields,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x", "pools: is required"),
        ("[]", "a pool file is a mapping"),
        (
            "{name: x, executor: ray, adress: auto}",
            "pools[0].adress: unknown key; did you mean address?",
        ),
        (
            "{schema: 1, pools: [{name: x, executor: rya, nodes: [{name: n, slots: 1}]}]}",
            "local, ray",
        ),
        ("{name: x, executor: ray, address: 'ray://head:10001'}", "ray start --address"),
        ("{name: x, executor: ray, fence: soon}", "fence"),
    ],
)
def test_a_wrong_pool_file_says_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    with pytest.raises(SpecInvalid) as raised:
        read_pool_file(path)
    assert said in " ".join(map(str, raised.value.problems))


def test_one_file_holds_pools_of_this_machine_and_clusters(tmp_path):
    path = tmp_path / "pools.yaml"
    path.write_text(
        "{schema: 1, pools: [{name: r, executor: ray, fence: 5m}, {name: p, nodes: [{name: n, slots: 2}]}]}"
    )
    file, notices = read_pool_file(path)
    assert ([one.name for one in file.clusters], [one.name for one in file.pools]) == (["r"], ["p"])
    assert (file.clusters[0].fence, notices) == (300.0, [])


def test_the_form_of_earlier_releases_is_read_with_a_notice(tmp_path):
    path = tmp_path / "pool.yaml"
    path.write_text("{schema: 1, name: r, executor: ray, address: auto}")
    file, notices = read_pool_file(path)
    assert [one.name for one in file.clusters] == ["r"]
    assert "write it as an entry of `pools:`" in notices[0]


def test_a_share_without_slots_holds_no_place_of_others():
    inventory = RayInventory(pool())
    (node,) = inventory.read([seen()])
    assert "GPU" not in inventory.bundle(inventory.known(node.id), 0, 4)


def test_slots_are_gpus_else_the_custom_resource_else_cpus():
    inventory = RayInventory(pool())
    found = [
        seen(id="a" * 56),
        seen(id="b" * 56, resources={"CPU": 8.0, "slot": 2.0}),
        seen(id="c" * 56, resources={"CPU": 3.0}),
        seen(id="d" * 56, resources={"CPU": 0.0, "memory": 1e9}),
    ]
    nodes = inventory.read(found)
    assert [(node.id, node.num_slots) for node in nodes] == [
        ("r-aaaaaaaa", 4),
        ("r-bbbbbbbb", 2),
        ("r-cccccccc", 3),
    ]
    bundles = [inventory.bundle(inventory.known(node.id), 2, 100) for node in nodes]
    assert bundles == [{"GPU": 2.0, "CPU": 4.0}, {"slot": 2.0, "CPU": 8.0}, {"CPU": 2.0}]


def test_labels_become_topology_and_type():
    labels = {"ray.io/availability-zone": "z1", "rack": "r7", "ray.io/accelerator-type": "H100"}
    (node,) = RayInventory(pool()).read([seen(labels=labels)])
    assert node.domains == (("zone", "z1"), ("rack", "r7"))
    assert node.slot_type == "H100"


def test_a_node_cannot_say_that_it_is_elsewhere_than_its_pool():
    claims = [seen(id="a" * 56, labels={"x.example/residency": "eu"}), seen(id="b" * 56)]
    here = RayInventory(pool(labels={"residency": "us"})).read(claims)
    assert [one.labels for one in here] == [(("residency", "us"),)] * 2
    (first, second) = RayInventory(pool()).read(claims)
    assert (first.labels, second.labels) == ((("residency", "eu"),), ())


def test_labels_and_the_pool_file_give_a_node_its_traits():
    labels = {
        "phalanx/device-memory": "80GB",
        "phalanx/price": "2.5",
        "phalanx/interconnect": "nvlink",
        "taint.phalanx/reserved": "",
        "ray.io/market-type": "spot",
        "ray.io/node-group": "a100",
        "ray.io/node-id": "ab" * 28,
        "team": "vision",
    }
    said = {
        "price": 9.0,
        "device_memory": "40GB",
        "bandwidth_gbps": 200,
        "reclaims_per_hour": 0.5,
        "taints": ["shared"],
        "labels": {"team": "any", "site": "b"},
        "slot_type": "A100",
    }
    plain, rich = seen(id="a" * 56), seen(id="b" * 56, labels=labels)
    first, second = RayInventory(pool(**said)).read([plain, rich])
    assert (first.price_per_slot_hour, first.device_memory_bytes) == (9.0, 40 * 10**9)
    assert (first.taints, first.labels) == (("shared",), (("site", "b"), ("team", "any")))
    assert (first.hazard_per_hour, first.slot_type, first.bandwidth_gbps) == (0.0, "A100", 200.0)
    assert (second.price_per_slot_hour, second.device_memory_bytes) == (2.5, 80 * 10**9)
    assert (second.taints, second.hazard_per_hour) == (("reserved",), 0.5)
    assert (second.interconnect, second.bandwidth_gbps) == ("nvlink", 200.0)
    assert dict(second.labels) == {
        "market-type": "spot",
        "node-group": "a100",
        "site": "b",
        "team": "vision",
    }


@pytest.mark.parametrize(
    ("label", "value", "said"),
    [
        ("phalanx/price", "cheap", "label phalanx/price=cheap cannot be read"),
        ("phalanx/device-memory", "much", "label phalanx/device-memory=much cannot be read"),
        ("phalanx/price", "[", "label phalanx/price=[ cannot be read"),
        ("phalanx/price", "[" * 5000, f"label phalanx/price={'[' * 64}… cannot be read"),
        ("phalanx/price", "\ud800", "label phalanx/price=\ud800 cannot be read"),
        ("phalanx/price", "&a [*a]", "label phalanx/price=&a [*a] cannot be read"),
        ("phalanx/price", "2026-99-99", "label phalanx/price=2026-99-99 cannot be read"),
        ("phalanx/prize", "2", "label phalanx/prize is not known; known: phalanx/bandwidth-gbps"),
    ],
)
def test_a_node_with_an_unreadable_label_is_closed_and_says_why(label, value, said):
    (node,) = RayInventory(pool()).read([seen(labels={label: value})])
    assert node.closed.startswith(said)


def test_paths_and_secrets_of_an_assignment_are_those_of_the_node(tmp_path):
    home = HomeLayout(tmp_path / "home")
    gang = GangContract(
        job=JobIdentity(7, "x", "default"),
        attempt=1,
        world=WorldShape(1, 1),
        role=RoleContract(name="worker", command=RankCommand(("true",))),
        checkpoint_dir=f"{home.checkpoints_dir}/default/j-7/roles/server",
    )
    lead = f"{home.checkpoints_dir}/default/j-7"
    given = Assignment(
        gang=gang,
        node_rank=1,
        role=RolePlace(
            name="server",
            node_rank=0,
            first_rank=1,
            gang_size=2,
            lead_dir=lead,
            leads=False,
            required=True,
        ),
        node_dir="/n",
        workdir="/w",
        cwd="/w",
        command="true",
        env={},
        secrets=["KEY"],
        cpus=1,
        server_url="http://127.0.0.1:1",
        token="t",
    )
    for path, root in (("/shared/ckpt", "/shared/ckpt"), (None, str(home.checkpoints_dir))):
        sent = outbound(given, pool(checkpoints=path), home)
        assert sent.gang.checkpoint_dir == f"{root}/default/j-7/roles/server"
        assert sent.role.lead_dir == f"{root}/default/j-7"
        assert sent.secrets == ["KEY"]


@pytest.mark.parametrize(
    ("changes", "closed"),
    [
        ({}, ""),
        ({"silent": True}, "the raylet does not answer"),
        ({"draining_deadline_ms": 5000}, "Ray drains the node"),
        ({"foreign": {"GPU": 2.0}}, "2 of its GPU are used by programs other than Phalanx"),
        ({"foreign": {"CPU": 2.0}}, ""),
    ],
)
def test_why_nothing_may_start(changes, closed):
    (node,) = RayInventory(pool()).read([seen(**changes)])
    assert node.closed == closed
    assert node.leaves_at == (5_000_000 if "draining_deadline_ms" in changes else None)


def test_nodes_that_could_come_count_and_take_nothing():
    scaling = {"max": 3, "node": {"slots": 8, "cpus": 16}}
    inventory = RayInventory(pool(scaling=scaling))
    nodes = inventory.read([seen()])
    assert [(bool(node.closed), node.future) for node in nodes] == [
        (False, False),
        (True, True),
        (True, True),
    ]
    assert nodes[2].slot_type == nodes[0].slot_type
    assert inventory.asked(NodeWish(4)) == {"GPU": 4.0, "CPU": 8.0}
    assert inventory.asked(NodeWish(4, cpus=3)) == {"GPU": 4.0, "CPU": 3.0}
    assert inventory.whole(nodes[0].id) == {"GPU": float(nodes[0].num_slots)}
    inventory.bounds = ScalingBounds(0, "ada", max_nodes=5)
    assert sum(node.future for node in inventory.read([seen()])) == 4
    inventory.bounds = None
    assert sum(node.future for node in inventory.read([seen()])) == 2


# -- code on a node ------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    path = tmp_path / "code.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tmp_path / "train.py", "train.py")
    return path.read_bytes()


@pytest.fixture
def server(archive):
    asked = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(archive)

        def log_message(self, *args):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    made.asked = asked
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def source(server, digest, job=1):
    return CodeSource(f"http://127.0.0.1:{server.server_port}", digest, "t", job, 1, 0)


def test_code_is_fetched_once_and_given_to_each_attempt(tmp_path, server, archive):
    files, digest = NodeFiles(tmp_path / "node"), hashlib.sha256(archive).hexdigest()
    for job in (1, 2):
        target = files.code_dir(job, 1, 0)
        target.parent.mkdir(parents=True)
        assert files.bring(source(server, digest, job), target) == (job == 2)
        assert (target / "train.py").read_text() == "print(1)"
    ((path, token),) = server.asked
    assert path == f"/api/v1/supervisors/code/{digest}?job=1&attempt=1&node_rank=0&incarnation=0"
    assert token == "Bearer t"


@pytest.mark.parametrize("harm", ["changed", "link", "writable by others"])
def test_a_kept_archive_that_another_may_have_written_is_fetched_again(
    tmp_path, server, archive, harm
):
    files, digest = NodeFiles(tmp_path / "node"), hashlib.sha256(archive).hexdigest()
    kept = tmp_path / "node" / "code" / f"{digest}.tar"
    kept.parent.mkdir(parents=True)
    (tmp_path / "other.tar").write_bytes(archive)
    if harm == "link":
        kept.symlink_to(tmp_path / "other.tar")
    else:
        kept.write_bytes(archive if harm == "writable by others" else b"other code")
        kept.chmod(0o666 if harm == "writable by others" else 0o600)
    target = files.code_dir(1, 1, 0)
    target.parent.mkdir(parents=True)
    assert not files.bring(source(server, digest), target)
    assert (target / "train.py").read_text() == "print(1)"
    assert not kept.is_symlink()
    assert kept.read_bytes() == archive


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_root_that_another_user_made_is_refused(tmp_path, server, archive):
    root = tmp_path / "phalanx"
    root.mkdir(mode=0o777)
    os.chown(root, 65534, 65534)
    files, digest = NodeFiles(root / "home"), hashlib.sha256(archive).hexdigest()
    with pytest.raises(CodeUnavailable, match="set another `root`"):
        files.bring(source(server, digest), tmp_path / "target")
    assert not server.asked


def test_code_that_is_not_what_its_digest_says_is_refused(tmp_path, server):
    files = NodeFiles(tmp_path / "node")
    target = files.code_dir(1, 1, 0)
    target.parent.mkdir(parents=True)
    with pytest.raises(CodeUnavailable, match="does not match its digest"):
        files.bring(source(server, "0" * 64), target)
    assert not list((tmp_path / "node" / "code").glob("*.tar"))
    assert not target.exists()


def test_what_ended_long_ago_goes_and_what_lives_stays_however_long(tmp_path):
    files, now_s = NodeFiles(tmp_path / "node"), time.time()
    for job in (1, 2, 3):
        node = files.node_dir(job, 1, 0)
        node.mkdir(parents=True)
        (node / LOCK_NAME).touch()
        for folder in (node, node.parent):
            os.utime(folder, (now_s - 30 * 86400, now_s - 30 * 86400))
    (files.node_dir(2, 1, 0) / "exit.json").touch()  # it ended just now, after a month
    with open(files.node_dir(3, 1, 0) / LOCK_NAME) as lock:  # it still runs
        fcntl.flock(lock, fcntl.LOCK_EX)
        files.prune(now_s)
        assert [files.node_dir(job, 1, 0).is_dir() for job in (1, 2, 3)] == [False, True, True]
    files.prune(now_s)
    assert not files.node_dir(3, 1, 0).exists()


# -- hooks of framework: ray ---------------------------------------------------------------------


def test_reports_are_told_and_stay_what_they_were(tmp_path, monkeypatch):
    import socket

    from phalanx.train.frameworks.ray import hooks

    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "s"))
    package = tmp_path / "fake"
    (package / "ray" / "train").mkdir(parents=True)
    (package / "ray" / "__init__.py").touch()
    (package / "ray" / "train" / "__init__.py").write_text(
        "class Context:\n    def get_world_rank(self): return rank\n"
        "rank = 0\nsaid = []\ndef get_context(): return Context()\n"
        "def report(metrics, checkpoint=None):\n    said.append(metrics)\n    return 'back'\n"
    )
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setenv(hooks.SOCKET_VARIABLE, str(tmp_path / "s"))
    kept = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "ray"
    }
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    try:
        hooks.install()
        import ray.train

        assert ray.train.report({"loss": 0.5, "note": "x", "bad": float("nan")}) == "back"
        assert receiver.recv(1000) == b'{"step": 1, "v": {"loss": 0.5, "bad": "nan"}}'
        ray.train.rank = 1  # other ranks report, and are not sent twice
        ray.train.report({"loss": 0.4})
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(1000)
        assert len(ray.train.said) == 2
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
            del sys.modules[name]
        sys.modules.update(kept)
        receiver.close()


def test_a_gang_meets_and_ends_together():
    from phalanx.train.gang.gathering import RankConnection, RankServer

    table = RankServer(("127.0.0.1", 0), 2, b"secret")
    meeting = "127.0.0.1", table._listener.port
    connections = []
    joining = [
        threading.Thread(
            target=lambda: connections.append(RankConnection.connect(meeting, b"secret"))
        )
        for _ in range(2)
    ]
    for one in joining:
        one.start()
    table.gather({"head": "a:1"})
    for one in joining:
        one.join()
    assert [connection.receive() for connection in connections] == [{"head": "a:1"}] * 2
    lost, taken = threading.Event(), []
    message = threading.Event()
    table.watch(lambda body: (taken.append(body), message.set()), lost)
    connections[1].send({"step": 1})
    assert message.wait(30)
    assert taken == [{"step": 1}]
    connections[0]._line.shutdown(2)
    assert lost.wait(30)
    table.close(0)
    assert connections[1].receive() == {"over": 0}
    for connection in connections:
        connection._file.close()
        connection._line.close()
    for one in table._connections:
        one.close()
