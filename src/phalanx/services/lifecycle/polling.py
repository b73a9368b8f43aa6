"""One step of polling: what the executor knows of supervisors that should be there.

Only its word that a supervisor is dead gives slots to others. What the supervisor wrote down before its
end, but never reported, is replayed first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.core.jobs.events import JobEvent, NodeLost, NodeReleased
from phalanx.core.jobs.model import Job, JobState, NodePhase
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.services.lifecycle.commit import commit_many, each_for_itself
from phalanx.services.lifecycle.reports import ended_event
from phalanx.services.planning.scheduler_cache import SchedulerCache
from phalanx.services.platform import Platform
from phalanx.store import jobs, supervisors
from phalanx.store.database import Tx
from phalanx.store.supervisors import SupervisorRow


@dataclass(frozen=True, slots=True)
class Watched:
    """Supervisors to ask for. `leaving`: some of them, `said`, said that they go, so ask again soon."""

    refs: tuple[SupervisorRef, ...]
    leaving: bool
    said: frozenset[SupervisorRef] = frozenset()


def poll_step(platform: Platform, now: int) -> Watched:
    """Ask the executor for all and store what it confirms. Raises ExecutorUnavailable."""
    watched = platform.store.view(lambda tx: watch(tx, platform.scheduler_cache))
    if not watched.refs:
        # Nobody to ask for; but the executor may get ready for the next job in the meantime.
        platform.executor.poll(())
        return watched
    return _ask(platform, watched, now)


def poll_leaving_step(platform: Platform, now: int) -> Watched:
    """`poll_step` for those who are expected to go: that is soon asked again, however many others run."""
    watched = platform.store.view(lambda tx: watch(tx, platform.scheduler_cache, _is_leaving))
    return _ask(platform, watched, now) if watched.refs else watched


def _ask(platform: Platform, watched: Watched, now: int) -> Watched:
    gone = [status for status in platform.executor.poll(watched.refs) if not status.alive]
    if not gone:
        return watched
    _store_gone(platform, gone, now)
    away = {status.ref for status in gone}
    left = tuple(ref for ref in watched.refs if ref not in away)
    return Watched(left, any(ref in watched.said for ref in left), watched.said)


def _everybody(job: Job, said: set[int]) -> bool:
    return True


def _is_leaving(job: Job, said: set[int]) -> bool:
    """Whether its supervisors were asked to go, are done, or have said that they go."""
    done = job.attempt is not None and job.attempt.finished
    return done or job.state is JobState.STOPPING or job.num in said


def _store_gone(platform: Platform, gone: Sequence[SupervisorStatus], now: int) -> None:
    """All jobs in one transaction. Raises the Bug that one of them runs into, after the others."""

    def store(some: Sequence[int]) -> None:
        few = [status for status in gone if status.ref.job in some]
        platform.store.transact(lambda tx: _note_gone(tx, platform.scheduler_cache, few, now))

    each_for_itself(list(dict.fromkeys(status.ref.job for status in gone)), store)


def watch(
    tx: Tx, scheduler_cache: SchedulerCache, wanted: Callable[[Job, set[int]], bool] = _everybody
) -> Watched:
    """Every supervisor of the wanted jobs that has been launched and is not known to be gone."""
    told = supervisors.released(tx)
    going = {job for job, _, _ in told}
    everybody = [one.job for one in scheduler_cache.holding(tx)]
    live = [(job.num, job.attempt.num) for job in everybody if job.attempt is not None]
    holding = [job for job in everybody if wanted(job, going)]
    launched = scheduler_cache.launched(tx, live)
    refs = [
        SupervisorRef(job.num, job.attempt.num, rank, job.attempt.placement.pool)
        for job in holding
        if job.attempt is not None and (job.num, job.attempt.num) in launched
        for rank, node in enumerate(job.attempt.nodes)
        if node.phase is not NodePhase.RELEASED
    ]
    said = frozenset(ref for ref in refs if (ref.job, ref.attempt, ref.node_rank) in told)
    return Watched(tuple(refs), bool(said), said)


def _note_gone(
    tx: Tx, scheduler_cache: SchedulerCache, gone: Sequence[SupervisorStatus], now: int
) -> None:
    """First what the dead wrote down before their end, then that they are gone."""
    refs = [status.ref for status in gone]
    # Before anything is written: what is read behind that may never be committed.
    known = {one.job.num: one for one in scheduler_cache.holding(tx)}
    found = supervisors.of_attempts(tx, [(ref.job, ref.attempt) for ref in refs])
    rows = {(row.job, row.attempt, row.node_rank): row for row in found}
    ended: dict[int, list[JobEvent]] = {}
    for status in gone:
        ref = status.ref
        row = rows.get((ref.job, ref.attempt, ref.node_rank))
        if status.exit is not None and status.exit.ended is not None:
            offset = 0 if row is None or row.clock_offset_us is None else row.clock_offset_us
            last = ended_event(status.exit.ended, ref.attempt, ref.node_rank, offset)
            ended.setdefault(ref.job, []).append(last)
    commit_many(tx, list(ended.items()), now, "executor")
    known |= {one.job.num: one for one in jobs.load_many(tx, list(ended))}
    left: dict[int, list[JobEvent]] = {}
    for status in gone:
        ref = status.ref
        if ref.job not in known:
            continue
        before = left.setdefault(ref.job, [])
        # The first node that is lost ends the attempt; the others then only leave.
        event = _gone(known[ref.job].job, status, rows.get((ref.job, ref.attempt, ref.node_rank)))
        if isinstance(event, NodeLost) and any(isinstance(one, NodeLost) for one in before):
            event = NodeReleased(ref.attempt, ref.node_rank)
        before.append(event)
    commit_many(tx, list(left.items()), now, "executor", known=known)


def _gone(job: Job, status: SupervisorStatus, row: SupervisorRow | None) -> JobEvent:
    ref = status.ref
    attempt = job.attempt
    over = attempt is None or attempt.finished or job.state is JobState.STOPPING
    if over or (row is not None and row.released_at is not None):
        return NodeReleased(ref.attempt, ref.node_rank)
    message = status.message or f"the supervisor of node {ref.node_rank} died"
    step = None
    if row is not None and attempt is not None and row.generation == attempt.generation:
        step = row.step
    return NodeLost(ref.attempt, ref.node_rank, message, step)
