"""The reaper: the parent of every process that a supervisor starts.

A small process in a session of its own. It starts programs on request, reports their ends, and kills
all processes below it on request or when its supervisor's end of the channel closes, which happens
however the supervisor dies. It is a subreaper, so processes that daemonise stay below it.

Messages to it: `{"op": "spawn", "id", "argv", "env", "cwd", "spare"}` with descriptors for 0, 1, 2, … ;
`{"op": "kill", "id"}` kills everything but the spared ones. `{"op": "keep", "id"}` with the reading ends of
output pipes and the files they are written to, in pairs: when the supervisor dies, what it had not read is
written to the files. `{"op": "forget", "id"}` closes them.
`{"op": "limit", "id", "cpus", "memory_bytes"}` limits what they use together, where control groups
allow it.
From it: `{"event": "spawned", "id", "pid"}`, `{"event": "refused", "id", "errno", "message"}`,
`{"event": "exited", "pid", "status", "at"}`, `{"event": "killed", "id"}`, and
`{"event": "limited", "id", "problem"}`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

from phalanx.launch import linux
from phalanx.launch.cgroup import ControlGroup, group_name, make_group
from phalanx.launch.wire import Channel, WireMessage

# Descriptors are moved up here before they are put in place, so that none overwrites another.
_HIGH = 64
# Python ignores these two; a program it starts expects the defaults.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Reaper:
    """The loop of the reaper process."""

    def __init__(self, channel: Channel, wakeup: int, group: ControlGroup) -> None:
        self._channel = channel
        self._group = group
        self._wakeup = wakeup
        self._spared: set[int] = set()
        self._kept: list[int] = []  # pipes and files, in turns

    def serve(self) -> None:
        """Until the supervisor is gone; then until everything else is gone too."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            attended = True
            while attended:
                ready = {key.fd for key, _ in selector.select()}
                if self._wakeup in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wakeup, 4096)
                    self._reap()
                if self._channel.fileno() in ready:
                    attended = self._attend()
        self._group.kill()
        linux.kill_below(os.getpid(), frozenset(), self._reap)
        self._reap()  # processes that died after the last call
        for pipe, file in zip(self._kept[::2], self._kept[1::2], strict=True):
            _save_rest(pipe, file)
        self._group.remove()

    def spare(self, pid: int) -> None:
        """Take over a child that this process has forked before, as if request 0 had started it."""
        self._spared.add(pid)
        self._tell({"event": "spawned", "id": 0, "pid": pid})

    def _attend(self) -> bool:
        message = self._channel.receive()
        if message is None:
            return False
        if message.body["op"] == "spawn":
            self._spawn(message)
        elif message.body["op"] == "limit":
            body = message.body
            problem = self._group.limit(body["cpus"], body["memory_bytes"])
            self._tell({"event": "limited", "id": body["id"], "problem": problem})
        elif message.body["op"] == "kill":
            linux.kill_below(os.getpid(), frozenset(self._spared), self._reap)
            self._tell({"event": "killed", "id": message.body["id"]})
        elif message.body["op"] == "keep":
            self._kept.extend(message.descriptors)
        elif message.body["op"] == "forget":
            for descriptor in self._kept:
                os.close(descriptor)
            self._kept.clear()
        return True

    def _tell(self, body: dict[str, Any]) -> None:
        # A supervisor that is gone is noticed by end-of-file, not here.
        with contextlib.suppress(OSError):
            self._channel.send(body)

    def _reap(self) -> None:
        for pid, status in linux.reaped():
            self._spared.discard(pid)
            # Orphans are told as well: the ranks of a warm process that died end here.
            at = time.time_ns() // 1000
            self._tell({"event": "exited", "pid": pid, "status": status, "at": at})

    def _spawn(self, message: WireMessage) -> None:
        body = message.body
        try:
            pid = spawn(body["argv"], body["env"], body["cwd"], message.descriptors, self._group)
        except OSError as error:
            said = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
            refused = {"event": "refused", "id": body["id"], "errno": error.errno, "message": said}
            self._tell(refused)
            return
        finally:
            for descriptor in message.descriptors:
                os.close(descriptor)
        if body.get("spare"):
            self._spared.add(pid)
        self._tell({"event": "spawned", "id": body["id"], "pid": pid})


def _save_rest(pipe: int, file: int) -> None:
    """Write what a pipe still holds to a file, without waiting; a full disk ends it."""
    with contextlib.suppress(OSError):
        while data := os.read(pipe, 1 << 16):
            while data:
                data = data[os.write(file, data) :]


def spawn(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    descriptors: tuple[int, ...],
    group: ControlGroup,
) -> int:
    """Start a program in a session of its own, bound to this process; returns its number.

    `descriptors` become 0, 1, 2 and so on. Raises OSError when it cannot be executed, naming what is
    missing.
    """
    report_read, report_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        group.join()
        _become(argv, env, cwd, descriptors, report_write, parent)
    os.close(report_write)
    with open(report_read, "rb") as report:
        said = report.read()
    if not said:
        return pid
    os.waitpid(pid, 0)
    code, _, what = said.decode().partition(" ")
    raise OSError(int(code), os.strerror(int(code)), what)


def _become(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    descriptors: tuple[int, ...],
    report: int,
    parent: int,
) -> None:
    what = argv[0]
    try:
        linux.die_with_parent(parent)
        os.setsid()
        report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _HIGH) for one in descriptors]
        for target, source in enumerate(high):
            os.dup2(source, target)
        os.closerange(len(high), _HIGH)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        what = cwd
        os.chdir(cwd)
        what = argv[0]
        os.execve(argv[0], argv, env)
    except OSError as error:
        os.write(report, f"{error.errno} {what}".encode())
    finally:
        os._exit(127)


def main(descriptor: int) -> None:
    """Run as a process of its own, with the channel as an inherited descriptor."""
    linux.load()
    serve(Channel(socket.socket(fileno=descriptor)), make_group(group_name(os.getpid())))


def serve(channel: Channel, group: ControlGroup, child: int | None = None) -> None:
    """Be the reaper until the supervisor is gone. `child`: a process that exists already, and is spared.

    The supervisor hears of the child as of the answer to request 0.
    """
    linux.become_subreaper()
    linux.ignore_signals_to_end()
    reaper = Reaper(channel, linux.wakeup_on_child_exit(), group)
    if child is not None:
        reaper.spare(child)
    reaper.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
