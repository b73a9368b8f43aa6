"""Collectives of a gang that hangs: which rank has not joined one, and which called another one.

Each rank numbers the collectives of each process group. Of a gang that hangs, the ranks that wait have
begun one more than a rank that does not come; ranks that began different ones with the same number wait for
ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ASK_SUFFIX = ".ask"
"""Suffix of the pipe beside a rank's report file: a byte in it asks for the rank's collectives."""
ANSWER_SUFFIX = ".collectives"
"""Suffix of the file with the answer."""
MOST_GROUPS = 16
"""Largest number of process groups in one answer."""
# Every rank passes the same size to these; for others the sizes may differ.
_SAME_SIZES = frozenset({"all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter"})
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class LastCollective:
    """The newest collective of one rank in one process group."""

    group: str
    number: int
    operation: str
    sizes: str = ""
    done: bool = False

    def __str__(self) -> str:
        return f"{self.operation} number {self.number}"

    def matches(self, other: LastCollective) -> bool:
        """Whether both can be the same collective."""
        if self.operation != other.operation:
            return False
        return self.operation not in _SAME_SIZES or self.sizes == other.sizes


@dataclass(frozen=True, slots=True)
class CollectiveFinding:
    """What the collectives tell: the ranks at fault, and a sentence. `ranks` is empty where it is a tie."""

    ranks: tuple[int, ...]
    said: str
    mismatch: bool


def compare(found: Mapping[int, Sequence[LastCollective]]) -> CollectiveFinding | None:
    """Compare the newest collectives of all ranks; None where they tell nothing.

    Ranks without an answer are left out: nothing is known about them.
    """
    groups = {one.group: None for rows in found.values() for one in rows}
    by_group = [
        {rank: one for rank, rows in found.items() for one in rows if one.group == group}
        for group in groups
    ]
    pending = [rows for rows in by_group if any(not one.done for one in rows.values())]
    for rows in pending:
        if (mismatch := _mismatch(rows)) is not None:
            return mismatch
    for rows in pending:
        if (behind := _behind(rows)) is not None:
            return behind
    return None


def _mismatch(rows: Mapping[int, LastCollective]) -> CollectiveFinding | None:
    """Ranks that wait in different collectives with the same number."""
    waiting = {rank: one for rank, one in rows.items() if not one.done}
    highest = max((one.number for one in waiting.values()), default=0)
    same = {rank: one for rank, one in waiting.items() if one.number == highest}
    kinds: list[tuple[LastCollective, list[int]]] = []
    for rank, one in sorted(same.items()):
        for first, ranks in kinds:
            if first.matches(one):
                ranks.append(rank)
                break
        else:
            kinds.append((one, [rank]))
    if len(kinds) < 2:
        return None
    kinds.sort(key=lambda kind: len(kind[1]), reverse=True)
    sizes = Counter(len(ranks) for _, ranks in kinds)
    most = len(kinds[0][1])
    odd = () if sizes[most] > 1 else tuple(sorted(rank for _, ranks in kinds[1:] for rank in ranks))
    parts = [f"{_ranks(ranks)} called {_described(one)}" for one, ranks in kinds[:_SHOWN]]
    said = (
        f"the ranks called different collectives as number {highest} of group {kinds[0][0].group}: "
    )
    return CollectiveFinding(odd, said + ", ".join(parts), mismatch=True)


def _behind(rows: Mapping[int, LastCollective]) -> CollectiveFinding | None:
    """Ranks that have not begun the collective in which others wait."""
    newest = max((one for one in rows.values() if not one.done), key=lambda one: one.number)
    late = tuple(sorted(rank for rank, one in rows.items() if one.number < newest.number))
    if not late or len(late) == len(rows):
        return None
    last = rows[late[0]]
    waits = " and waits there" if not last.done else ""
    said = (
        f"{_ranks(late)} did not join {newest} of group {newest.group}:"
        f" the last one of rank {late[0]} is {last}{waits}"
    )
    return CollectiveFinding(late, said, mismatch=False)


def _described(one: LastCollective) -> str:
    return f"{one.operation} {one.sizes}".rstrip()


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:_SHOWN])) + (" …" if len(ranks) > _SHOWN else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
