"""One scheduling step: take a snapshot, plan, check the plan again and apply it.

A gang starts whole or not at all. A reservation and its evictions and shrinks are applied together
or refused together, so that no job is preempted for a start that cannot happen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from phalanx.core.cost.prices import offers_of
from phalanx.core.gang.placement import Node, Placement, with_chosen_devices
from phalanx.core.jobs.events import AttemptPlaced, JobEvent, StopRequested
from phalanx.core.jobs.model import JobState, StopGoal
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import Migration, Plan, Preemption, Reservation, Resize
from phalanx.errors import PlatformError
from phalanx.kit.text import job_label
from phalanx.services.caches.row_cache import SchedulerView
from phalanx.services.lifecycle.commit import Note, commit_events, commit_many
from phalanx.services.planning.policy import policy_now
from phalanx.services.platform import Platform
from phalanx.store import jobs, planning
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.planning import MOVE, PREEMPTION, StoredReservation

_LOG = logging.getLogger(__name__)
_US = 1_000_000
# Interval before a start that ran into a bug is tried again: its cause may have changed.
BLOCKED_US = 600 * _US
_ACTOR = "scheduler"


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step. `wake_at`: when to plan again; `planned`: False if skipped."""

    started: tuple[int, ...]
    refused: tuple[int, ...]
    wake_at: int | None
    evicted: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    planned: bool = True


def view_of(platform: Platform, now: int) -> SchedulerView:
    """The current planner input. Raises ExecutorUnavailable when the nodes are not known."""
    return _view(platform, platform.inventory(), now)


def _view(platform: Platform, real: tuple[Node, ...], now: int) -> SchedulerView:
    return platform.store.view(
        lambda tx: platform.scheduler_cache.view(tx, real, policy_now(tx, platform.policy), now)
    )


def scheduling_step(
    platform: Platform,
    now: int,
    spare_until: int = 0,
    on_planned: Callable[[], None] = lambda: None,
) -> Step:
    """Plan and apply the plan. Raises ExecutorUnavailable when the nodes are not known.

    `on_planned` is called between the two.

    Until `spare_until`, planning is skipped if all new jobs belong to equivalence classes that
    were blocked: few could start. Their starts and pending reasons wait for the next pass.
    """
    real = platform.inventory()
    with platform.store.turn():
        view = _view(platform, real, now)
        if now < spare_until and platform.scheduler_cache.only_longer_classes(view):
            return Step((), (), spare_until, planned=False)
        busy = _worth_a_plan(view)
        decided = platform.scheduler_cache.plan(view, now) if busy else Plan((), ())
        on_planned()
        return apply(platform, decided, view, now)


def _worth_a_plan(view: SchedulerView) -> bool:
    growing = any(held.max_nodes is not None for held in view.snapshot.held)
    return bool(view.snapshot.waiting or growing)


@dataclass(slots=True)
class _Work:
    """The state of one plan while a transaction applies it."""

    tx: Tx  # the write transaction
    now: int  # time of the step, µs UTC
    view: SchedulerView  # the input of the plan
    live: Mapping[int, StoredJob]  # jobs that hold slots, by number
    taken: set[tuple[str, int]]  # (node, slot) in use
    slots: Mapping[str, int]  # number of slots by node
    devices: Mapping[str, tuple[str, ...]]  # device behind each slot, of nodes with devices
    nodes: Mapping[str, Node]  # by name; empty where nothing starts
    ttl_us: int  # lifetime of a reservation
    said: Callable[[int], Reason | None]  # pending reason of a job as last written
    started: list[int] = field(default_factory=list)  # jobs placed
    refused: list[int] = field(default_factory=list)  # jobs that no longer fit
    evicted: list[int] = field(default_factory=list)  # jobs preempted
    moved: list[int] = field(default_factory=list)  # jobs migrated or resized
    struck: dict[int, str] = field(default_factory=dict)  # error by job that ran into a bug


def apply(platform: Platform, decided: Plan, view: SchedulerView, now: int) -> Step:
    """Apply a plan part by part; a part that no longer fits the live state is refused whole."""
    pending = [*decided.pending_reasons, *view.deferred.items()]
    unwritten = platform.scheduler_cache.reasons.unwritten(pending, view.versions)

    def work(tx: Tx) -> _Work:
        holding = platform.scheduler_cache.rows.holding(tx)
        starting = platform.scheduler_cache.rows.some(tx, [start.job for start in decided.starts])
        here = _Work(
            tx=tx,
            now=now,
            view=view,
            live={one.job.num: one for one in holding},
            taken={slot for one in holding for slot in _held_slots(one)},
            slots={node.id: node.num_slots for node in view.nodes},
            devices={node.id: node.devices for node in view.nodes if node.devices},
            nodes={node.id: node for node in view.nodes} if decided.starts else {},
            ttl_us=round(view.snapshot.config.reservation_ttl_s * _US),
            said=platform.scheduler_cache.reasons.said,
        )
        queued = {n: one for n, one in starting.items() if one.job.state is JobState.QUEUED}
        _start(here, decided, queued)
        _keep_reservations(here, decided)
        _cut_reservations(here, decided)
        jobs.set_pending_reasons(tx, unwritten)
        planning.put_usage(tx, view.usage)
        return here

    if not (unwritten or view.usage or view.reservations or _decides(decided)):
        return Step((), (), decided.wake_at)
    done = platform.store.transact(work)
    platform.scheduler_cache.reasons.mark_written(unwritten, view.versions)
    for num, why in done.struck.items():
        _LOG.error(
            "%s cannot be started: %s",
            job_label(num),
            why,
            extra={"event": "job_blocked", "job": num},
        )
        platform.scheduler_cache.rows.keep_back(
            num, Reason(ReasonCode.BLOCKED, why), now + BLOCKED_US
        )
    return Step(
        tuple(done.started),
        tuple(done.refused),
        now if done.refused or done.struck else decided.wake_at,
        tuple(done.evicted),
        tuple(done.moved),
    )


def _decides(decided: Plan) -> bool:
    return bool(decided.starts or decided.preemptions or decided.resizes or decided.migrations)


# -- starts --------------------------------------------------------------------------------------


def _start(here: _Work, decided: Plan, queued: Mapping[int, StoredJob]) -> None:
    """Place whole gangs; a gang that no longer fits the live state is refused.

    A gang that runs into a bug at its start stays queued; the other gangs start.
    """
    placed: list[tuple[int, list[JobEvent | Note]]] = []
    for start in decided.starts:
        stored, wanted = queued.get(start.job), _slots(start.placement)
        if stored is None or not _is_free(here, wanted):
            here.refused.append(start.job)
            continue
        placement = with_chosen_devices(start.placement, here.devices)
        placed.append((start.job, [_placed(stored, placement, here)]))
        here.taken.update(wanted)
        here.started.append(start.job)

    def struck(num: int, error: Exception) -> None:
        here.started.remove(num)
        said = str(error) if isinstance(error, PlatformError) else repr(error)
        here.struck[num] = f"a bug in Phalanx prevents the start: {said}"

    commit_many(here.tx, placed, here.now, _ACTOR, known=queued, on_bug=struck)


def _placed(stored: StoredJob, placement: Placement, here: _Work) -> AttemptPlaced:
    """The placement of a queued job, with what it has waited for."""
    # A cached row may be older than the reason, which is written without a new version.
    job, reason = stored.job, here.said(stored.job.num) or stored.pending_reason
    since = job.submitted_at if job.queued_at is None else job.queued_at
    return AttemptPlaced(
        job.attempts + 1,
        placement,
        waited_s=round(max(here.now - since, 0) / _US, 3),
        waited_for="" if reason is None else reason.message,
        offers=offers_of(placement, here.nodes),
    )


def _is_free(here: _Work, wanted: list[tuple[str, int]]) -> bool:
    if len(set(wanted)) != len(wanted) or not here.taken.isdisjoint(wanted):
        return False
    return all(slot < here.slots.get(node, 0) for node, slot in wanted)


def _slots(placement: Placement) -> list[tuple[str, int]]:
    return [(share.node, slot) for share in placement.shares for slot in share.slots]


def _held_slots(stored: StoredJob) -> list[tuple[str, int]]:
    attempt = stored.job.attempt
    return [] if attempt is None else _slots(attempt.placement)


# -- reservations --------------------------------------------------------------------------------


def _keep_reservations(here: _Work, decided: Plan) -> None:
    """Remove reservations that the plan does not honour, except those of jobs that are moving."""
    honoured = {reservation.job for reservation in decided.reservations}
    gone = [
        owner
        for owner, stored in here.view.reservations.items()
        if owner not in honoured
        and not (
            stored.kind == MOVE and owner in here.live and here.now < stored.reservation.expires_at
        )
    ]
    planning.remove_reservations(here.tx, gone)


def _cut_reservations(here: _Work, decided: Plan) -> None:
    """Store new reservations with their preemptions and moves, then make the other moves."""
    evictions = {one.job: one for one in decided.preemptions}
    moves: dict[int, Resize | Migration] = {one.job: one for one in decided.resizes}
    moves |= {one.job: one for one in decided.migrations}
    for reservation in decided.reservations:
        known = here.view.reservations.get(reservation.job)
        if not reservation.victims or (known is not None and known.reservation == reservation):
            continue
        ours = [moves.pop(num) for num in reservation.victims if num in moves]
        evicted = [evictions[num] for num in reservation.victims if num in evictions]
        if not all(_may_leave(here, num) for num in reservation.victims):
            here.refused.append(reservation.job)
            continue
        planning.put_reservation(
            here.tx, StoredReservation(reservation, PREEMPTION, None, here.now)
        )
        for eviction in evicted:
            _evict(here, eviction)
        for move in ours:
            _move(here, move, reservation.job)
    for move in moves.values():
        if _may_leave(here, move.job):
            _move(here, move, getattr(move, "beneficiary", None))
        else:
            here.refused.append(move.job)


def _may_leave(here: _Work, num: int) -> bool:
    """Whether the job still runs the attempt that the planner saw and is not stopping."""
    stored = here.live.get(num)
    if stored is None or stored.job.state is JobState.STOPPING or stored.job.attempt is None:
        return False
    return here.view.attempts.get(num) == stored.job.attempt.num


def _evict(here: _Work, one: Preemption) -> None:
    event = StopRequested(
        StopGoal.REQUEUE,
        one.reason,
        beneficiary=one.beneficiary,
        price_slot_s=round(one.price_slot_s, 3),
    )
    commit_events(here.tx, one.job, [event], here.now, _ACTOR)
    here.evicted.append(one.job)


def _move(here: _Work, one: Resize | Migration, beneficiary: int | None) -> None:
    """Stop a job with a save, and reserve its new placement until it starts there."""
    stored = here.live[one.job]
    grace_us = round(stored.job.policy.grace_s * _US)
    names = tuple(share.node for share in one.placement.shares)
    reservation = Reservation(one.job, names, None, here.now + grace_us + here.ttl_us)
    planning.put_reservation(here.tx, StoredReservation(reservation, MOVE, one.placement, here.now))
    price = one.price_slot_s if isinstance(one, Migration) else None
    event = StopRequested(
        StopGoal.REQUEUE, _why_moved(one), beneficiary=beneficiary, price_slot_s=price
    )
    commit_events(here.tx, one.job, [event], here.now, _ACTOR)
    here.moved.append(one.job)


def _why_moved(one: Resize | Migration) -> Reason:
    if isinstance(one, Resize):
        return Reason(ReasonCode.RESIZED, one.reason.message)
    where = ", ".join(dict.fromkeys(share.node for share in one.placement.shares))
    return Reason(ReasonCode.MOVED, f"moves to {where}, which makes room for j-{one.beneficiary}")


__all__ = ["Step", "apply", "scheduling_step", "view_of"]
