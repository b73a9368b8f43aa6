"""Urgency: the order of jobs within one entitlement tier and priority.

The learned index is the chance of finishing per slot-second spent (Gittins), blended with a declared
limit and with live progress, and grows with the wait. Jobs that waited beyond the guard go first.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of, size_class
from phalanx.core.scheduling.model.planning_input import US, PlannerConfig, QueuedJob, RunningJob


def kind_key(job: QueuedJob) -> KindKey:
    """Return the key of the history that a queued job shares."""
    return KindKey(job.project, job.kind, size_class(job.num_slots))


def base_urgency(
    job: QueuedJob, kind: KindKey, attained_bin: int, history: History, config: PlannerConfig
) -> float:
    """Urgency before age: completions per slot-second, corrected for the size of the gang."""
    return _blend(
        history.index(kind, attained_bin),
        job.num_slots,
        job.attained_slot_s,
        job.remaining_s,
        job.max_duration_s,
        config,
    )


def held_base(
    held: RunningJob, attained_bin: int, history: History, config: PlannerConfig
) -> float:
    """Urgency of a running job before its waits; constant within a service bin."""
    slots = held.num_slots
    kind = KindKey(held.project, held.kind, size_class(slots))
    index = history.index(kind, attained_bin)
    attained = EDGES[attained_bin]
    return _blend(index, slots, attained, held.remaining_s, held.max_duration_s, config)


def bin_ends_at(held: RunningJob, attained_bin: int) -> int:
    """When a running job leaves its service bin, microseconds."""
    if attained_bin + 1 >= len(EDGES) or held.started_at is None or not held.num_slots:
        return 1 << 62
    left = EDGES[attained_bin + 1] - held.attained_slot_s
    # Rounded down: asked a moment early nothing changes, a moment late the index would be stale.
    return held.started_at + int(left / held.num_slots * US)


def base_of(slots: int, index: float, config: PlannerConfig) -> float:
    """Return the urgency of a job by its learned index alone."""
    return float(index * max(slots, 1) ** (1.0 - config.size_exponent))


def _blend(
    index: float,
    slots: int,
    attained: float,
    remaining_s: float | None,
    limit_s: float | None,
    config: PlannerConfig,
) -> float:
    size = max(slots, 1)
    if remaining_s is not None:
        index = 1.0 / max(remaining_s * size, 1.0)
    elif limit_s is not None:
        # It ends within its limit, so it is at least this urgent.
        index = max(index, 1.0 / max(limit_s * size - attained, 60.0))
    return base_of(slots, index, config)


def aged(base: float, wait_s: float, config: PlannerConfig) -> float:
    """Urgency after waits of this length in all: linear at first, then ever steeper."""
    if wait_s == 0.0:
        return base
    steep = float((wait_s / config.steep_s) ** config.steepness)
    return base * (1.0 + wait_s / config.age_s + steep)


def is_guarded(since: int, now: int, config: PlannerConfig) -> bool:
    """Return whether the starvation guard applies to this wait."""
    return (now - since) / US > config.guard_after_s


def protected_until(
    started_at: int, waited_s: float, preempted_at: Sequence[int], config: PlannerConfig
) -> int:
    """Return until when a job that starts now is not chosen as a victim, microseconds.

    `waited_s` are its waits up to this start. Two rules protect it: the starvation guard, and the limit on
    the preemptions of a job in any hour.
    """
    until = 0
    if waited_s > config.guard_after_s:
        until = started_at + int(config.guard_quantum_s * US)
    most = config.preemptions_per_hour
    if len(preempted_at) >= most:
        until = max(until, preempted_at[-most] + 3600 * US + 1)
    return until


def expected_end(
    held: RunningJob, history: History, now: int, quantile: float = 0.75
) -> int | None:
    """Return the end of a running job at this quantile, microseconds; None if unknown."""
    if held.started_at is None:
        return None
    if held.stopping:
        return now + int((held.save_s or 0.0) * US)
    if held.remaining_s is not None:
        end: int | None = now + int(held.remaining_s * US)
    else:
        kind = KindKey(held.project, held.kind, size_class(held.num_slots))
        total = history.total_slot_s(kind, EDGES[bin_of(held.attained(now))], quantile)
        end = settled_end(held, total)
    # Overdue jobs are expected to end at any moment.
    return None if end is None else max(end, now + US)


def settled_end(held: RunningJob, total_slot_s: float | None) -> int | None:
    """The part of `expected_end` that stays the same throughout a service bin."""
    started, slots = held.started_at or 0, max(held.num_slots, 1)
    end = None
    if total_slot_s is not None:
        end = started + int((total_slot_s - held.attained_slot_s) / slots * US)
    if held.max_duration_s is not None:
        last = started + int(held.max_duration_s * US)
        end = last if end is None else min(end, last)
    return end


def expected_s(
    job: QueuedJob, kind: KindKey, history: History, quantile: float = 0.75
) -> float | None:
    """Return the expected run time of a queued job, seconds; None if unknown."""
    limit = job.max_duration_s
    return remaining_of(
        kind, job.num_slots, job.attained_slot_s, job.remaining_s, limit, history, quantile
    )


def bounded_s(job: QueuedJob) -> float | None:
    """Return the run time that a queued job is known not to exceed, seconds; None if unknown."""
    known = [one for one in (job.remaining_s, job.max_duration_s) if one is not None]
    return min(known) if known else None


def remaining_of(
    kind: KindKey,
    slots: int,
    attained: float,
    remaining_s: float | None,
    limit_s: float | None,
    history: History,
    quantile: float,
) -> float | None:
    """Seconds left: live progress, else the learned quantile, never beyond the declared limit."""
    left = remaining_s
    if left is None:
        service = history.remaining_slot_s(kind, attained, quantile)
        left = None if service is None else service / max(slots, 1)
    if limit_s is None:
        return left
    return max(limit_s, 1.0) if left is None else min(left, max(limit_s, 1.0))


__all__ = [
    "aged",
    "base_of",
    "base_urgency",
    "bin_of",
    "bounded_s",
    "expected_end",
    "expected_s",
    "held_base",
    "is_guarded",
    "kind_key",
    "protected_until",
    "settled_end",
]
