"""One step of polling: ask the executor for the state of supervisors that should be alive.

Slots are freed only when the executor confirms that a supervisor is dead. The exit record that a
supervisor wrote but never reported is applied first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from phalanx.core.jobs.events import JobEvent, LaunchFailed, NodeLost, NodeReleased
from phalanx.core.jobs.model import Job, JobState, NodePhase
from phalanx.core.reasons import OUTSIDE_CAUSES, Cause
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.services.caches.scheduler_cache import SchedulerCache
from phalanx.services.lifecycle.commit import Note, commit_many, isolate_bugs
from phalanx.services.lifecycle.leftover_logs import collect_logs
from phalanx.services.lifecycle.provenance.images import store_images
from phalanx.services.lifecycle.reports import Inbox, ended_event, read_report
from phalanx.services.platform import Platform
from phalanx.store import jobs, supervisors
from phalanx.store.database import Tx
from phalanx.store.supervisors import SupervisorRow

# Causes that say why a supervisor did not start; one that has checked in was lost otherwise.
_OF_STARTS = OUTSIDE_CAUSES | {Cause.START_FAILED}


@dataclass(frozen=True, slots=True)
class PolledSupervisors:
    """Supervisors to poll. `leaving`: some (`announced`) reported that they leave: poll again soon."""

    refs: tuple[SupervisorRef, ...]
    leaving: bool
    announced: frozenset[SupervisorRef] = frozenset()


def poll_step(platform: Platform, now: int) -> PolledSupervisors:
    """Poll all supervisors and store confirmed deaths. Raises ExecutorUnavailable."""
    polled = platform.store.view(lambda tx: supervisors_to_poll(tx, platform.scheduler_cache))
    if not polled.refs:
        # The call also lets the executor prepare for the next job.
        platform.executor.poll(())
        return polled
    return _ask(platform, polled, now)


def poll_changed_step(platform: Platform, pools: Collection[str], now: int) -> None:
    """`poll_step` for the supervisors of some pools, which told that something has changed."""
    polled = platform.store.view(lambda tx: supervisors_to_poll(tx, platform.scheduler_cache))
    refs = tuple(ref for ref in polled.refs if ref.pool in pools)
    if refs:
        _ask(platform, PolledSupervisors(refs, False), now)


def poll_leaving_step(platform: Platform, now: int) -> PolledSupervisors:
    """`poll_step` for supervisors that are expected to leave: polled often, however many others run."""
    polled = platform.store.view(
        lambda tx: supervisors_to_poll(tx, platform.scheduler_cache, _is_leaving)
    )
    return _ask(platform, polled, now) if polled.refs else polled


def _ask(platform: Platform, polled: PolledSupervisors, now: int) -> PolledSupervisors:
    found = platform.executor.poll(polled.refs)
    store_images(platform, found, now)
    gone = [status for status in found if not status.alive]
    if not gone:
        return polled
    for status in gone:
        collect_logs(platform, status, now)
    _store_gone(platform, gone, now)
    away = {status.ref for status in gone}
    left = tuple(ref for ref in polled.refs if ref not in away)
    return PolledSupervisors(left, any(ref in polled.announced for ref in left), polled.announced)


def _is_leaving(job: Job, announced: set[int]) -> bool:
    """Whether the job's supervisors were asked to leave, are done, or reported that they leave."""
    done = job.attempt is not None and job.attempt.finished
    return done or job.state is JobState.STOPPING or job.num in announced


def _store_gone(platform: Platform, gone: Sequence[SupervisorStatus], now: int) -> None:
    """Store confirmed deaths of all jobs in one transaction. Raises a Bug after the other jobs are done."""

    def store(some: Sequence[int]) -> None:
        few = [status for status in gone if status.ref.job in some]
        platform.store.transact(lambda tx: _apply_gone(tx, platform.scheduler_cache, few, now))

    isolate_bugs(list(dict.fromkeys(status.ref.job for status in gone)), store)


def supervisors_to_poll(
    tx: Tx,
    scheduler_cache: SchedulerCache,
    wanted: Callable[[Job, set[int]], bool] = lambda job, announced: True,
) -> PolledSupervisors:
    """Every supervisor of the wanted jobs that was launched and is not confirmed gone."""
    announced = supervisors.released(tx)
    leaving_jobs = {job for job, _, _ in announced}
    live_jobs = [one.job for one in scheduler_cache.rows.holding(tx)]
    live = [(job.num, job.attempt.num) for job in live_jobs if job.attempt is not None]
    holding = [job for job in live_jobs if wanted(job, leaving_jobs)]
    launched = scheduler_cache.rows.launched(tx, live)
    refs = [
        SupervisorRef(job.num, job.attempt.num, rank, job.attempt.placement.pool)
        for job in holding
        if job.attempt is not None and (job.num, job.attempt.num) in launched
        for rank, node in enumerate(job.attempt.nodes)
        if node.phase is not NodePhase.RELEASED
    ]
    gone_soon = frozenset(ref for ref in refs if (ref.job, ref.attempt, ref.node_rank) in announced)
    return PolledSupervisors(tuple(refs), bool(gone_soon), gone_soon)


def _apply_gone(
    tx: Tx, scheduler_cache: SchedulerCache, gone: Sequence[SupervisorStatus], now: int
) -> None:
    """Apply the exit records of dead supervisors, then their deaths."""
    refs = [status.ref for status in gone]
    # Read before anything is written: a later read would cache uncommitted state.
    known = {one.job.num: one for one in scheduler_cache.rows.holding(tx)}
    found = supervisors.of_attempts(tx, [(ref.job, ref.attempt) for ref in refs])
    rows = {(row.job, row.attempt, row.node_rank): row for row in found}
    ended: dict[int, list[JobEvent | Note]] = {}
    for status in gone:
        ref = status.ref
        row = rows.get((ref.job, ref.attempt, ref.node_rank))
        if status.exit is not None and status.exit.ended is not None:
            offset = 0 if row is None or row.clock_offset_us is None else row.clock_offset_us
            inbox = Inbox(tx, ref.job, ref.attempt, ref.node_rank, now, offset)
            for result in status.exit.results:
                read_report(inbox, result)
            inbox.flush()
            last = ended_event(status.exit.ended, ref.attempt, ref.node_rank, offset)
            ended.setdefault(ref.job, []).extend([*inbox.events, last])
    commit_many(tx, list(ended.items()), now, "executor")
    known |= {one.job.num: one for one in jobs.load_many(tx, list(ended))}
    left: dict[int, list[JobEvent]] = {}
    # A cause that the executor knows says more than the loss of another node that follows from it.
    for status in sorted(gone, key=lambda one: one.cause is None):
        ref = status.ref
        if ref.job not in known:
            continue
        before = left.setdefault(ref.job, [])
        # The first lost node ends the attempt; for the others only the release remains.
        event = _gone(known[ref.job].job, status, rows.get((ref.job, ref.attempt, ref.node_rank)))
        if not isinstance(event, NodeReleased) and any(
            not isinstance(one, NodeReleased) for one in before
        ):
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
    starting = attempt is not None and attempt.nodes[ref.node_rank].phase is NodePhase.LAUNCHING
    if status.cause is not None and starting:
        return LaunchFailed(ref.attempt, ref.node_rank, message, status.cause)
    cause = status.cause
    if cause is None or cause in _OF_STARTS:
        cause = Cause.NODE_LOST
    step = None
    if row is not None and attempt is not None and row.generation == attempt.generation:
        step = row.step
    return NodeLost(ref.attempt, ref.node_rank, message, step, cause)
