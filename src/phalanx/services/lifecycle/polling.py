"""One step of polling: ask the executor for the state of supervisors that should be alive.

Slots are freed only when the executor confirms that a supervisor is dead. The exit record that a
supervisor wrote but never reported is applied first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import Node, NodeShare
from phalanx.core.jobs.events import JobEvent, LaunchFailed, NodeLost, NodeReleased
from phalanx.core.jobs.model import Attempt, Job, JobState, NodePhase
from phalanx.core.reasons import OUTSIDE_CAUSES, Cause
from phalanx.errors import ExecutorUnavailable
from phalanx.executors.protocol import NodeReplacer, SupervisorRef, SupervisorStatus
from phalanx.services.caches.scheduler_cache import SchedulerCache
from phalanx.services.lifecycle.commit import Note, commit_many, isolate_bugs
from phalanx.services.lifecycle.leftover_logs import collect_logs
from phalanx.services.lifecycle.provenance.images import store_images
from phalanx.services.lifecycle.reports import Inbox, ended_event, read_report
from phalanx.services.platform import Platform
from phalanx.store import jobs, outbox, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
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
    nodes = _nodes_for_replacements(platform, gone)

    def store(some: Sequence[int]) -> None:
        few = [status for status in gone if status.ref.job in some]
        platform.store.transact(lambda tx: _apply_gone(platform, tx, few, now, nodes))

    isolate_bugs(list(dict.fromkeys(status.ref.job for status in gone)), store)


def _nodes_for_replacements(
    platform: Platform, gone: Sequence[SupervisorStatus]
) -> Mapping[str, Node]:
    """The nodes on which lost supervisors may be replaced, by name: all of pools where that is possible."""
    executor: object = platform.executor
    if not isinstance(executor, NodeReplacer):
        return {}
    pools = {one for one in {status.ref.pool for status in gone} if executor.may_replace(one)}
    try:
        return {
            node.id: node for node in (platform.cluster() if pools else ()) if node.pool in pools
        }
    except ExecutorUnavailable:
        return {}


def _replacement(share: NodeShare, nodes: Mapping[str, Node]) -> NodeShare | None:
    """The same slots for another supervisor; None where their node takes no work any more."""
    node = nodes.get(share.node)
    if node is None or node.closed or node.future or node.leaves_at is not None:
        return None
    closed = {slot for slot, _ in node.closed_slots}
    usable = all(slot < node.num_slots and slot not in closed for slot in share.slots)
    return replace(share, address=node.address) if usable else None


def supervisors_to_poll(
    tx: Tx,
    scheduler_cache: SchedulerCache,
    wanted: Callable[[Job, set[int]], bool] = lambda job, announced: True,
) -> PolledSupervisors:
    """Every supervisor of the wanted jobs that was launched and is not confirmed gone."""
    announced = supervisors.released(tx)
    live_jobs = [one.job for one in scheduler_cache.rows.holding(tx)]
    leaving_jobs = {job.num for job in live_jobs if not announced.isdisjoint(_keys(job))}
    live = [(job.num, job.attempt.num) for job in live_jobs if job.attempt is not None]
    holding = [job for job in live_jobs if wanted(job, leaving_jobs)]
    launched = scheduler_cache.rows.launched(tx, live)
    refs = [
        ref
        for job in holding
        if job.attempt is not None and (job.num, job.attempt.num) in launched
        for ref in _refs(job.num, job.attempt)
    ]
    # A replacement that is not started yet is no dead one.
    fresh = {(ref.job, ref.attempt) for ref in refs if ref.incarnation}
    starting = outbox.launching(tx, list(fresh))
    if starting:
        refs = [r for r in refs if not (r.incarnation and (r.job, r.attempt) in starting)]
    gone_soon = frozenset(ref for ref in refs if _key(ref) in announced)
    return PolledSupervisors(tuple(refs), bool(gone_soon), gone_soon)


def _keys(job: Job) -> list[supervisors.Key]:
    """The keys of the live supervisors of a job."""
    attempt = job.attempt
    if attempt is None:
        return []
    return [(job.num, attempt.num, n, one.incarnation) for n, one in enumerate(attempt.nodes)]


def _key(ref: SupervisorRef) -> supervisors.Key:
    return ref.job, ref.attempt, ref.node_rank, ref.incarnation


def _refs(num: int, attempt: Attempt) -> list[SupervisorRef]:
    """The supervisors of an attempt that are not confirmed gone."""
    pool = attempt.placement.pool
    return [
        SupervisorRef(num, attempt.num, rank, pool, node.incarnation)
        for rank, node in enumerate(attempt.nodes)
        if node.phase is not NodePhase.RELEASED
    ]


def _apply_gone(
    platform: Platform,
    tx: Tx,
    gone: Sequence[SupervisorStatus],
    now: int,
    nodes: Mapping[str, Node],
) -> None:
    """Apply the exit records of dead supervisors, then their deaths."""
    # Read before anything is written: a later read would cache uncommitted state.
    known = {one.job.num: one for one in platform.scheduler_cache.rows.holding(tx)}
    gone = [one for one in gone if not _was_replaced(known.get(one.ref.job), one.ref)]
    refs = [status.ref for status in gone]
    found = supervisors.of_attempts(tx, [(ref.job, ref.attempt) for ref in refs])
    rows = {row.key: row for row in found}
    ended: dict[int, list[JobEvent | Note]] = {}
    for status in gone:
        ref = status.ref
        row = rows.get(_key(ref))
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
        row = rows.get(_key(ref))
        event = _gone(known[ref.job].job, status, row, nodes)
        # A lost node that is not replaced ends the attempt; for the others only the release remains.
        if not isinstance(event, NodeReleased) and any(_ends_attempt(one) for one in before):
            event = NodeReleased(ref.attempt, ref.node_rank)
        before.append(event)
    commit_many(tx, list(left.items()), now, "executor", known=known)


def _ends_attempt(event: JobEvent) -> bool:
    if isinstance(event, NodeLost):
        return event.replacement is None
    return not isinstance(event, NodeReleased)


def _was_replaced(stored: StoredJob | None, ref: SupervisorRef) -> bool:
    """Whether another process has seen the death already, and the node rank has another supervisor."""
    attempt = None if stored is None else stored.job.attempt
    if attempt is None or attempt.num != ref.attempt:
        return False
    return attempt.nodes[ref.node_rank].incarnation != ref.incarnation


def _gone(
    job: Job, status: SupervisorStatus, row: SupervisorRow | None, nodes: Mapping[str, Node]
) -> JobEvent:
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
    share = None
    if attempt is not None and cause is Cause.NODE_LOST:
        share = _replacement(attempt.placement.shares[ref.node_rank], nodes)
    return NodeLost(ref.attempt, ref.node_rank, message, step, cause, share)
