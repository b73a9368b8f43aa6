"""One step of the scheduler: snapshot, plan, apply whole gangs after checking them again."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.jobs.events import AttemptPlaced
from phalanx.core.jobs.model import HOLDING, JobState
from phalanx.core.placement import Node, Placement
from phalanx.core.scheduling.planner import Held, Plan, Snapshot, Start, Waiting, plan
from phalanx.services.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, and when to look again without being woken."""

    started: tuple[int, ...]
    refused: tuple[int, ...]
    wake_at: int | None


def scheduling_step(platform: Platform, now: int) -> Step:
    """Start what fits. Raises ExecutorUnavailable when the nodes are not known."""
    nodes = tuple(platform.executor.inventory())
    snapshot = platform.store.view(lambda tx: snapshot_of(tx, nodes))
    if not snapshot.waiting:
        return Step((), (), None)
    decided = plan(snapshot, now)
    return apply(platform, decided, nodes, now)


def snapshot_of(tx: Tx, nodes: tuple[Node, ...]) -> Snapshot:
    """The planner's picture of the queue and of what is held."""
    waiting, holding = jobs.waiting_and_holding(tx)
    return Snapshot(nodes, _held(holding), tuple(_waiting(stored) for stored in waiting))


def apply(platform: Platform, decided: Plan, nodes: tuple[Node, ...], now: int) -> Step:
    """Apply a plan gang by gang; one that no longer fits the live state is refused whole."""
    known = {node.id: node.num_slots for node in nodes}

    def work(tx: Tx) -> tuple[list[int], list[int]]:
        started: list[int] = []
        refused: list[int] = []
        if decided.starts:
            taken = _taken(jobs.in_states(tx, HOLDING))
            for start in decided.starts:
                done = _start(tx, start, taken, known, now)
                (started if done else refused).append(start.job)
        _say_why(tx, decided)
        return started, refused

    started, refused = platform.store.transact(work)
    return Step(tuple(started), tuple(refused), now if refused else decided.wake_at)


def _start(
    tx: Tx, start: Start, taken: set[tuple[str, int]], known: dict[str, int], now: int
) -> bool:
    stored = jobs.find(tx, start.job)
    if stored is None or stored.job.state is not JobState.QUEUED:
        return False
    wanted = _slots(start.placement)
    if len(set(wanted)) != len(wanted) or taken & set(wanted):
        return False
    if any(slot >= known.get(node, 0) for node, slot in wanted):
        return False
    placed = AttemptPlaced(stored.job.attempts + 1, start.placement)
    commit_events(tx, start.job, [placed], now, "scheduler")
    taken.update(wanted)
    return True


def _say_why(tx: Tx, decided: Plan) -> None:
    for num, reason in decided.stays:
        stored = jobs.find(tx, num)
        if stored is not None and stored.stays != reason:
            jobs.set_stays(tx, num, reason)


def _slots(placement: Placement) -> list[tuple[str, int]]:
    return [(share.node, slot) for share in placement.shares for slot in share.slots]


def _taken(holding: list[StoredJob]) -> set[tuple[str, int]]:
    return {slot for held in _held(holding) for slot in _slots(held.placement)}


def _held(holding: list[StoredJob]) -> tuple[Held, ...]:
    return tuple(
        Held(stored.job.num, stored.job.attempt.placement)
        for stored in holding
        if stored.job.attempt is not None
    )


def _waiting(stored: StoredJob) -> Waiting:
    job, facts = stored.job, stored.facts
    return Waiting(
        num=job.num,
        shape=job.terms.shape,
        priority=facts.priority,
        submitted_at=job.submitted_at,
        not_before=job.not_before,
        pools=facts.pools,
        cpus_per_node=facts.cpus_per_node,
    )
