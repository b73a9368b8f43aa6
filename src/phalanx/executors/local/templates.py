"""The templates of studies: processes with all imports done, which fork supervisors of one study each."""

from __future__ import annotations

import logging
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.executors.local.standby import WarmNeeds
from phalanx.kit.clock import Clock
from phalanx.launch import accept_guard
from phalanx.launch.command import same_python
from phalanx.launch.identity import BLANK_TAG, TAG_VARIABLE, ProcessIdentity
from phalanx.launch.wire import Channel, pair
from phalanx.schemas.wire.assignments import Assignment

_LOG = logging.getLogger(__name__)
# A template ends when no supervisor of its study has run for so long.
IDLE_S = 10.0
# More studies than this at the same time start their trials as other jobs start.
MOST = 4
# A template is idle while it waits, so it answers within milliseconds.
_ANSWER_S = 5.0
Key = tuple[int, frozenset[tuple[str, str]], tuple[str, ...]]
"""A study, the variables that a fork cannot change, and the modules to import."""


class ForkedSupervisor:
    """A supervisor that is not a child of this process, asked as a `Popen` is."""

    def __init__(self, pid: int) -> None:
        self._identity = ProcessIdentity.of(pid)

    def poll(self) -> int | None:
        """None while it runs; its exit code is not known."""
        alive = self._identity is not None and self._identity.is_alive()
        return None if alive else 0


@dataclass(slots=True)
class StudyTemplate:
    """One template, from its start on. `ready` once it has imported everything."""

    process: subprocess.Popen[bytes]
    channel: Channel
    used_at: float  # when a supervisor of its study was last seen alive
    ready: bool = False
    #: it cannot be used; kept so that it is not started again at once
    broken: bool = False
    supervisors: list[Callable[[], int | None]] = field(default_factory=list)

    def is_ready(self) -> bool:
        """Whether it can fork, without waiting."""
        if not self.ready and not self.broken and _is_readable(self.channel, 0.0):
            self.ready = self.channel.receive() is not None
            self.broken = not self.ready
        return self.ready and not self.broken

    def fork(self, assignment: Path) -> int | None:
        """Have it fork a supervisor; returns its process number, or None if it does not."""
        try:
            self.channel.send({"op": "supervise", "assignment": str(assignment)})
            answer = self.channel.receive() if _is_readable(self.channel, _ANSWER_S) else None
        except OSError:
            answer = None
        if answer is not None and answer.body["event"] == "forked":
            return int(answer.body["pid"])
        why = "no answer" if answer is None else answer.body["why"]
        _LOG.warning("trials start without their study's template: %s", why)
        self.end()
        self.broken = True
        return None

    def end(self) -> None:
        """End it; supervisors that it has forked stay."""
        self.channel.close()
        self.ready = False
        # A thread of its own waits for it, so that no zombie stays.
        threading.Thread(target=self.process.wait, daemon=True).start()


class StudyTemplates:
    """Keeps one template for each study with trials on this machine. Safe for several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._templates: dict[Key, StudyTemplate] = {}

    def take(self, assignment: Assignment, path: Path) -> ForkedSupervisor | None:
        """Start the supervisor of a trial from its study's template; None where there is none yet."""
        key = _key(assignment)
        with self._lock:
            found = self._templates.get(key) if key is not None else None
            if found is None or not found.is_ready() or (pid := found.fork(path)) is None:
                return None
            return ForkedSupervisor(pid)

    def keep(self, assignment: Assignment, poll: Callable[[], int | None]) -> None:
        """Have a template for the study of a supervisor that was started; `poll` is that of its process."""
        key = _key(assignment)
        if key is None:
            return
        with self._lock:
            if key not in self._templates:
                if len(self._templates) >= MOST:
                    return
                self._templates[key] = self._start(assignment)
            self._templates[key].supervisors.append(poll)

    def tend(self) -> None:
        """End the templates of studies that have had no supervisor for a while."""
        with self._lock:
            now = self._clock.monotonic()
            for key, one in list(self._templates.items()):
                one.supervisors = [poll for poll in one.supervisors if poll() is None]
                if one.supervisors:
                    one.used_at = now
                elif now - one.used_at > IDLE_S:
                    del self._templates[key]
                    if not one.broken:
                        one.end()

    def close(self) -> None:
        """End all templates."""
        with self._lock:
            for one in self._templates.values():
                if not one.broken:
                    one.end()
            self._templates.clear()

    def _start(self, assignment: Assignment) -> StudyTemplate:
        needs = WarmNeeds.of(assignment)
        assert needs is not None
        ours, theirs = pair()
        env = accept_guard.preloaded(needs.env, accept_guard.library()[0])
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "phalanx.supervise", "--template", *needs.imports],
                env={**env, TAG_VARIABLE: BLANK_TAG},
                cwd="/",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return StudyTemplate(process, ours, self._clock.monotonic())


def _key(assignment: Assignment) -> Key | None:
    """What trials must have in common to share a template; None where this one can use none."""
    study = assignment.gang.trial.study if assignment.gang.trial is not None else None
    needs = WarmNeeds.of(assignment)
    if study is None or needs is None or needs.is_built:
        return None
    if not same_python(needs.python, sys.executable):
        return None
    return study, frozenset(needs.sensitive.items()), needs.imports


def _is_readable(channel: Channel, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
