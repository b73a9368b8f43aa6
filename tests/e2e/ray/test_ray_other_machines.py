"""Jobs on a Ray node that does not see the control plane's home, and fail-over between two executors."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.platform.harness import BIN, probe_spec
from e2e.ray.raylets import STORE_BYTES, Raylets
from e2e.ray.rayplatform import RayPlatform
from phalanx.launch.identity import SupervisorRecord
from support.waiting import wait_until

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.e2e]
SECRET = "hush-0c1d8f-do-not-tell"


def can_unshare():
    asked = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") and subprocess.run(asked, capture_output=True).returncode == 0


class ApartRaylet:
    """A raylet in a mount namespace in which a folder is empty, as on another machine."""

    def __init__(self, address, hidden, slots, labels=""):
        start = (
            f"mount -t tmpfs none '{hidden}' && exec '{BIN}/ray' start --block --address={address}"
            f" --num-cpus 2 --resources '{{\"slot\": {slots}}}' --object-store-memory {STORE_BYTES}"
            f" --labels '{labels}'"
        )
        self.process = subprocess.Popen(
            ["unshare", "-rm", "--propagation", "private", "sh", "-c", start],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture
def apart(tmp_path):
    if not can_unshare():
        pytest.skip("no mount namespaces here")
    raylets = Raylets()
    platform = RayPlatform(tmp_path, raylets, checkpoints=str(tmp_path / "shared"))
    platform.home.mkdir(mode=0o700)
    (tmp_path / "shared").mkdir()
    node = ApartRaylet(
        raylets.address, platform.home, 2, "phalanx/price=2.5,phalanx/device-memory=80GB,disk=ssd"
    )
    raylets.nodes.append(node)
    platform.up()
    yield platform
    platform.down()
    node.close()
    raylets.close()


SCRIPT = """
import os, sys
import phalanx.train as pt
assert os.environ["KEY"], "no secret"
assert not os.path.exists(sys.argv[1]), "this node sees the home"
with open(sys.argv[2], "w") as file:
    file.write(os.environ["KEY"])
print("ok", flush=True)
"""


def test_a_secret_reaches_a_node_without_the_home_and_stands_nowhere(apart, tmp_path):
    env = {**apart.env, "KEY": SECRET}
    subprocess.run([BIN / "phalanx", "secrets", "set", "KEY"], env=env, check=True, cwd=tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(SCRIPT)
    spec = {
        "name": "secret",
        "run": f"{sys.executable} job.py {apart.home / 'secrets'} {tmp_path / 'out'}",
        "workdir": str(code),
        "pool": "ray",
        "secrets": ["KEY"],
        "resources": {"slots_per_node": 1, "accelerator_memory": "80GB"},
        "placement": {"selector": {"disk": "ssd"}},
    }
    job = apart.submit(spec)
    apart.wait_state(job, "succeeded")
    assert (tmp_path / "out").read_text() == SECRET
    with apart.client() as client:
        (node,) = client.nodes()
    assert (node.price, node.labels["disk"]) == (2.5, "ssd")
    # Neither Ray's logs, nor the files of the node, nor those of the home outside `secrets`.
    session = Path("/tmp/ray/session_latest").resolve()
    for root in (session / "logs", tmp_path / "nodes", apart.home / "jobs", apart.home / "pools"):
        assert not _holding(root), root
    assert not _holding(apart.home / "db")


def _holding(root):
    word = SECRET.encode()
    files = [one for one in root.rglob("*") if one.is_file()]
    return [one for one in files if word in one.read_bytes()]


TALKER = """
import os, sys, time
go, wrote = sys.argv[1:]
if not os.path.exists(wrote):
    print("first", flush=True)
    while not os.path.exists(go):
        time.sleep(0.02)
    os.write(1, b"x" * 3999 + b"\\n")  # a pipe holds no more than a page where a user has many
    open(wrote, "w").close()
    time.sleep(600)
print("second attempt", flush=True)
"""


def test_what_a_killed_supervisor_left_on_its_own_disk_is_counted(apart, tmp_path):
    shared = tmp_path / "shared"
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(TALKER)
    job = apart.submit(
        {
            "name": "talker",
            "run": f"{sys.executable} job.py {shared / 'go'} {shared / 'wrote'}",
            "workdir": str(code),
            "pool": "ray",
        }
    )
    wait_until(lambda: "first" in apart.run("logs", str(job)).stdout, "the first line")
    (folder,) = (tmp_path / "nodes").glob(f"*/jobs/{job}/a001/n0")
    supervisor = SupervisorRecord.read(folder).supervisor.pid
    # It reads nothing more; what the rank writes reaches the disk only.
    os.kill(supervisor, signal.SIGSTOP)
    (shared / "go").touch()
    wait_until((shared / "wrote").exists, "the output")
    os.kill(supervisor, signal.SIGKILL)
    apart.wait_state(job, "succeeded")
    shown = apart.run("logs", str(job)).stdout
    assert "[4,000 bytes are missing here (offset 6 to 4,006)" in shown, shown
    assert "second attempt" in shown


def test_a_job_goes_on_in_its_second_pool(tmp_path):
    """Ray first, this machine second: both executors are real, and no sample is lost between them."""
    raylets = Raylets(2)
    platform = RayPlatform(tmp_path, raylets)
    platform.own_slots = 2
    platform.up()
    try:
        out, calm = tmp_path / "hit", tmp_path / "calm"
        flags = ["--epochs=6", "--samples=240", "--step-s=0.05"]
        job = platform.submit(probe_spec(out, *flags, ranks=2, pool=["ray", "local"]))
        platform.wait_steps(12, out)
        assert platform.show(job).nodes[0].node.startswith("ray-")
        raylets.sigkill(raylets.nodes[0])
        view = platform.wait_state(job, "succeeded")
        assert (view.attempts, view.lineage.missed, view.lineage.duplicated) == (2, 0, 0)
        other = platform.submit(probe_spec(calm, *flags, ranks=2, pool="local"))
        platform.wait_state(other, "succeeded")
        assert out.read_text() == calm.read_text()
    finally:
        platform.down()
        raylets.close()
