"""Collection of the stacks and the newest collectives of ranks, with a few seconds for the answers.

The signal for stacks is only sent to a process that has installed a handler and opened its file for them:
any other would die of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.contract import records
from phalanx.core.gang.activities import STOPPED_BY_SIGNAL
from phalanx.core.gang.collectives import ANSWER_SUFFIX, ASK_SUFFIX, MOST_GROUPS
from phalanx.core.gang.stacks import shortened
from phalanx.schemas.wire.supervision import CollectiveState, RankStacks
from phalanx.supervise.eventloop import EventLoop
from phalanx.supervise.ranks.rank import LocalRank

SIGNAL = signal.SIGUSR1
WAIT_S = 3.0
_LOOK_S = 0.05
_MOST_ANSWER_BYTES = 64 << 10
_STATES = {
    "T": STOPPED_BY_SIGNAL,
    "D": "the process waits for a device and cannot be interrupted",
    "Z": "the process is dead",
}


@dataclass(slots=True)
class _Asked:
    """A rank that received the signal."""

    rank: LocalRank
    pid: int
    start: int
    size: int = 0
    whole: bool = False
    wants_collectives: bool = False

    def look(self) -> None:
        """Look at the file: an answer is complete when it no longer grows."""
        size = _size(self.rank.stacks_file)
        answered = not self.wants_collectives or self._answer_file.exists()
        self.whole = size == self.size and size > self.start and answered
        self.size = size

    @property
    def _answer_file(self) -> Path:
        return self.rank.report_file.with_suffix(ANSWER_SUFFIX)

    def ask(self) -> None:
        """Send the signal, and ask for the collectives. Raises ProcessLookupError."""
        with contextlib.suppress(OSError):
            self._answer_file.unlink(missing_ok=True)
            # Without a reader at the other end this raises at once.
            ask = self.rank.report_file.with_suffix(ASK_SUFFIX)
            pipe = os.open(ask, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.closing(os.fdopen(pipe, "wb", buffering=0)) as file:
                file.write(b"?")
                self.wants_collectives = True
        os.kill(self.pid, SIGNAL)

    def _collectives(self) -> list[CollectiveState]:
        """What the rank wrote: a user's process, so that anything else than expected is passed over."""
        if not self.wants_collectives:
            return []
        try:
            with open(self._answer_file, "rb") as file:
                rows = json.loads(file.read(_MOST_ANSWER_BYTES))
            return [CollectiveState.model_validate(one) for one in rows[:MOST_GROUPS]]
        except (OSError, ValueError, TypeError):
            return []

    def answer(self) -> RankStacks:
        """The stacks, or the reason why there are none."""
        text = ""
        with contextlib.suppress(OSError), open(self.rank.stacks_file, "rb") as file:
            file.seek(self.start)
            text = file.read().decode("utf-8", "replace")
        if text:
            return RankStacks(
                rank=self.rank.rank, text=shortened(text), collectives=self._collectives()
            )
        why = _STATES.get(_state(self.pid), "the process has written no stacks")
        return RankStacks(rank=self.rank.rank, why=f"no answer within {WAIT_S:g} s: {why}")


class StackCollection:
    """One request to several ranks; calls `done` once, with the answers by rank."""

    def __init__(
        self, ranks: Iterable[LocalRank], loop: EventLoop, done: Callable[[list[RankStacks]], None]
    ) -> None:
        self._loop, self._done = loop, done
        self._asked: list[_Asked] = []
        self._answers: list[RankStacks] = []
        self._looks_left = round(WAIT_S / _LOOK_S)
        for rank in ranks:
            self._ask(rank)
        self._look()

    def _ask(self, rank: LocalRank) -> None:
        if not rank.running:
            self._answers.append(RankStacks(rank=rank.rank, why="the rank is not running"))
            return
        pid = _listener(rank)
        if pid is None:
            why = "the script does not use phalanx.train, or has not called init yet"
            if rank.pid is not None and _state(rank.pid) == "T":
                why = STOPPED_BY_SIGNAL
            self._answers.append(RankStacks(rank=rank.rank, why=why))
            return
        asked = _Asked(rank, pid, _size(rank.stacks_file))
        with contextlib.suppress(ProcessLookupError):
            asked.ask()
            self._asked.append(asked)

    def _look(self) -> None:
        for one in self._asked:
            one.look()
        self._looks_left -= 1
        if self._looks_left > 0 and not all(one.whole for one in self._asked):
            self._loop.call_later(_LOOK_S, self._look)
            return
        answers = [*self._answers, *(one.answer() for one in self._asked)]
        self._done(sorted(answers, key=lambda one: one.rank))


def _listener(rank: LocalRank) -> int | None:
    """The process that answers for a rank; None where none would.

    It is the writer of its report file, or the rank itself where it was forked from the warm process.
    """
    if not rank.stacks_file.exists():
        return None
    try:
        if rank.report_file.exists():
            with open(rank.report_file, "rb") as file:
                head = file.read(records.HEADER_BYTES)
            pid = records.writer_pid(head)
        elif rank.warm and rank.pid is not None:
            pid = rank.pid
        else:
            return None
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    caught = next((row for row in status.splitlines() if row.startswith("SigCgt:")), "SigCgt:\t0")
    return pid if int(caught.split()[1], 16) >> (SIGNAL - 1) & 1 else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"
