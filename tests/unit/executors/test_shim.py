"""The shim of a supervisor on a Ray node: strangers learn nothing from it and take no place."""

import json
import os
import socket
import subprocess
import sys

import pytest

from phalanx.executors.ray.actor import _SHIM
from phalanx.executors.ray.cluster import TrackedSupervisor
from phalanx.launch import linux
from phalanx.launch.authentication import NotAuthenticated, authenticate
from support.waiting import wait_until

WORD = "of this supervisor"


@pytest.fixture
def shim(tmp_path):
    """A shim over a process that sleeps; yields what a control plane knows of it."""
    own = linux.entry(os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SHIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={},
        cwd="/",
    )
    told = {
        "word": WORD,
        "address": "127.0.0.1",
        "raylet_pid": own.pid,
        "raylet_ticks": own.start_ticks,
        "log": str(tmp_path / "log"),
        "argv": ["/bin/sleep", "600"],
        "env": {},
        "cwd": "/",
    }
    process.stdin.write(json.dumps(told).encode() + b"\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    yield process, {"address": "127.0.0.1", "port": answer["port"], "word": WORD}
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


def test_strangers_learn_nothing_and_a_control_plane_comes_through(shim):
    process, note = shim
    where = note["address"], note["port"]
    silent = [socket.create_connection(where, 60) for _ in range(150)]
    with socket.create_connection(where, 60) as guess, pytest.raises(NotAuthenticated):
        authenticate(guess, b"guess")
    tracked = TrackedSupervisor()
    wait_until(lambda: tracked.shim_state(note) == "here", "the shim")
    heard = silent[-1].recv(999)
    assert WORD.encode() not in heard
    process.stdin.close()
    process.wait(60)
    wait_until(lambda: tracked.shim_state(note) == "gone", "the end of the shim")
    tracked.disconnect()
    for one in silent:
        one.close()


def test_another_program_on_the_port_is_not_the_shim():
    with socket.create_server(("127.0.0.1", 0)) as server:
        tracked = TrackedSupervisor()
        note = {"address": "127.0.0.1", "port": server.getsockname()[1], "word": WORD}
        pid = os.fork()
        if pid == 0:
            line, _ = server.accept()
            line.sendall(f"{WORD}\n".encode().ljust(128))
            os._exit(0)
        assert tracked.shim_state(note) == "gone"
        os.waitpid(pid, 0)
