"""The node's side of tunnels against programs, clients and control planes that do not behave."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator

import psutil
import pytest

from phalanx.core.tunnels.frames import FrameKind, TunnelFrame
from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.supervise.processes import LaunchRequest, ProcessObserver
from phalanx.supervise.tunnels import calls, commands, ports
from phalanx.supervise.tunnels.calls import NodeCalls, NodeTunnel
from phalanx.supervise.tunnels.commands import CommandTunnel, RankPlace
from phalanx.supervise.tunnels.ports import PortTunnel
from support.waiting import wait_until

pytestmark = pytest.mark.unit


class ScriptedTunnel:
    """A tunnel with a client that is written in the test."""

    def __init__(self) -> None:
        self.sent: list[TunnelFrame] = []
        self._given: queue.Queue[TunnelFrame | None] = queue.Queue()
        self._over = threading.Event()
        self.finished = threading.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def give(self, kind: FrameKind, channel: int = 0, data: bytes = b"") -> None:
        self._given.put(TunnelFrame(kind, channel, data))

    def leave(self) -> None:
        """The client is gone."""
        self._over.set()
        self._given.put(None)

    def frames(self) -> Iterator[TunnelFrame]:
        while (one := self._given.get()) is not None:
            yield one
        self._over.set()

    def put(self, kind: FrameKind, channel: int = 0, data: bytes = b"") -> None:
        self.sent.append(TunnelFrame(kind, channel, data))

    def finish(self) -> None:
        self.finished.set()
        self.leave()

    def of(self, kind: FrameKind, channel: int = 0) -> bytes:
        return b"".join(x.data for x in list(self.sent) if (x.kind, x.channel) == (kind, channel))

    def has(self, kind: FrameKind, channel: int = 0) -> bool:
        return any((x.kind, x.channel) == (kind, channel) for x in list(self.sent))


def end_threads() -> None:
    """Wait for the threads of tunnels, which end by themselves."""
    for one in threading.enumerate():
        if one.name.startswith("tunnel"):
            one.join(30)


@pytest.fixture
def tunnel() -> Iterator[ScriptedTunnel]:
    made = ScriptedTunnel()
    yield made
    made.leave()
    end_threads()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(30)
        yield made


def forward(tunnel: ScriptedTunnel, port: int) -> None:
    PortTunnel(tunnel, TunnelPurpose(kind="forward", rank=0, port=port)).start()  # type: ignore[arg-type]


# -- ports -----------------------------------------------------------------------------------------


def test_no_more_connections_are_made_than_may_be(tunnel, listener, monkeypatch) -> None:
    monkeypatch.setattr(ports, "MAX_CONNECTIONS", 2)
    forward(tunnel, listener.getsockname()[1])
    with contextlib.ExitStack() as open_ones:
        for channel in (1, 2):
            tunnel.give(FrameKind.OPEN, channel)
            open_ones.enter_context(listener.accept()[0])
        tunnel.give(FrameKind.OPEN, 1)  # a channel that is open
        tunnel.give(FrameKind.OPEN, 3)
        wait_until(lambda: tunnel.has(FrameKind.RESET, 3), "the refusal")
        assert b"no more may be" in tunnel.of(FrameKind.RESET, 3)
        assert tunnel.has(FrameKind.RESET, 1)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
        tunnel.give(FrameKind.RESET, 2)  # one is closed: another one may be opened
        tunnel.give(FrameKind.OPEN, 4)
        listener.settimeout(30)
        open_ones.enter_context(listener.accept()[0])


def test_a_channel_that_is_open_is_not_opened_again(tunnel, listener) -> None:
    forward(tunnel, listener.getsockname()[1])
    tunnel.give(FrameKind.OPEN, 1)
    with listener.accept()[0]:
        tunnel.give(FrameKind.OPEN, 1)
        wait_until(lambda: tunnel.has(FrameKind.RESET, 1), "the refusal")
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_program_that_reads_nothing_loses_its_connection_and_holds_up_no_other(
    tunnel, listener, monkeypatch
) -> None:
    monkeypatch.setattr(ports, "_STUCK_S", 0.2)
    forward(tunnel, listener.getsockname()[1])
    tunnel.give(FrameKind.OPEN, 1)
    with listener.accept()[0] as stuck:
        assert stuck
        for _ in range(1000):
            tunnel.give(FrameKind.INPUT, 1, bytes(1 << 15))
        tunnel.give(FrameKind.OPEN, 2)
        with listener.accept()[0] as other:
            tunnel.give(FrameKind.INPUT, 2, b"hello")
            assert other.recv(5) == b"hello"
        assert tunnel.has(FrameKind.RESET, 1)


def test_a_port_without_a_program_is_told_and_a_client_that_is_gone_closes_all(
    tunnel, listener
) -> None:
    port = listener.getsockname()[1]
    forward(tunnel, port)
    tunnel.give(FrameKind.OPEN, 1)
    with listener.accept()[0] as connection:
        tunnel.leave()
        connection.settimeout(30)
        assert connection.recv(1) == b""
    listener.close()
    other = ScriptedTunnel()
    forward(other, port)
    other.give(FrameKind.OPEN, 1)
    wait_until(lambda: other.has(FrameKind.RESET, 1), "the refusal")
    assert f"port {port} of the node: Connection refused".encode() in other.of(FrameKind.RESET, 1)
    other.leave()


# -- commands --------------------------------------------------------------------------------------


def run(tunnel: ScriptedTunnel, *command: str, tty: bool = False) -> psutil.Process:
    """Run a command as the reaper does; returns its process."""
    begun: list[psutil.Process] = []

    def start(argv: list[str], launch: LaunchRequest, observer: ProcessObserver) -> None:
        stdin, stdout, stderr = launch.stdio
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=launch.env,
            cwd=launch.cwd,
            start_new_session=True,
        )
        begun.append(psutil.Process(process.pid))  # before it may end and be waited for
        launch.close()
        observer.started(process.pid, warm=False)

        def wait() -> None:
            code = process.wait()
            observer.exited(-code if code < 0 else code << 8, 0)

        threading.Thread(target=wait, name="tunnel").start()

    purpose = TunnelPurpose(kind="exec", rank=0, command=command, tty=tty)
    place = RankPlace({"PATH": os.environ["PATH"]}, "/")
    CommandTunnel(tunnel, purpose).start(place, start)  # type: ignore[arg-type]
    return begun[0]


def test_a_command_that_prints_too_much_is_ended_and_told(tunnel, monkeypatch) -> None:
    monkeypatch.setattr(commands, "MAX_OUTPUT_BYTES", 1 << 20)
    run(tunnel, "yes")
    assert tunnel.finished.wait(60)
    assert len(tunnel.of(FrameKind.OUTPUT)) <= 1 << 20
    assert b"printed more than 1 MiB and was ended" in tunnel.of(FrameKind.ERRORS)
    assert tunnel.of(FrameKind.EXITED) == b"129"  # by SIGHUP


def test_a_command_without_a_client_is_ended_with_its_children_also_a_stubborn_one(
    tunnel, monkeypatch
) -> None:
    monkeypatch.setattr(commands, "_KILL_AFTER_S", 0.2)
    process = run(tunnel, "sh", "-c", "trap '' HUP; sleep 600 & echo $!; wait; sleep 600")
    wait_until(lambda: tunnel.of(FrameKind.OUTPUT).endswith(b"\n"), "its child")
    child = int(tunnel.of(FrameKind.OUTPUT))
    tunnel.leave()
    assert tunnel.finished.wait(60)
    assert not process.is_running()
    wait_until(lambda: not psutil.pid_exists(child), "the end of its child")


def test_a_child_that_keeps_the_output_does_not_keep_the_command(tunnel) -> None:
    run(tunnel, "sh", "-c", "sleep 600 & echo $!; exit 3")
    assert tunnel.finished.wait(60)
    assert tunnel.of(FrameKind.EXITED) == b"3"
    psutil.Process(int(tunnel.of(FrameKind.OUTPUT))).kill()


def test_a_size_that_is_none_changes_nothing(tunnel) -> None:
    run(tunnel, "sh", "-c", "read line; stty size", tty=True)
    tunnel.give(FrameKind.RESIZE, 0, b"x")
    tunnel.give(FrameKind.INPUT, 0, b"go\n")
    assert tunnel.finished.wait(60)
    assert b"24 80" in tunnel.of(FrameKind.OUTPUT)


# -- a control plane that is away ------------------------------------------------------------------


@pytest.fixture
def away(monkeypatch) -> str:
    monkeypatch.setattr(calls, "_TRIES_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_tunnel_ends_when_its_control_plane_stays_away(away: str) -> None:
    key = {"job": 1, "attempt": 1, "node_rank": 0}
    one = NodeTunnel("0" * 32, lambda: NodeCalls(lambda: (away, ""), "token", key))
    assert list(one.frames()) == []
    assert one.is_over
    one.put(FrameKind.OUTPUT, data=b"x")  # neither waits
    one.finish()
