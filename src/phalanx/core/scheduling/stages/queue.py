"""The queue: classes of equal jobs in order of tier, fair share, priority, guard and learned urgency."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from phalanx.core.scheduling.index.cluster_index import EquivalenceClass
from phalanx.core.scheduling.search.ledger import OVERDUE, Rank
from phalanx.core.scheduling.stages.scheduling_pass import Pass

_Entry = tuple[Rank, int, EquivalenceClass, int]


class Verdict(Enum):
    """What a job stage decides."""

    #: The job is served: the next job of its class is tried.
    SERVED = "served"
    #: No job of this class can start in this pass.
    BLOCKED = "blocked"
    #: The next stage decides.
    OPEN = "open"


@dataclass(slots=True)
class QueueHead:
    """The job that is to be served: the first of its class that is neither started nor promised nodes."""

    eq_class: EquivalenceClass
    position: int
    since: int
    num: int
    overdue: bool = False  # whether it goes before more urgent jobs of its priority
    #: Whether the budget of the pass allows a search for room that running jobs hold.
    may_search: bool = False


JobStage = Callable[[Pass, QueueHead], Verdict]


def serve(state: Pass, stages: Sequence[JobStage]) -> None:
    """Serve the classes in order of rank, each job by the stages until one of them decides."""
    heap: list[_Entry] = []
    num_overdue: dict[int, int] = {}  # blocked overdue gangs, by priority
    owners = {one.job for one in state.decisions.reservations}
    for eq_class in state.cluster.classes.values():
        _push(state, heap, eq_class, 0, owners)
    while heap:
        rank, num, eq_class, position = heapq.heappop(heap)
        if rank[:2] != state.ledger.fair_share_key(eq_class.sample):
            _push(state, heap, eq_class, position, owners)
            continue
        is_overdue = rank[3] == OVERDUE
        if is_overdue and num_overdue.get(rank[2], 0) >= state.config.num_overdue:
            rank = state.ledger.rank(eq_class, position, overdue=False)
            heapq.heappush(heap, (rank, num, eq_class, position))
            continue
        head = QueueHead(eq_class, position, eq_class.jobs[position][0], num, is_overdue)
        for stage in stages:
            verdict = stage(state, head)
            if verdict is not Verdict.OPEN:
                break
        if is_overdue and num not in state.decisions.started:
            num_overdue[rank[2]] = num_overdue.get(rank[2], 0) + 1
        if verdict is Verdict.SERVED:
            _push(state, heap, eq_class, position + 1, owners)


def _push(
    state: Pass, heap: list[_Entry], eq_class: EquivalenceClass, position: int, owners: set[int]
) -> None:
    jobs, started = eq_class.jobs, state.decisions.started
    while position < len(jobs) and (jobs[position][1] in started or jobs[position][1] in owners):
        position += 1
    if position < len(jobs):
        rank = state.ledger.rank(eq_class, position)
        heapq.heappush(heap, (rank, jobs[position][1], eq_class, position))
