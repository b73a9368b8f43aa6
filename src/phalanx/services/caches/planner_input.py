"""Convert stored jobs to planner input: demand, placement and preemption cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.gang.placement import Placement
from phalanx.core.jobs.model import Attempt, JobPolicy, JobState
from phalanx.core.scheduling import PlannerConfig, QueuedJob, RunningJob
from phalanx.core.scheduling.model.scaling import speed_curve
from phalanx.core.scheduling.model.urgency import protected_until
from phalanx.errors import InvariantBroken
from phalanx.store.jobs import JobFacts, StoredJob
from phalanx.store.planning import MOVE, StoredReservation

_US = 1_000_000
# Expected duration of a requested save of a job that has not saved yet.
_SAVE_S = 30.0
_MIN_SAVE_S = 1.0
# Less than this says little about the speed of a job on some number of nodes.
_MEASURED_S, _MEASURED_STEPS = 10.0, 10


@dataclass(frozen=True, slots=True)
class RunningFacts:
    """Facts about running jobs that their rows do not contain, by job number.

    `saves`: time of the last checkpoint (µs UTC) and its duration (s). `savers`: jobs with a script
    that resumes from checkpoints and therefore saves on request. `epochs`: (done, planned). `speeds`: of
    elastic jobs on 1, 2, … nodes, where they were measured on at least two numbers of nodes.
    """

    saves: Mapping[int, tuple[int, float | None]]
    savers: frozenset[int] | set[int]
    epochs: Mapping[int, tuple[int, int]]
    speeds: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


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
        domains=demand.domains,
        slot_type=demand.slot_type,
        device_memory_bytes=demand.device_memory_bytes,
        tolerates=demand.tolerates,
        selector=demand.selector,
        splits=terms.splits,
        intensive=demand.intensive,
        user=facts.owner,
        residency=demand.residency,
    )


def waiting(
    stored: StoredJob,
    reservation: StoredReservation | None,
    speeds: tuple[float, ...] = (),
    allowed: tuple[str, ...] | None = None,
) -> QueuedJob:
    """A queued job. One that comes back from a move asks for just the size that was planned.

    `allowed` are the values of the label `residency` that its rules allow.
    """
    job = stored.job
    shape = job.policy.shape
    moved = reservation is not None and reservation.kind == MOVE
    if reservation is not None and moved:
        others = sum(role.nodes for role in job.policy.roles)
        nodes = len(reservation.reservation.nodes) - others
        shape = replace(job.policy.shape_on(nodes), nodes=nodes)
    return replace(
        asked(job.policy, stored.facts, job.submitted_at),
        num=job.num,
        shape=shape,
        splits=() if moved else job.policy.splits,
        not_before=job.not_before,
        queued_at=job.queued_at,
        attained_slot_s=job.attained_slot_s,
        max_duration_s=_left_s(stored),
        delayed_s=job.waited_s,
        speeds=speeds,
        residency=allowed,
    )


def _left_s(stored: StoredJob) -> float | None:
    """What the limit leaves, as far as service so far tells: the limit counts from the first start."""
    limit_s, slots = stored.job.policy.max_duration_s, stored.job.policy.num_slots
    if limit_s is None:
        return None
    return max(limit_s - stored.job.attained_slot_s / slots, 1.0)


# -- what runs -----------------------------------------------------------------------------------


def held(
    stored: StoredJob,
    facts: RunningFacts,
    reservation: StoredReservation | None,
    terms: PlannerConfig,
    now: int,
    allowed: tuple[str, ...] | None = None,
) -> RunningJob:
    """A running job as the planner sees it; a moving job also holds the nodes it moves to.

    `allowed` are the values of the label `residency` that its rules allow.
    """
    job, attempt = stored.job, stored.job.attempt
    if attempt is None:
        raise InvariantBroken(f"job {job.num} holds slots without an attempt")
    demand = stored.facts.demand
    saved_at, save_s = _save(job.num, facts)
    least, most = _range_of(job.policy, len(attempt.placement.shares))
    elastic = least is not None and save_s is not None
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
        protected_until=protected_until(started_at or 0, job.waited_s, job.preempted_at, terms),
        min_nodes=least if elastic else None,
        max_nodes=most if elastic else None,
        cpus_per_node=stored.facts.cpus_per_node,
        memory_per_node_bytes=demand.memory_per_node_bytes,
        delayed_s=job.waited_s,
        roles=job.policy.roles,
        user=stored.facts.owner,
        speeds=facts.speeds.get(job.num, ()) if elastic else (),
        residency=allowed,
    )


def _range_of(policy: JobPolicy, nodes: int) -> tuple[int | None, int]:
    """The least and the most nodes of a running job; no least for one of a fixed size that it has.

    After a change of the range while it runs, a job has another size until the planner has moved it.
    """
    most = policy.shape.nodes
    if policy.min_nodes is not None or policy.roles or policy.splits:
        return policy.min_nodes, most
    return (None if nodes == most else most), most


def measured_speeds(
    elastic: Sequence[StoredJob], counts: Sequence[tuple[int, int, int, float]]
) -> dict[int, tuple[float, ...]]:
    """Speeds of elastic jobs from the steps of all their generations; see `lineage.step_counts`."""
    sums: dict[int, dict[int, tuple[float, float]]] = {}
    for num, nodes, steps, seconds in counts:
        known = sums.setdefault(num, {}).get(nodes, (0.0, 0.0))
        sums[num][nodes] = (known[0] + steps, known[1] + seconds)
    found = {}
    for one in elastic:
        policy = one.job.policy
        rates: dict[int, float] = {}
        others = sum(role.nodes for role in policy.roles)
        # A step of a job that scales its batch trains on more samples on more nodes.
        scales = (one.facts.spec.get("training") or {}).get("on_resize") == "scale_batch"
        for nodes, (made, seconds) in sums.get(one.job.num, {}).items():
            if seconds >= _MEASURED_S and made >= _MEASURED_STEPS:
                rates[nodes - others] = made / seconds * (nodes - others if scales else 1.0)
        found[one.job.num] = speed_curve(rates, policy.shape.nodes)
    return found


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


def slots_held(holding: Sequence[StoredJob]) -> dict[str, int]:
    """Return the slots that each project holds."""
    found: dict[str, int] = {}
    for one in holding:
        if one.job.attempt is not None:
            project = one.facts.project
            found[project] = found.get(project, 0) + one.job.attempt.num_slots
    return found
