"""One command in the environment of a rank, with pipes or a terminal."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import termios
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.core.tunnels.frames import BadFrame, FrameKind, TunnelFrame, size_of
from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.kit.interpreter import own_python
from phalanx.supervise.processes import LaunchRequest, ProcessObserver
from phalanx.supervise.tunnels.calls import NodeTunnel

MAX_OUTPUT_BYTES = 256 << 20
"""Most output of one command; one that prints more is ended."""
_READ_BYTES = 1 << 15
# After the command has ended: how long to wait for output of processes that it left.
_REST_S = 0.3
_KILL_AFTER_S = 5.0
_END_OF_INPUT = b"\x04"
# Makes the terminal the controlling one, so that keys such as Ctrl-C become signals.
_WITH_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error.strerror}")
"""

Start = Callable[[list[str], LaunchRequest, ProcessObserver], None]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The environment and the folder of a rank."""

    env: Mapping[str, str]
    cwd: str


class CommandTunnel(ProcessObserver):
    """Runs one command for a tunnel. `start` is called on the main thread, the rest works in threads."""

    __slots__ = (
        "_ends",
        "_exited",
        "_input",
        "_num_read",
        "_pid",
        "_purpose",
        "_status",
        "_tunnel",
    )

    def __init__(self, tunnel: NodeTunnel, purpose: TunnelPurpose) -> None:
        self._tunnel, self._purpose = tunnel, purpose
        self._pid: int | None = None
        self._status = 0
        self._exited = threading.Event()
        self._ends: dict[FrameKind, int] = {}  # descriptors that are read, by what they carry
        self._input: int | None = None
        self._num_read = 0

    # -- the main thread ---------------------------------------------------------------------------

    def start(self, place: RankPlace, start: Start) -> None:
        """Start the command; what becomes of it goes into the tunnel. Raises OSError."""
        purpose = self._purpose
        argv = list(purpose.command)
        env = dict(place.env)
        if purpose.tty:
            env.setdefault("TERM", "xterm-256color")
            argv = own_python("-I", "-S", "-c", _WITH_TERMINAL, *argv)
            stdio = self._terminal()
        else:
            stdio = self._pipes()
        start(argv, LaunchRequest(env, place.cwd, stdio), self)

    def _terminal(self) -> tuple[int, int, int]:
        ours, theirs = os.openpty()
        _resize(ours, self._purpose.rows, self._purpose.columns)
        os.set_blocking(ours, False)
        self._ends, self._input = {FrameKind.OUTPUT: ours}, os.dup(ours)
        return theirs, theirs, theirs

    def _pipes(self) -> tuple[int, int, int]:
        stdin, ours = os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        for one in (ours, out, err):
            os.set_blocking(one, False)
        self._ends = {FrameKind.OUTPUT: out, FrameKind.ERRORS: err}
        self._input = ours
        return stdin, stdout, stderr

    def started(self, pid: int, *, warm: bool) -> None:
        """See `ProcessObserver`."""
        self._pid = pid
        readers = [_thread(self._read, kind, end) for kind, end in self._ends.items()]
        _thread(self._feed)
        _thread(self._conclude, readers)

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`."""
        self._close_all()
        _thread(refuse, self._tunnel, message)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`."""
        code = os.waitstatus_to_exitcode(status)
        self._status = code if code >= 0 else 128 - code
        self._exited.set()

    # -- threads -----------------------------------------------------------------------------------

    def _read(self, kind: FrameKind, end: int) -> None:
        """Send what the command prints, until it has ended and nothing is left."""
        while not self._tunnel.is_over:
            ready = _wait(end, _REST_S, writing=False)
            if not ready:
                if self._exited.is_set():
                    break  # processes that it left hold the pipe
                continue
            data = _read_some(end)
            if not data:
                break
            self._num_read += len(data)
            if self._num_read > MAX_OUTPUT_BYTES:
                said = f"the command printed more than {MAX_OUTPUT_BYTES >> 20} MiB and was ended\n"
                self._tunnel.put(FrameKind.ERRORS, data=said.encode())
                self._kill()
                break
            self._tunnel.put(kind, data=data)
        os.close(end)

    def _feed(self) -> None:
        """Write what the client sends; when the client is gone, end the command."""
        for frame in self._tunnel.frames():
            if frame.kind is FrameKind.INPUT:
                self._write(frame.data)
            elif frame.kind is FrameKind.CLOSE:
                self._close_input()
            elif frame.kind is FrameKind.RESIZE:
                self._resized(frame)
        self._close_input(hang_up=True)
        if not self._exited.is_set():
            self._kill()

    def _write(self, data: bytes) -> None:
        while data and self._input is not None and not self._exited.is_set():
            if not _wait(self._input, _REST_S, writing=True):
                continue
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                continue
            except OSError:
                self._close_input(hang_up=True)  # the command reads no more

    def _close_input(self, *, hang_up: bool = False) -> None:
        if self._input is None:
            return
        if self._purpose.tty and not hang_up:
            with contextlib.suppress(OSError):
                os.write(self._input, _END_OF_INPUT)
            return
        descriptor, self._input = self._input, None
        os.close(descriptor)

    def _resized(self, frame: TunnelFrame) -> None:
        if self._purpose.tty and self._input is not None:
            with contextlib.suppress(BadFrame, OSError):
                _resize(self._input, *size_of(frame))

    def _conclude(self, readers: list[threading.Thread]) -> None:
        """Wait for the end, and tell the exit code behind all output."""
        self._exited.wait()
        for one in readers:
            one.join()
        self._tunnel.put(FrameKind.EXITED, data=str(self._status).encode())
        self._tunnel.finish()

    def _kill(self) -> None:
        """End the command with its session: hang up first."""
        if self._pid is None:
            return
        for number, wait_s in ((signal.SIGHUP, _KILL_AFTER_S), (signal.SIGKILL, _KILL_AFTER_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)
            if self._exited.wait(wait_s):
                return

    def _close_all(self) -> None:
        for end in self._ends.values():
            os.close(end)
        self._ends = {}
        self._close_input(hang_up=True)


def refuse(tunnel: NodeTunnel, message: str) -> None:
    """Say why nothing was started, and end the tunnel."""
    tunnel.put(FrameKind.REFUSED, data=message.encode())
    tunnel.finish()


def _thread(work: Callable[..., None], *args: object) -> threading.Thread:
    made = threading.Thread(target=work, args=args, name="tunnel", daemon=True)
    made.start()
    return made


def _resize(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _wait(descriptor: int, timeout_s: float, *, writing: bool) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _read_some(descriptor: int) -> bytes:
    """What can be read; empty at the end."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return b""
    except OSError as error:
        if error.errno == errno.EIO:  # the other side of a terminal is closed
            return b""
        raise
