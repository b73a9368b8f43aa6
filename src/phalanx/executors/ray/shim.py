"""The shim: the process on a node that binds a supervisor to its Ray actor and to its raylet.

It starts the supervisor and ends it, with everything below, as soon as the actor that started it is gone
(end-of-file on standard input), or the raylet of the node is: neither needs Ray's help or notice. It
leaves only when nothing of the attempt is left on this node, and until then it listens on a port. So a
refused connection to that port means that everything is gone, and any program can find that out in a
millisecond, long before Ray's health checks do.

Started as `python -I -S`, with the standard library alone; everything it must know is one JSON line on
standard input. It answers with one JSON line: the port and a word by which it is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from phalanx.launch import linux
from phalanx.launch.authentication import AuthenticatedListener
from phalanx.launch.cgroup import ControlGroup
from phalanx.launch.identity import SupervisorRecord
from phalanx.launch.reaper import spawn

# Interval of checks of the raylet: a fence must not depend on the actor.
LOOK_S = 0.2
# How long a supervisor's reaper may take to end everything; it takes milliseconds.
_REAPER_S = 5.0


class SupervisorShim:
    """The parent of one supervisor, bound to an actor and a raylet."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._word: str = told["word"]
        self._raylet = (int(told["raylet_pid"]), int(told["raylet_ticks"]))
        server = socket.create_server((told["address"], 0), backlog=128)
        secret = self._word.encode()
        self._listener = AuthenticatedListener(server, lambda _name: secret)
        self._node_dir = Path(told["log"]).parent
        self._guests: list[socket.socket] = []
        self._pid = self._start(told)

    def _start(self, told: dict[str, Any]) -> int:
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(told["log"], flags, 0o600)
        try:
            return spawn(told["argv"], told["env"], told["cwd"], (stdin, log, log), ControlGroup())
        finally:
            os.close(stdin)
            os.close(log)

    @property
    def port(self) -> int:
        """The port on which the shim listens."""
        return self._listener.port

    def serve(self, wakeup: int) -> None:
        """Serve until the supervisor has ended, or has to be ended with its actor or raylet."""
        with selectors.DefaultSelector() as selector:
            for one in (0, wakeup, self._listener.fileno()):
                selector.register(one, selectors.EVENT_READ)
            while not self._is_over():
                ready = {key.fd for key, _ in selector.select(LOOK_S)}
                self._greet()
                if wakeup in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup, 4096)
                if 0 in ready and not os.read(0, 4096):
                    break
        self._end()

    def _end(self) -> None:
        """End the supervisor and, with its reaper's help, everything below; then what is left.

        The reaper ends the ranks, and writes what it holds of their output to the node's files.
        """
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        reaper = None
        # The file is on a disk that ranks can write to.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = SupervisorRecord.read(self._node_dir)
            reaper = None if record is None else record.reaper
        until = time.monotonic() + _REAPER_S
        while reaper is not None and reaper.is_alive() and time.monotonic() < until:
            time.sleep(0.005)
            self._reap()
        linux.kill_below(os.getpid(), frozenset(), self._reap)
        self._reap()

    def _is_over(self) -> bool:
        self._reap()
        one = linux.entry(self._raylet[0])
        raylet_gone = one is None or one.gone or one.start_ticks != self._raylet[1]
        return raylet_gone or not self._pid

    def _reap(self) -> None:
        for pid, _ in linux.reaped():
            if pid == self._pid:
                self._pid = 0

    def _greet(self) -> None:
        """Keep the connections of control planes open: they close when this process ends.

        Both sides prove that they know the word; others can neither learn it nor take a place.
        """
        with contextlib.suppress(OSError):
            guest = self._listener.accept(0).line
            self._guests = [*self._guests[-31:], guest]


def main() -> int:
    """Returns 0 when nothing is left."""
    linux.load()
    linux.become_subreaper()
    linux.ignore_signals_to_end()
    wakeup = linux.wakeup_on_child_exit()
    told = json.loads(_line())
    try:
        shim = SupervisorShim(told)
    except OSError as error:
        _answer({"error": f"{error.strerror}: {error.filename}"})
        return 1
    _answer({"port": shim.port, "pid": os.getpid()})
    shim.serve(wakeup)
    return 0


def _line() -> bytes:
    """One line of standard input, and nothing behind it."""
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit(1)
        data += chunk
    return data


def _answer(body: dict[str, Any]) -> None:
    os.write(1, json.dumps(body).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
