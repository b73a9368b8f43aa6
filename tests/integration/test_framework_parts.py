"""What other frameworks need before they can meet: addresses, keys, settings."""

import contextlib
import http.client
import json
import socket
import threading

import pytest

from phalanx.launch.authentication import (
    AuthenticatedPeer,
    MessageSeal,
    NotAuthenticated,
    authenticate,
)
from phalanx.launch.command import ready
from phalanx.launch.files import scratch
from phalanx.launch.ports import free_port, interface_towards
from phalanx.schemas.frameworks import framework as adapter
from phalanx.schemas.spec.document import validate_spec
from phalanx.supervise.ranks.rendezvous import KeyValueStore, serve
from phalanx.train.frameworks.mpi.__main__ import settings
from phalanx.train.frameworks.mpi.rank import variables as mpi_variables
from phalanx.train.frameworks.tensorflow import variables as tf_variables
from phalanx.train.gang.gathering import RankConnection, accept_ranks

pytestmark = pytest.mark.integration
SECRET = b"of the generation"


def test_keys_stay_until_all_have_left():
    keys = KeyValueStore()
    for rank in ("0", "1"):
        keys.put("global", rank, rank.encode())
    keys.leave("global", "0")
    assert keys.get("global", "0") == b"0"  # rank 1 may not have read it yet
    keys.leave("global", "1")
    assert keys.get("global", "0") is None
    assert keys.get("other", "0") is None


@pytest.mark.leaves("the server has no end: its process is killed")
def test_the_rendezvous_answers_as_horovods_own():
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    threading.Thread(target=serve, args=(listening,), daemon=True).start()

    def ask(verb, path, body=None, headers=None):
        line = http.client.HTTPConnection(*address, timeout=60)
        line.request(verb, path, body, headers or {})
        answer = line.getresponse()
        found = answer.status, answer.read()
        line.close()
        return found

    assert ask("GET", "/global/0") == (404, b"")
    assert ask("PUT", "/global/0", b"a b") == (200, b"")
    assert ask("GET", "/global/0") == (200, b"a b")
    assert ask("GET", "/nonsense")[0] == 404
    assert ask("PUT", "/nonsense", b"x")[0] == 400
    for wrong in ("-1", "much", str(1 << 40), "9" * 5000):
        assert ask("PUT", "/global/1", headers={"Content-Length": wrong})[0] == 413
    assert ask("DELETE", "/global/0") == (200, b"")
    assert ask("GET", "/global/0") == (404, b"")


def test_ranks_tell_rank_0_and_hear_back():
    port = free_port()
    heard = {}

    def join(rank):
        connection = RankConnection.connect(("127.0.0.1", port), SECRET)
        connection.send({"rank": rank, "port": 1000 + rank})
        heard[rank] = connection.receive()
        connection.close()

    others = [threading.Thread(target=join, args=(rank,)) for rank in (1, 2)]
    for one in others:
        one.start()
    found = accept_ranks(("127.0.0.1", port), 2, SECRET)
    assert {rank: message["port"] for rank, (message, _) in found.items()} == {1: 1001, 2: 1002}
    assert {message["from"] for message, _ in found.values()} == {"127.0.0.1"}
    for _, connection in found.values():
        connection.send({"workers": ["a"]})
    for one in others:
        one.join()
    assert heard == {1: {"workers": ["a"]}, 2: {"workers": ["a"]}}
    for _, connection in found.values():
        connection.close()


def test_strangers_do_not_keep_ranks_from_meeting():
    port = free_port()
    found, over = {}, threading.Event()

    def wait():
        found.update(accept_ranks(("127.0.0.1", port), 1, SECRET))
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    said = [
        b"GET / HTTP/1.0\r\n",
        b'{"rank": 1}\n',
        b"\xff" * 9999,
        b"\0" * 65,
        b"",
    ]
    strangers = []
    for words in said * 60:  # silent ones stay, more than are kept
        stranger = connected(port)
        strangers.append(stranger)
        with contextlib.suppress(OSError):
            stranger.sendall(words)
    wrong = connected(port)
    with pytest.raises(NotAuthenticated):
        authenticate(wrong, b"another generation's")
    rank = RankConnection.connect(("127.0.0.1", port), SECRET)
    rank.send({"rank": 1})
    assert over.wait(60), "a stranger is waited for"
    assert found[1][0]["rank"] == 1
    for one in (*strangers, wrong, rank, found[1][1]):
        one.close()


def connected(port):
    """A connection of a stranger, made once rank 0 listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 60)
        except ConnectionRefusedError:
            continue


def test_a_command_of_a_stranger_is_no_message_of_mpi():
    """What a stranger sends behind the handshake of a rank, or says again, is not read."""
    ours, theirs = socket.socketpair()
    follower = RankConnection(AuthenticatedPeer(ours, b"key", "", ""), "client", 60)
    lead = MessageSeal(b"key", "server")
    body = b'{"command": "date"}'
    sent = lead.mark(body).encode() + body + b"\n"
    theirs.sendall(sent)
    assert follower.receive() == {"command": "date"}
    theirs.sendall(sent)
    assert follower.receive() is None, "a message that is sent again"
    theirs.sendall(b'{"command": "id"}\n')
    assert follower.receive() is None
    follower.close()
    theirs.close()


def test_every_worker_has_its_own_place_and_devices():
    env = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    found = tf_variables(env, ["a:1", "a:2", "b:1", "b:2"], 2)
    assert json.loads(found["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:1", "a:2", "b:1", "b:2"]},
        "task": {"type": "worker", "index": 3},
    }
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
    found = tf_variables({**env, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, ["a:1"], 2)
    assert found["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert "CUDA_VISIBLE_DEVICES" not in tf_variables({**env, "LOCAL_WORLD_SIZE": "1"}, ["a:1"], 2)


def test_an_mpi_process_is_a_rank_like_others():
    env = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "PHALANX_REPORT_FILE": "/r",
        "PYTHONUNBUFFERED": "1",
    }
    found = mpi_variables(env)
    # Unbuffered, a line is written in two pieces, and mpirun puts those of other ranks between them.
    assert "PYTHONUNBUFFERED" not in found
    places = (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"])
    assert places == ("3", "4", "1", "2")
    assert "PHALANX_REPORT_FILE" not in found
    first = mpi_variables({**env, "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert first["PHALANX_REPORT_FILE"] == "/r"


def test_open_mpi_keeps_to_one_folder(tmp_path):
    found = settings({}, tmp_path)
    env = {
        **found,
        "TMPDIR": str(tmp_path),
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    }
    mine = mpi_variables(env)
    assert mine["OMPI_MCA_btl_vader_backing_directory"] == str(tmp_path)
    assert "TMPDIR" not in mine and not [key for key in mine if key.startswith("PHALANX_MPI")]
    assert mpi_variables({**env, "PHALANX_MPI_TMPDIR": "/own"})["TMPDIR"] == "/own"


def test_folders_of_the_dead_are_removed(tmp_path):
    dead = tmp_path / "phm999999999-abc"
    dead.mkdir()
    (tmp_path / "phm1-init").mkdir()
    with scratch(tmp_path, "phm") as folder:
        assert folder.is_dir() and not dead.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["phm1-init"]


def test_the_interface_towards_here():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("not an address") is None


def test_a_script_comes_from_the_copy_of_the_code(tmp_path):
    import sys

    env = {"PATH": str(tmp_path)}
    words, found = ready([sys.executable, "-u", "train.py", "--x"], workdir="/code", env=env)
    assert words[1:] == ["-u", "/code/train.py", "--x"]
    words, found = ready([sys.executable, "-m", "pack.train"], workdir="/code", env=env)
    assert found["PYTHONPATH"] == "/code"
    words, _ = ready("echo $HOME | cat", workdir="/code", env=env)
    assert words == ["/bin/sh", "-c", "echo $HOME | cat"]
    with pytest.raises(FileNotFoundError):
        ready(["nothing-here"], workdir="/code", env=env)


def test_what_a_rank_of_each_framework_runs():
    def command(framework, **resources):
        spec = {"schema": 1, "run": "python x.py", "framework": framework, "resources": resources}
        (role,) = validate_spec(spec).to_contract().roles
        return adapter(framework).command(role, 4).argv

    assert command("jax") == command("horovod") == "python x.py"
    assert command("mpi", slots_per_node=4, slots_per_rank=2)[2:5] == [
        "phalanx.train.frameworks.mpi",
        "--slots",
        "2",
    ]
    assert command("tensorflow")[2] == "phalanx.train.frameworks.tensorflow"
    shape = validate_spec(
        {
            "schema": 1,
            "run": "x",
            "framework": "mpi",
            "resources": {"slots_per_node": 4, "nodes": 2},
        }
    ).shape
    assert (shape.ranks_per_node, shape.num_slots) == (1, 8)
