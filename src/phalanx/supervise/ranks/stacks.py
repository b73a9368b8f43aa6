"""Collection of the Python stacks of ranks: a signal to each, and a few seconds for the answers.

The signal is only sent to a process that has installed a handler and opened its file for stacks: any
other would die of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.contract import records
from phalanx.core.gang.stacks import shortened
from phalanx.schemas.wire.supervision import RankStacks
from phalanx.supervise.eventloop import EventLoop
from phalanx.supervise.ranks.rank import LocalRank

SIGNAL = signal.SIGUSR1
WAIT_S = 3.0
_LOOK_S = 0.05
_STATES = {
    "T": "the process is stopped by a signal",
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

    def look(self) -> None:
        """Look at the file: an answer is complete when it no longer grows."""
        size = _size(self.rank.stacks_file)
        self.whole = size == self.size and size > self.start
        self.size = size

    def answer(self) -> RankStacks:
        """The stacks, or the reason why there are none."""
        text = ""
        with contextlib.suppress(OSError), open(self.rank.stacks_file, "rb") as file:
            file.seek(self.start)
            text = file.read().decode("utf-8", "replace")
        if text:
            return RankStacks(rank=self.rank.rank, text=shortened(text))
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
            self._answers.append(RankStacks(rank=rank.rank, why=why))
            return
        asked = _Asked(rank, pid, _size(rank.stacks_file))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)
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
    """The process that answers for a rank: the writer of its report file; None where it would not."""
    if not rank.stacks_file.exists():
        return None
    try:
        with open(rank.report_file, "rb") as file:
            head = file.read(records.HEADER_BYTES)
        pid = records.writer_pid(head)
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
