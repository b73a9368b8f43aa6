"""The throttle of an array: an element that ends gives its turn to the next one that waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from phalanx.core.jobs.events import JobEvent, TurnCame
from phalanx.core.jobs.model import Job
from phalanx.services.workflow.dependencies import Batch
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts
from phalanx.store.workflow import arrays as rows


def register(tx: Tx, fresh: Iterable[tuple[Job, JobFacts]]) -> None:
    """Store which new elements wait for their turn."""
    waiting = [(facts.array, job.num) for job, facts in fresh if job.waits_turn]
    rows.add(tx, [(array, num) for array, num in waiting if array is not None])


def pass_turns(tx: Tx, changes: Iterable[tuple[Job, Job, JobFacts]]) -> Batch:
    """Events for the elements that follow those that have just ended; (before, after, facts) each."""
    free, gone = defaultdict[int, int](int), defaultdict[int, list[int]](list)
    for before, after, facts in changes:
        if facts.array is None or before.is_terminal or not after.is_terminal:
            continue
        if before.waits_turn:
            gone[facts.array].append(before.num)
        else:
            free[facts.array] += 1
    for array, nums in sorted(gone.items()):
        rows.remove(tx, array, nums)
    told: list[JobEvent] = [TurnCame()]
    return [
        (num, told) for array, count in sorted(free.items()) for num in rows.take(tx, array, count)
    ]
