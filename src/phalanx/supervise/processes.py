"""Everything the supervisor starts: through the reaper, or by a fork of the warm process."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from phalanx.launch import linux
from phalanx.launch.command import PythonCommand, cold_argv, sensitive
from phalanx.launch.tree import ReaperProcess, WarmProcess
from phalanx.supervise.eventloop import EventLoop

# Imports of a warm process are given up after this long.
WARM_WITHIN_S = 300.0


class ProcessObserver(Protocol):
    """Who wants to know what becomes of one process."""

    def started(self, pid: int, *, warm: bool) -> None:
        """It runs."""
        ...

    def refused(self, message: str, *, missing: bool) -> None:
        """It could not be started. `missing`: the program or its folder does not exist."""
        ...

    def exited(self, status: int, at: int) -> None:
        """It is gone, with a wait status, at a wall-clock time in microseconds."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One process to start: its environment, folder and descriptors 0, 1, 2."""

    env: Mapping[str, str]
    cwd: str
    stdio: tuple[int, int, int]

    def close(self) -> None:
        """Give back the copies of the descriptors that the child was given."""
        for descriptor in set(self.stdio):
            os.close(descriptor)


@dataclass(slots=True)
class ProcessTree:
    """The tree below the supervisor. All calls happen on the main thread.

    `lost` is called when the reaper or the warm process died on its own, with a sentence saying so.
    """

    loop: EventLoop
    reaper: ReaperProcess
    warm: WarmProcess | None
    tag_env: Mapping[str, str]
    warm_up: Callable[[ReaperProcess], WarmProcess | None] = lambda _reaper: None
    lost: Callable[[str], None] = lambda _said: None
    warned: Callable[[str], None] = lambda _said: None
    _asked: dict[int, tuple[ProcessObserver, LaunchRequest]] = field(default_factory=dict)
    _forking: deque[tuple[ProcessObserver, LaunchRequest, PythonCommand]] = field(
        default_factory=deque
    )
    _watchers: dict[int, ProcessObserver] = field(default_factory=dict)
    _forked: set[int] = field(default_factory=set)
    _kills: dict[int, Callable[[], None]] = field(default_factory=dict)

    def attend(self) -> None:
        """Begin to listen."""
        self.loop.watch(self.reaper.channel.fileno(), self._on_reaper)
        if self.warm is not None:
            self.loop.watch(self.warm.channel.fileno(), self._on_warm)

    # -- starting ----------------------------------------------------------------------------------

    def start_python(
        self, command: PythonCommand, launch: LaunchRequest, watcher: ProcessObserver
    ) -> None:
        """Fork it from the warm process where that can give what a fresh one would."""
        if self.warm is not None and sensitive(launch.env) == self.warm.sensitive_env:
            self._fork(self.warm, command, launch, watcher)
        else:
            self._start_cold(command, launch, watcher)

    def start_command(self, command: list[str] | str, launch: LaunchRequest, watcher: ProcessObserver,
                      workdir: str) -> None:  # fmt: skip
        """Start any other command."""
        try:
            argv = cold_argv(command, workdir=workdir, env=launch.env)
        except FileNotFoundError as error:
            launch.close()
            watcher.refused(f"{error.strerror}: {error.filename}", missing=True)
            return
        self._spawn(argv, launch, watcher)

    def _start_cold(
        self, command: PythonCommand, launch: LaunchRequest, watcher: ProcessObserver
    ) -> None:
        cold = LaunchRequest(command.cold_env(launch.env), launch.cwd, launch.stdio)
        self._spawn(command.argv(), cold, watcher)

    def _spawn(self, argv: list[str], launch: LaunchRequest, watcher: ProcessObserver) -> None:
        try:
            request = self.reaper.spawn(
                argv, {**launch.env, **self.tag_env}, launch.cwd, launch.stdio
            )
        except OSError as error:
            launch.close()
            watcher.refused(f"the reaper is gone: {error.strerror}", missing=False)
            return
        self._asked[request] = (watcher, launch)

    def _fork(
        self,
        warm: WarmProcess,
        command: PythonCommand,
        launch: LaunchRequest,
        watcher: ProcessObserver,
    ) -> None:
        body: dict[str, Any] = {
            "env": {**launch.env, **self.tag_env},
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
            self._start_cold(command, launch, watcher)
            return
        self._forking.append((watcher, launch, command))
        self.loop.call_later(WARM_WITHIN_S, lambda: self._check_warm(warm, watcher))

    def _check_warm(self, warm: WarmProcess, watcher: ProcessObserver) -> None:
        """An import that never ends must not keep the ranks waiting for ever."""
        if warm is self.warm and any(one is watcher for one, _, _ in self._forking) and warm.pid:
            # Killed, not retired: it would still fork what it was asked for. The reaper tells its end.
            self.warned(f"the warm process was not ready within {WARM_WITHIN_S:g} s")
            os.kill(warm.pid, signal.SIGKILL)

    def start_warm(self) -> None:
        """Have a warm process, where the job's command allows one and there is none yet."""
        if self.warm is None:
            self.warm = self.warm_up(self.reaper)
            if self.warm is not None:
                self.loop.watch(self.warm.channel.fileno(), self._on_warm)

    def retire_warm(self) -> None:
        """Do without the warm process from now on."""
        warm, self.warm = self.warm, None
        if warm is not None:
            self.loop.forget(warm.channel.fileno())
            warm.channel.close()  # it leaves at end-of-file

    # -- killing -----------------------------------------------------------------------------------

    def kill_all(self, then: Callable[[], None]) -> None:
        """SIGKILL everything but the warm process; `then` is called when nothing of it is left."""
        try:
            self._kills[self.reaper.kill()] = then
        except OSError:
            self._kill_directly()
            then()

    def _kill_directly(self) -> None:
        linux.kill_below(os.getpid(), frozenset(), _reap)

    # -- what reaper and warm process say -----------------------------------------------------------

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

    def _spawned(self, body: dict[str, Any]) -> None:
        if self.warm is not None and body["id"] == self.warm.request:
            self.warm.pid = body["pid"]
            return
        found = self._asked.pop(body["id"], None)
        if found is not None:
            watcher, launch = found
            launch.close()
            self._watchers[body["pid"]] = watcher
            watcher.started(body["pid"], warm=False)

    def _refused(self, body: dict[str, Any]) -> None:
        if self.warm is not None and body["id"] == self.warm.request:
            self._warm_lost(f"the warm process could not be started: {body['message']}")
            return
        found = self._asked.pop(body["id"], None)
        if found is not None:
            watcher, launch = found
            launch.close()
            missing = body["errno"] in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
            watcher.refused(body["message"], missing=missing)

    def _exited(self, pid: int, status: int, at: int) -> None:
        if self.warm is not None and (pid == self.warm.pid or pid in self._forked):
            # A forked rank becomes the reaper's only when the warm process is dead. What it said
            # before comes first: nobody would say it again.
            while self.warm is not None:
                self._on_warm()
        self._forked.discard(pid)
        watcher = self._watchers.pop(pid, None)
        if watcher is not None:
            watcher.exited(status, at)

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
            warm.ready = True
            for name, why in body["failed"].items():
                self.warned(f"the warm process could not import {name}: {why}")
        elif body["event"] == "forked":
            watcher, launch, _ = self._forking.popleft()
            launch.close()
            self._watchers[body["pid"]] = watcher
            self._forked.add(body["pid"])
            watcher.started(body["pid"], warm=True)
        elif body["event"] == "refused":
            watcher, launch, command = self._forking.popleft()
            self.warned(f"a rank starts cold: {body['why']}")
            self._start_cold(command, launch, watcher)
        elif body["event"] == "exited":
            self._forked.discard(body["pid"])
            watcher_of = self._watchers.pop(body["pid"], None)
            if watcher_of is not None:
                watcher_of.exited(body["status"], body["at"])

    def _warm_lost(self, said: str) -> None:
        had_ranks = bool(self._forked)
        self.retire_warm()
        waiting, self._forking = list(self._forking), deque()
        if had_ranks:
            self.lost(said)
        else:
            self.warned(f"{said}: ranks start cold")
        for watcher, launch, command in waiting:
            self._start_cold(command, launch, watcher)

    def _reaper_lost(self) -> None:
        self.loop.forget(self.reaper.channel.fileno())
        self.reaper.channel.close()
        self.retire_warm()
        self.lost("the reaper process died")
        # Being a subreaper too, the supervisor has inherited what the reaper left.
        self._kill_directly()
        self.reaper = ReaperProcess.start(self.tag_env)
        self.loop.watch(self.reaper.channel.fileno(), self._on_reaper)
        self._end_everything()

    def _end_everything(self) -> None:
        """Nothing lives any more, and nobody will say so."""
        asked = [*self._asked.values(), *((one, launch) for one, launch, _ in self._forking)]
        self._asked.clear()
        self._forking.clear()
        watchers, self._watchers = self._watchers, {}
        kills, self._kills = self._kills, {}
        self._forked.clear()
        for watcher, launch in asked:
            launch.close()
            watcher.refused("the reaper process died", missing=False)
        at = time.time_ns() // 1000
        for watcher in watchers.values():
            watcher.exited(signal.SIGKILL, at)
        for then in kills.values():
            then()


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
