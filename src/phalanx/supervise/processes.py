"""The processes below a supervisor, started by the reaper or forked by the warm process."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.launch import accept_guard, linux
from phalanx.launch.command import PythonCommand, cold_argv, sensitive
from phalanx.launch.tree import ReaperProcess, WarmProcess
from phalanx.supervise.eventloop import EventLoop

# Imports of a warm process are given up after this long.
WARM_WITHIN_S = 300.0


class ProcessObserver:
    """Receives what happens to one process; this one ignores it."""

    __slots__ = ()

    def started(self, pid: int, *, warm: bool) -> None:
        """The process runs."""

    def refused(self, message: str, *, missing: bool) -> None:
        """The process could not be started. `missing`: its program or folder does not exist."""

    def exited(self, status: int, at: int) -> None:
        """The process has ended with a wait status, at a time in microseconds UTC."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A process to start: its environment, folder and descriptors 0, 1, 2."""

    env: Mapping[str, str]
    cwd: str
    stdio: tuple[int, int, int]

    def close(self) -> None:
        """Close the descriptors that were passed to the child."""
        for descriptor in set(self.stdio):
            os.close(descriptor)


@dataclass(slots=True)
class ProcessTree:
    """Starts and kills the processes below a supervisor. All calls happen on the main thread."""

    loop: EventLoop  # of the supervisor
    reaper: ReaperProcess  # replaced when it dies
    warm: WarmProcess | None  # None: ranks start as fresh interpreters
    tag_env: Mapping[str, str]  # the variable that marks every process of this supervisor
    #: starts a warm process, or returns None where the job's command cannot use one
    make_warm_process: Callable[[ReaperProcess], WarmProcess | None] = lambda _reaper: None
    #: the library that refuses strangers' connections, loaded into ranks; None: there is none
    guard: Path | None = None
    #: called with a message when the reaper or the warm process died with ranks below it
    on_lost: Callable[[str], None] = lambda _message: None
    #: called with a message for the user when ranks start in another way than expected
    on_warning: Callable[[str], None] = lambda _message: None
    #: CPUs and bytes of memory that all of them may use together; 0: no limit
    limits: tuple[int, int] = (0, 0)
    #: requests to the reaper that it has not answered
    _asked: dict[int, tuple[ProcessObserver, LaunchRequest]] = field(default_factory=dict)
    #: forks that the warm process has not confirmed, in order
    _forking: deque[tuple[ProcessObserver, LaunchRequest, PythonCommand]] = field(
        default_factory=deque
    )
    _observers: dict[int, ProcessObserver] = field(default_factory=dict)  # running processes
    #: running processes that the warm process has forked
    _forked: set[int] = field(default_factory=set)
    #: what to call when the reaper has killed everything, by request
    _kills: dict[int, Callable[[], None]] = field(default_factory=dict)

    def listen(self) -> None:
        """Begin to receive the messages of the reaper and the warm process."""
        self.loop.watch(self.reaper.channel.fileno(), self._on_reaper)
        self._limit()
        if self.warm is not None:
            self.loop.watch(self.warm.channel.fileno(), self._on_warm)

    def _limit(self) -> None:
        if any(self.limits):
            with contextlib.suppress(OSError):  # a reaper that is gone is noticed by end-of-file
                self.reaper.limit(*self.limits)

    # -- starting ----------------------------------------------------------------------------------

    def start_python(
        self, command: PythonCommand, launch: LaunchRequest, observer: ProcessObserver
    ) -> None:
        """Start a Python program: forked from the warm process where that equals a fresh interpreter."""
        if self.warm is not None and sensitive(launch.env) == self.warm.sensitive_env:
            self._fork(self.warm, command, launch, observer)
        else:
            self._start_cold(command, launch, observer)

    def start_command(
        self,
        command: list[str] | str,
        launch: LaunchRequest,
        observer: ProcessObserver,
        workdir: str,
    ) -> None:
        """Start any other command through the reaper."""
        try:
            argv = cold_argv(command, workdir=workdir, env=launch.env)
        except FileNotFoundError as error:
            launch.close()
            observer.refused(f"{error.strerror}: {error.filename}", missing=True)
            return
        self._spawn(argv, launch, observer)

    def _start_cold(
        self, command: PythonCommand, launch: LaunchRequest, observer: ProcessObserver
    ) -> None:
        cold = LaunchRequest(command.cold_env(launch.env), launch.cwd, launch.stdio)
        self._spawn(command.argv(), cold, observer)

    def _spawn(self, argv: list[str], launch: LaunchRequest, observer: ProcessObserver) -> None:
        try:
            request = self.reaper.spawn(argv, self._complete(launch.env), launch.cwd, launch.stdio)
        except OSError as error:
            launch.close()
            observer.refused(f"the reaper is gone: {error.strerror}", missing=False)
            return
        self._asked[request] = (observer, launch)

    def _complete(self, env: Mapping[str, str]) -> dict[str, str]:
        guard = self.guard if "PHALANX_ACCEPT" in env else None
        return {**accept_guard.preloaded(env, guard), **self.tag_env}

    def _fork(
        self,
        warm: WarmProcess,
        command: PythonCommand,
        launch: LaunchRequest,
        observer: ProcessObserver,
    ) -> None:
        body: dict[str, Any] = {
            "env": self._complete(launch.env),
            "argv": [command.target, *command.args],
            "orig_argv": command.argv(),
            "kind": command.kind,
            "target": command.target,
            "cwd": launch.cwd,
            "workdir": command.workdir,
        }
        try:
            warm.fork(body, launch.stdio)
        except OSError:
            self._start_cold(command, launch, observer)
            return
        self._forking.append((observer, launch, command))
        self.loop.call_later(WARM_WITHIN_S, lambda: self._check_warm(warm, observer))

    def _check_warm(self, warm: WarmProcess, observer: ProcessObserver) -> None:
        """Kill a warm process that is not ready in time: an import may never end."""
        if warm is self.warm and any(one is observer for one, _, _ in self._forking) and warm.pid:
            # Killed, not closed: it would still fork what it was asked for. The reaper reports its end.
            self.on_warning(f"the warm process was not ready within {WARM_WITHIN_S:g} s")
            os.kill(warm.pid, signal.SIGKILL)

    def start_warm_process(self) -> None:
        """Start the warm process, where the job's command can use one and none runs."""
        if self.warm is None:
            self.warm = self.make_warm_process(self.reaper)
            if self.warm is not None:
                self.loop.watch(self.warm.channel.fileno(), self._on_warm)

    def stop_warm_process(self) -> None:
        """End the warm process; later ranks start as fresh interpreters."""
        warm, self.warm = self.warm, None
        if warm is not None:
            self.loop.forget(warm.channel.fileno())
            warm.channel.close()  # it leaves at end-of-file

    # -- output -----------------------------------------------------------------------------------

    def keep_output(self, descriptors: Sequence[int]) -> None:
        """Have the reaper save what pipes hold when this process dies: reading ends and files, in turns."""
        with contextlib.suppress(OSError):  # a reaper that is gone ends all ranks anyway
            self.reaper.keep(descriptors)

    def forget_output(self) -> None:
        """End that: everything was read."""
        with contextlib.suppress(OSError):
            self.reaper.forget()

    # -- killing -----------------------------------------------------------------------------------

    def kill_all(self, then: Callable[[], None]) -> None:
        """Kill everything except the warm process; `then` is called when all have ended."""
        try:
            self._kills[self.reaper.kill()] = then
        except OSError:
            self._kill_directly()
            then()

    def _kill_directly(self) -> None:
        linux.kill_below(os.getpid(), frozenset(), _reap)

    # -- messages of reaper and warm process --------------------------------------------------------

    def _on_reaper(self) -> None:
        message = self.reaper.channel.receive()
        if message is None:
            self._reaper_lost()
            return
        body = message.body
        if body["event"] == "spawned":
            self._spawned(body)
        elif body["event"] == "refused":
            self._refused(body)
        elif body["event"] == "exited":
            self._exited(body["pid"], body["status"], body["at"])
        elif body["event"] == "killed":
            self._kills.pop(body["id"])()
        elif body["event"] == "limited" and body["problem"]:
            self.on_warning(f"the limits on cpus and memory are not enforced: {body['problem']}")

    def _spawned(self, body: dict[str, Any]) -> None:
        if self.warm is not None and body["id"] == self.warm.request:
            self.warm.pid = body["pid"]
        elif (observer := self._answered(body)) is not None:
            self._observers[body["pid"]] = observer
            observer.started(body["pid"], warm=False)

    def _refused(self, body: dict[str, Any]) -> None:
        if self.warm is not None and body["id"] == self.warm.request:
            self._warm_lost(f"the warm process could not be started: {body['message']}")
        elif (observer := self._answered(body)) is not None:
            missing = body["errno"] in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
            observer.refused(body["message"], missing=missing)

    def _answered(self, body: dict[str, Any]) -> ProcessObserver | None:
        """The observer of a request that the reaper has answered."""
        observer, launch = self._asked.pop(body["id"], (None, None))
        if launch is not None:
            launch.close()
        return observer

    def _exited(self, pid: int, status: int, at: int) -> None:
        if self.warm is not None and (pid == self.warm.pid or pid in self._forked):
            # The reaper inherits a forked rank when the warm process is dead. Messages that the warm
            # process sent before are read first: they are not repeated.
            while self.warm is not None:
                self._on_warm()
        self._forked.discard(pid)
        observer = self._observers.pop(pid, None)
        if observer is not None:
            observer.exited(status, self.loop.steady(at))

    def _on_warm(self) -> None:
        warm = self.warm
        if warm is None:
            return
        message = warm.channel.receive()
        if message is None:
            self._warm_lost("the warm process died")
            return
        body = message.body
        if body["event"] == "ready":
            for name, why in body["failed"].items():
                self.on_warning(f"the warm process could not import {name}: {why}")
        elif body["event"] == "forked":
            observer, launch, _ = self._forking.popleft()
            launch.close()
            self._observers[body["pid"]] = observer
            self._forked.add(body["pid"])
            observer.started(body["pid"], warm=True)
        elif body["event"] == "refused":
            observer, launch, command = self._forking.popleft()
            self.on_warning(f"a rank starts without the warm process: {body['why']}")
            self._start_cold(command, launch, observer)
        elif body["event"] == "exited":
            self._forked.discard(body["pid"])
            forked = self._observers.pop(body["pid"], None)
            if forked is not None:
                forked.exited(body["status"], self.loop.steady(body["at"]))

    def _warm_lost(self, said: str) -> None:
        had_ranks = bool(self._forked)
        self.stop_warm_process()
        waiting, self._forking = list(self._forking), deque()
        if had_ranks:
            self.on_lost(said)
        else:
            self.on_warning(f"{said}; ranks start without it")
        for observer, launch, command in waiting:
            self._start_cold(command, launch, observer)

    def _reaper_lost(self) -> None:
        self.loop.forget(self.reaper.channel.fileno())
        self.reaper.channel.close()
        self.stop_warm_process()
        self.on_lost("the reaper process died")
        # Being a subreaper too, the supervisor has inherited what the reaper left.
        self._kill_directly()
        self.reaper = ReaperProcess.start(self.tag_env)
        self.loop.watch(self.reaper.channel.fileno(), self._on_reaper)
        self._limit()
        self._end_everything()

    def _end_everything(self) -> None:
        """Report the end of every process: all were killed, and the reaper that would report it is dead."""
        asked = [*self._asked.values(), *((one, launch) for one, launch, _ in self._forking)]
        self._asked.clear()
        self._forking.clear()
        observers, self._observers = self._observers, {}
        kills, self._kills = self._kills, {}
        self._forked.clear()
        for observer, launch in asked:
            launch.close()
            observer.refused("the reaper process died", missing=False)
        at = time.time_ns() // 1000
        for observer in observers.values():
            observer.exited(signal.SIGKILL, at)
        for then in kills.values():
            then()


def _reap() -> None:
    for _ in linux.reaped():
        pass
