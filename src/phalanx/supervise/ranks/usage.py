"""What the processes of each rank use, from `/proc`: processor time, moved bytes, and stopped ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

PERIOD_S = 3.0
"""Interval of the samples."""
ACTIVE_CPUS = 0.05
"""A rank that uses more of one processor than this computes."""
ACTIVE_BYTES_PER_S = 64 << 10
"""A rank that reads and writes more than this moves data."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOPPED = b"T"


@dataclass(slots=True)
class TreeUsage:
    """The sums over a process and all below it, and whether a signal has stopped one of them."""

    cpu_s: float = 0.0
    moved_bytes: int = 0
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    cpu_s: float
    stopped: bool


def usage_of(roots: Mapping[int, int]) -> dict[int, TreeUsage]:
    """The usage below each process: `roots` are process numbers by rank. Dead ones count as nothing."""
    children: dict[int, list[int]] = {}
    seen: dict[int, _Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := _read(int(name))) is not None:
            seen[int(name)] = one
            children.setdefault(one.parent, []).append(int(name))
    found: dict[int, TreeUsage] = {}
    for rank, root in roots.items():
        usage, todo = TreeUsage(), [root]
        while todo:
            pid = todo.pop()
            todo.extend(children.get(pid, ()))
            if (process := seen.get(pid)) is not None:
                usage.cpu_s += process.cpu_s
                usage.stopped = usage.stopped or process.stopped
                usage.moved_bytes += _moved(pid)
        found[rank] = usage
    return found


class UsageMeter:
    """Compares samples: which ranks were active since the one before."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._before: dict[int, tuple[TreeUsage, int]] = {}

    def is_due(self, now_s: float) -> bool:
        """Whether the next sample is due."""
        return self._at is None or now_s - self._at >= PERIOD_S

    def sample(
        self, now_s: float, roots: Mapping[int, int], printed: Mapping[int, int]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """The ranks that were active, and those that are stopped; `printed` are bytes of output by rank.

        The end of a worker lowers the sums of its rank, which counts as activity as well.
        """
        passed_s = PERIOD_S if self._at is None else max(1e-3, now_s - self._at)
        self._at = now_s
        active: set[int] = set()
        usages = usage_of(roots)
        for rank, usage in usages.items():
            before, output = self._before.get(rank, (TreeUsage(), 0))
            cpus = abs(usage.cpu_s - before.cpu_s) / passed_s
            moved = abs(usage.moved_bytes - before.moved_bytes) / passed_s
            if cpus >= ACTIVE_CPUS or moved >= ACTIVE_BYTES_PER_S or printed[rank] != output:
                active.add(rank)
        self._before = {rank: (usage, printed[rank]) for rank, usage in usages.items()}
        return frozenset(active), frozenset(rank for rank, one in usages.items() if one.stopped)


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    return _Process(int(fields[1]), ticks / _TICKS_PER_S, fields[0] == _STOPPED)


def _moved(pid: int) -> int:
    """Bytes that a process has read and written, through sockets too."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", "rb") as file:
        rows = file.read().split()
        return int(rows[1]) + int(rows[3])
    return 0
