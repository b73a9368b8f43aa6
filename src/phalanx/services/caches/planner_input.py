"""Convert stored jobs and projects to planner input: demand, placement and preemption cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import Placement
from phalanx.core.jobs.model import Attempt, JobPolicy, JobState
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import PlannerConfig, QueuedJob, RunningJob
from phalanx.core.scheduling.model.past_use import decayed_average
from phalanx.core.scheduling.model.urgency import is_guarded
from phalanx.errors import InvariantBroken
from phalanx.schemas.pools.project_file import ProjectSpec, lineage
from phalanx.store.jobs import JobFacts, StoredJob
from phalanx.store.planning import MOVE, StoredReservation, Usage

_US = 1_000_000
# Expected duration of a requested save of a job that has not saved yet.
_SAVE_S = 30.0
_MIN_SAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class RunningFacts:
    """Facts about running jobs that their rows do not contain, by job number.

    `saves`: time of the last checkpoint (µs UTC) and its duration (s). `savers`: jobs with a script
    that resumes from checkpoints and therefore saves on request. `epochs`: (done, planned).
    """

    saves: Mapping[int, tuple[int, float | None]]
    savers: frozenset[int] | set[int]
    epochs: Mapping[int, tuple[int, int]]


def kind_of(owner: str, name: str) -> str:
    """Jobs of the same owner and name share one duration history."""
    return f"{owner}/{name}"


# -- the queue -----------------------------------------------------------------------------------


def asked(terms: JobPolicy, facts: JobFacts, submitted_at: int) -> QueuedJob:
    """A job as it asks to be placed before anything has happened to it; its number is 0."""
    demand = facts.demand
    return QueuedJob(
        num=0,
        shape=terms.shape,
        priority=facts.priority,
        submitted_at=submitted_at,
        pools=facts.pools,
        cpus_per_node=facts.cpus_per_node,
        memory_per_node_bytes=demand.memory_per_node_bytes,
        project=facts.project,
        kind=kind_of(facts.owner, facts.name),
        min_nodes=terms.min_nodes,
        roles=terms.roles,
        required=demand.required,
        slot_type=demand.slot_type,
        device_memory_bytes=demand.device_memory_bytes,
        tolerates=demand.tolerates,
        selector=demand.selector,
    )


def waiting(stored: StoredJob, reservation: StoredReservation | None) -> QueuedJob:
    """A queued job. One that comes back from a move asks for just the size that was planned."""
    job = stored.job
    shape = job.policy.shape
    if reservation is not None and reservation.kind == MOVE:
        others = sum(role.nodes for role in job.policy.roles)
        shape = replace(shape, nodes=len(reservation.reservation.nodes) - others)
    return replace(
        asked(job.policy, stored.facts, job.submitted_at),
        num=job.num,
        shape=shape,
        not_before=job.not_before,
        queued_at=job.queued_at,
        attained_slot_s=job.attained_slot_s,
        max_duration_s=_left_s(stored),
        delayed_s=job.waited_s,
    )


def _left_s(stored: StoredJob) -> float | None:
    """What the limit leaves, as far as service so far tells: the limit counts from the first start."""
    limit_s, slots = stored.job.policy.max_duration_s, stored.job.policy.num_slots
    if limit_s is None:
        return None
    return max(limit_s - stored.job.attained_slot_s / slots, 1.0)


def over_running(
    queued: Sequence[StoredJob],
    holding: Sequence[StoredJob],
    projects: Mapping[str, ProjectSpec],
    owners: set[int],
) -> dict[int, Reason]:
    """Queued jobs that a `max_running` limit defers, each with its pending reason.

    The limit of a project applies to its own jobs and those of all its subprojects together.
    """
    found: dict[int, Reason] = {}
    # Innermost projects first: a job deferred by its own project uses no place of an outer one.
    limits = {
        name: one.max_running for name, one in projects.items() if one.max_running is not None
    }
    for name in sorted(limits, key=lambda one: (-len(lineage(projects, one)), one)):
        project, limit = projects[name], limits[name]
        inside = {part for part in projects if project in lineage(projects, part)}
        running = sum(1 for one in holding if one.facts.project in inside)
        ours = [one for one in queued if one.facts.project in inside and one.job.num not in found]
        ours.sort(key=lambda one: (one.job.num not in owners, -one.facts.priority, one.job.num))
        text = f"project {name} runs {running} jobs of at most {limit}"
        for one in ours[max(0, limit - running) :]:
            found[one.job.num] = Reason(ReasonCode.WAITING_FOR_QUOTA, text)
    return found


# -- what runs -----------------------------------------------------------------------------------


def held(
    stored: StoredJob,
    facts: RunningFacts,
    reservation: StoredReservation | None,
    terms: PlannerConfig,
    now: int,
) -> RunningJob:
    """A running job as the planner sees it; a moving job also holds the nodes it moves to."""
    job, attempt = stored.job, stored.job.attempt
    if attempt is None:
        raise InvariantBroken(f"job {job.num} holds slots without an attempt")
    demand = stored.facts.demand
    saved_at, save_s = _save(job.num, facts)
    elastic = job.policy.min_nodes is not None and save_s is not None
    started_at = attempt.placed_at if attempt.placed_at is not None else job.started_at
    return RunningJob(
        job=job.num,
        placement=_with_goal(attempt.placement, reservation),
        project=stored.facts.project,
        priority=stored.facts.priority,
        kind=kind_of(stored.facts.owner, stored.facts.name),
        started_at=started_at,
        attained_slot_s=job.attained_slot_s,
        remaining_s=_remaining_s(stored, attempt, facts.epochs.get(job.num), now),
        max_duration_s=_left_s(stored),
        saved_at=saved_at,
        save_s=save_s,
        preemptible=demand.preemptible,
        stopping=job.state is JobState.STOPPING or attempt.finished,
        protected_until=_protected_until(stored, attempt, terms),
        min_nodes=job.policy.min_nodes if elastic else None,
        max_nodes=job.policy.shape.nodes if elastic else None,
        cpus_per_node=stored.facts.cpus_per_node,
        memory_per_node_bytes=demand.memory_per_node_bytes,
        delayed_s=job.waited_s,
        roles=job.policy.roles,
    )


def _save(num: int, facts: RunningFacts) -> tuple[int | None, float | None]:
    """When the job last saved, and what a save costs; None for a script that never saves."""
    at, took_s = facts.saves.get(num, (None, None))
    if at is None and num not in facts.savers:
        return None, None
    return at, _SAVE_S if took_s is None else max(took_s, _MIN_SAVE_S)


def _with_goal(placement: Placement, reservation: StoredReservation | None) -> Placement:
    if reservation is None or reservation.kind != MOVE or reservation.placement is None:
        return placement
    here = {share.node for share in placement.shares}
    more = tuple(share for share in reservation.placement.shares if share.node not in here)
    return Placement(placement.pool, placement.shares + more)


def _protected_until(stored: StoredJob, attempt: Attempt, terms: PlannerConfig) -> int:
    """The time until which a job started by the starvation guard is protected from its peers."""
    queued_at, placed_at = stored.job.queued_at, attempt.placed_at
    if queued_at is None or placed_at is None or not is_guarded(queued_at, placed_at, terms):
        return 0
    return placed_at + round(terms.guard_quantum_s * _US)


def _remaining_s(
    stored: StoredJob, attempt: Attempt, epochs: tuple[int, int] | None, now: int
) -> float | None:
    """By the epochs done so far, as if in the middle of one; None before the first is complete."""
    if epochs is None or attempt.placed_at is None:
        return None
    done, planned = epochs
    if done < 1 or planned <= done:
        return None
    ran_s = stored.job.attained_slot_s / attempt.num_slots + (now - attempt.placed_at) / _US
    return ran_s * (planned - done - 0.5) / (done + 0.5)


# -- projects ------------------------------------------------------------------------------------


def past_slots(usage: Usage | None, half_life_s: float, now: int) -> float:
    """The decayed average of slots that a project held up to now."""
    if usage is None:
        return 0.0
    elapsed_s = (now - usage.at) / _US
    return decayed_average(usage.average_slots, usage.held_slots, elapsed_s, half_life_s)


def changed_usage(
    known: Mapping[str, Usage], holding: Sequence[StoredJob], half_life_s: float, now: int
) -> dict[str, Usage]:
    """Rows to write: projects that hold another number of slots than was written down last."""
    holds: dict[str, int] = {}
    for one in holding:
        attempt = one.job.attempt
        if attempt is not None:
            project = one.facts.project
            holds[project] = holds.get(project, 0) + attempt.num_slots
    changed = {}
    for name in {*known, *holds}:
        usage, slots = known.get(name), holds.get(name, 0)
        if usage is None or usage.held_slots != slots:
            changed[name] = Usage(name, past_slots(usage, half_life_s, now), slots, now)
    return changed
