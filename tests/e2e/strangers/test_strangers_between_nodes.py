"""A gang on two machines, as network namespaces of one bridge; a third one is the stranger's."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.strangers import stranger
from e2e.strangers.sockets import listening
from phalanx.launch import accept_guard
from support.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: strangers are other users"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip: iproute2"),
]
SCRIPT = Path(__file__).with_name("scripts") / "stranger_torch.py"
PORT = 29411


@pytest.fixture(scope="module")
def network():
    with stranger.machines(f"phg{os.getpid()}"[:9], 3) as found:
        yield found


def rank(number, network, gone, log, peers):
    """One rank of a gang of two, with the variables that its supervisor would set."""
    library, said = accept_guard.library()
    assert library is not None, said
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "MASTER_ADDR": network[0][1],
        "MASTER_PORT": str(PORT),
        "RANK": str(number),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "gang0",
        "STRANGERS_GONE": str(gone),
        **accept_guard.variables("gang", [PORT], peers),
    }
    return subprocess.Popen(
        ["ip", "netns", "exec", network[number][0], sys.executable, str(SCRIPT)],
        env=accept_guard.preloaded(env, library),
        stdout=log.open("ab"),
        stderr=subprocess.STDOUT,
    )


def test_a_gang_meets_over_two_machines_and_a_third_is_refused(network, tmp_path):
    """Addresses of other nodes are accepted; this is where the guard ends, and security.md says so."""
    gone, log = tmp_path / "gone", tmp_path / "log"
    log.touch()
    peers = [address for _, address in network[:2]]
    ranks = [rank(number, network, gone, log, peers) for number in (0, 1)]
    try:
        wait_until(lambda: log.read_text().count("meeting") == 2, "the ranks have met")
        for number in (0, 1):
            found = listening([ranks[number].pid])
            ports = sorted({one.port for one in found if one.where != "loopback"})
            assert ports, found
            assert number or PORT in ports
            targets = [(network[number][1], port) for port in ports]
            for netns, uid, accepted in (
                (network[2][0], 0, False),  # root of another machine
                (network[2][0], stranger.NOBODY, False),
                (network[number][0], stranger.NOBODY, False),  # another user of this machine
                (network[1 - number][0], stranger.NOBODY, True),  # another user of a peer
            ):
                tried = stranger.apart(lambda to=targets: stranger.tried(to), uid=uid, netns=netns)
                states = {"open" if one["got"] else one["state"] for one in tried}
                # Without the guard the store would answer, or wait for more.
                assert ("open" in states) == accepted, (number, netns, uid, tried)
        assert [one.poll() for one in ranks] == [None, None]
        gone.touch()
        assert [one.wait(120) for one in ranks] == [0, 0], log.read_text()
    finally:
        for one in ranks:
            one.kill()
            one.wait(60)


def test_a_machine_that_is_not_listed_is_refused(network):
    """The control of the list: without the peer's address, the peer is a stranger."""
    library, _ = accept_guard.library()
    code = (
        "import socket, sys\n"
        "server = socket.socket(); server.bind(('', 0)); server.listen(); server.settimeout(120)\n"
        "print(server.getsockname()[1], flush=True)\n"
        "while True:\n"
        "    line, _ = server.accept(); line.sendall(b'data'); line.close()\n"
    )
    here, there = network[0], network[1]
    for peers, expected in (([there[1]], "data"), ([], ""), ([network[2][1]], ""), (["*"], "data")):
        env = accept_guard.preloaded(accept_guard.variables("gang", [], peers), library)
        server = subprocess.Popen(
            ["ip", "netns", "exec", here[0], sys.executable, "-I", "-S", "-c", code],
            env={"PATH": os.environ["PATH"], **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            assert stranger.apart(lambda to=(here[1], port): said(to), netns=there[0]) == expected
        finally:
            server.kill()
            server.wait(60)
            server.stdout.close()


def said(target):
    with socket.create_connection(target, 30) as line:
        try:
            return line.recv(100).decode()
        except ConnectionResetError:
            return ""
