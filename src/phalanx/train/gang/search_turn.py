"""The collective side of a search for checkpoints: rank 0 looks and waits, all ranks hear what it found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from phalanx.checkpoint.search import StartSearch
from phalanx.core.training.checkpoints import Manifest
from phalanx.core.training.resumption import StartAction, StartWait
from phalanx.errors import CheckpointMissing, PlatformError
from phalanx.kit.clock import Clock
from phalanx.train.gang.context import RankInfo

# What rank 0 sends, before a name: an older candidate is left, or none; it looks again; it gives up; the
# ranks were asked to stop.
_FURTHER, _LAST, _AGAIN, _MISSING, _STOPPED = "+", ".", "~", "!", "x"
# Other ranks wait for rank 0 in a collective, which has a time limit.
_SAID_EVERY_S = 15.0

Suits = Callable[[Manifest], bool]
Pause = Callable[[float], object]
"""Waits for so many seconds; returns True where the process was asked to stop."""


class Spread(Protocol):
    """The collective that is used; see `ControlChannel`."""

    def spread(self, text: str) -> str:
        """Return rank 0's text."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint to try; `is_last`: no older one is left."""

    name: str
    is_last: bool


class SearchTurn:
    """Finds the next checkpoint to try on all ranks. Every rank makes the same calls."""

    def __init__(
        self,
        search: StartSearch,
        is_main: bool,
        channel: Spread,
        clock: Clock,
        pause: Pause = time.sleep,
    ) -> None:
        """On other ranks than rank 0 `search` is not used."""
        self._search, self._is_main, self._channel = search, is_main, channel
        self._clock, self._pause = clock, pause

    def next(self) -> Candidate | None:
        """Return the first checkpoint that is left; None: the run begins at step 0.

        Raises CheckpointMissing; on rank 0 also PermissionDenied, NotSupported. Where the job is stopped
        during a wait, it raises SystemExit: there is nothing to save.
        """
        while (told := self._channel.spread(self._told() if self._is_main else "")) == _AGAIN:
            pass
        if told == _STOPPED:
            raise SystemExit(0)
        if told[:1] == _MISSING:
            raise CheckpointMissing(told[1:])
        return Candidate(told[1:], told[0] == _LAST) if told else None

    def _told(self) -> str:
        try:
            return self._found()
        except CheckpointMissing as error:
            return f"{_MISSING}{error}"
        except PlatformError as error:
            self._channel.spread(f"{_MISSING}{error.message}")
            raise

    def _found(self) -> str:
        deadline_s = self._clock.monotonic() + _SAID_EVERY_S
        while True:
            now_s = self._clock.monotonic()
            decision = self._search.next(now_s)
            if decision.action is StartAction.BEGIN:
                return ""
            if decision.action is StartAction.RESUME:
                how = _LAST if len(decision.order) == 1 else _FURTHER
                return f"{how}{decision.order[0].name}"
            if now_s >= deadline_s:
                return _AGAIN
            if self._pause(self._search.pause_s):
                return _STOPPED


def wait_for(info: RankInfo, place: str, suits: Suits = lambda _manifest: True) -> StartWait:
    """Return the rules by which this rank's start waits for checkpoints."""
    wanted = None if info.resume_path is None else info.resume_path.name
    wait_s, uid = info.checkpoint.wait_s, own_uid(info)
    return StartWait(place, wanted, wait_s, info.beginning, suits, uid)


def own_uid(info: RankInfo) -> str | None:
    """Return the unique name of the job that checkpoints have to be of; None: of any job."""
    return None if info.checkpoint.continues else info.job_uid
