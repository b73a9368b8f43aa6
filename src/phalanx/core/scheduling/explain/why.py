"""Why a job waits, which change would start it now, and why a victim was chosen.

The forecast runs the production planner forward, and each counterfactual plans again with one
change: both report what the planner would decide. Callers need only `why` and `why_victim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.gang.placement import GangShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling.explain.constraints import Constraint, constraints
from phalanx.core.scheduling.explain.forecast import NUM_SCENARIOS, Eta, eta
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.entitlement import lineage
from phalanx.core.scheduling.model.outcome import Plan
from phalanx.core.scheduling.model.planning_input import PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.model.quotas import RaisedLimit
from phalanx.core.scheduling.planner import plan_pass
from phalanx.core.scheduling.search.ledger import OVERDUE
from phalanx.core.scheduling.search.narrow_ledger import NarrowLedger
from phalanx.core.scheduling.stages.entitlement import entitle
from phalanx.core.scheduling.stages.reasons import holder
from phalanx.core.scheduling.stages.scheduling_pass import Pass


class ChangeKind(StrEnum):
    """What a counterfactual changes."""

    SIZE = "size"
    POOL = "pool"
    PRIORITY = "priority"
    TOPOLOGY = "topology"
    RESOURCES = "resources"
    QUOTA = "quota"
    NODES = "nodes"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Change:
    """One change that lets the job start now; `by_preemption`: after its victims have left."""

    text: str
    by_preemption: bool
    kind: ChangeKind = ChangeKind.SIZE
    victims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that is preempted: its beneficiary, the reason for the choice, and the cost.

    `lost_slot_s` is work thrown away, `price_slot_s` that plus the time to save and to start again.
    """

    job: int
    beneficiary: int
    price_slot_s: float
    lost_slot_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of one waiting job.

    `position` counts from 1; ETAs are microseconds UTC, None if unknown. `reason` is the line that
    the plan gives; `constraints` is everything that binds; `victims` are those that make room for
    this job now.
    """

    reason: Reason
    position: int
    num_waiting: int
    eta_p50_at: int | None
    eta_p90_at: int | None
    changes: tuple[Change, ...]
    constraints: tuple[Constraint, ...] = ()
    victims: tuple[Victim, ...] = ()


def why(
    snapshot: PlanningInput, num: int, now: int, num_scenarios: int = NUM_SCENARIOS
) -> Why | None:
    """Explain one waiting job; None if it does not wait.

    Costs one plan for the reason, up to two dozen for the changes, and `num_scenarios` runs of the
    planner for the ETA.
    """
    snapshot = snapshot.as_of(now)
    job = next((w for w in snapshot.waiting if w.num == num), None)
    if job is None:
        return None
    cluster = ClusterIndex.of(snapshot)
    decided = plan_pass(cluster, now)
    reason = dict(decided.pending_reasons).get(
        num, Reason(ReasonCode.PLACED, "starts at the next pass")
    )
    starts_now = any(start.job == num for start in decided.starts)
    when = Eta(now, now) if starts_now else eta(snapshot, num, now, num_scenarios)
    return Why(
        reason,
        position(snapshot, num, now),
        len(snapshot.waiting),
        when.p50_at,
        when.p90_at,
        () if starts_now else counterfactuals(snapshot, job, now),
        () if starts_now else constraints(cluster, decided, job, now),
        _victims_for(cluster, decided, num, now),
    )


def why_victim(snapshot: PlanningInput, num: int, now: int) -> Victim | None:
    """Explain why a running job is or would be preempted now; None if it is not a victim."""
    cluster = ClusterIndex.of(snapshot)
    held = cluster.held.get(num)
    if held is None:
        return None
    for reservation in snapshot.reservations:
        if num in reservation.victims:
            return _victim(cluster, held, reservation.job, now)
    for reservation in plan_pass(cluster, now).reservations:
        if num in reservation.victims:
            return _victim(cluster, held, reservation.job, now)
    return None


def _victims_for(cluster: ClusterIndex, decided: Plan, num: int, now: int) -> tuple[Victim, ...]:
    reservation = next((h for h in decided.reservations if h.job == num), None)
    if reservation is None:
        return ()
    return tuple(
        _victim(cluster, cluster.held[v], num, now)
        for v in reservation.victims
        if v in cluster.held
    )


def _victim(cluster: ClusterIndex, held: RunningJob, beneficiary: int, now: int) -> Victim:
    cost, lost = held.eviction_cost(now), held.lost_work(now)
    owner = cluster.waiting.get(beneficiary)
    wants = f" ({owner.num_slots} slots, priority {owner.priority})" if owner is not None else ""
    saves = (
        f"the job saves first ({held.save_s:.0f} s)"
        if held.save_s is not None
        else f"the work since the last checkpoint, {lost / 3600:.2f} slot-hours, is lost"
    )
    text = (
        f"makes room for j-{beneficiary}{wants}: this choice of victims frees a whole "
        f"domain at the least cost; {saves}, {cost / 3600:.2f} slot-hours in all"
    )
    return Victim(held.job, beneficiary, cost, lost, text)


def position(snapshot: PlanningInput, num: int, now: int) -> int:
    """Return how many jobs the planner considers up to and including this one.

    Of the overdue gangs of a priority only the first `num_overdue` go before more urgent jobs.
    """
    cluster = ClusterIndex.of(snapshot)
    cluster.advance(now)
    state = Pass(cluster, now)
    entitle(state)
    first = sorted(
        (state.ledger.rank(eq_class, place), job, place)
        for eq_class in cluster.classes.values()
        for place, (_, job) in enumerate(eq_class.jobs)
    )
    num_overdue: dict[int, int] = {}
    ranked = []
    for rank, job, place in first:
        if rank[3] == OVERDUE:
            num_overdue[rank[2]] = num_overdue.get(rank[2], 0) + 1
            if num_overdue[rank[2]] > cluster.config.num_overdue:
                rank = state.ledger.rank(cluster.class_of[job], place, overdue=False)
        ranked.append((rank, job))
    ranked.sort()
    order = [job for _, job in ranked]
    return order.index(num) + 1 if num in order else len(order) + 1


# -- counterfactuals ---------------------------------------------------------------------------------


class _Trial:
    """Repeated passes on one index with the job replaced by a changed one."""

    def __init__(self, snapshot: PlanningInput, job: QueuedJob, now: int) -> None:
        self.cluster = ClusterIndex.of(snapshot)
        self.cluster.advance(now)
        self.job, self.now = job, now
        self.reservation = self.cluster.reservations.get(job.num)

    def outcome(self, changed: QueuedJob) -> tuple[bool, tuple[int, ...]] | None:
        """None if it would still wait; else whether victims leave first, and which."""
        cluster = self.cluster
        cluster.withdraw(changed.num)
        cluster.submit(replace(changed, not_before=None))
        try:
            decided = plan_pass(cluster, self.now)
        finally:
            cluster.withdraw(changed.num)
            cluster.submit(self.job)
            if self.reservation is not None:
                cluster.reservations[changed.num] = self.reservation
        if any(start.job == changed.num for start in decided.starts):
            return False, ()
        reservation = next(
            (h for h in decided.reservations if h.job == changed.num and h.victims), None
        )
        return None if reservation is None else (True, reservation.victims)

    def change(self, kind: ChangeKind, text: str, changed: QueuedJob) -> Change | None:
        """Return the change if the job would then start."""
        found = self.outcome(changed)
        return None if found is None else Change(f"starts now {text}", found[0], kind, found[1])


def counterfactuals(snapshot: PlanningInput, job: QueuedJob, now: int) -> tuple[Change, ...]:
    """What would start this job now, one change at a time: the least of each kind that helps."""
    trial = _Trial(snapshot, job, now)
    if trial.outcome(job) is not None:
        return ()  # it starts without a change
    finders: tuple[Callable[[], Change | None], ...] = (
        lambda: _smaller(trial, job),
        lambda: _elsewhere(trial, snapshot, job),
        lambda: _first(trial, _higher(job)),
        lambda: _first(trial, _looser(job)),
        lambda: _quota(snapshot, job, now),
        lambda: _reopened(snapshot, job, now),
        lambda: _first(trial, _shorter(job)),
    )
    return tuple(change for change in (find() for find in finders) if change is not None)


_Idea = tuple[ChangeKind, str, QueuedJob]


def _first(trial: _Trial, ideas: Iterator[_Idea]) -> Change | None:
    for idea in ideas:
        found = trial.change(*idea)
        if found is not None:
            return found
    return None


def _smaller(trial: _Trial, job: QueuedJob) -> Change | None:
    """The largest smaller gang that starts, found by halving: what fits small fits smaller."""
    sizes = _sizes(job)
    low, high, best = 0, len(sizes) - 1, None
    while low <= high:
        middle = (low + high) // 2
        text, shape = sizes[middle]
        domains = max(1, job.domains * shape.nodes // job.shape.nodes)
        smaller = replace(job, shape=shape, min_nodes=None, domains=domains)
        part = " for its first role" if job.roles else ""
        found = trial.change(ChangeKind.SIZE, f"with {text}{part}", smaller)
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    return best


def _sizes(job: QueuedJob) -> list[tuple[str, GangShape]]:
    shape, found = job.shape, []
    least, part = job.min_nodes or shape.nodes, shape.nodes // job.domains
    step = 1 if job.domains == 1 else part  # a part of several is as large as its domain
    for nodes in range(least - step, 0, -step):
        smaller = GangShape(nodes, shape.slots_per_node, shape.ranks_per_node)
        plural = "node" if nodes == 1 else "nodes"
        found.append((f"{_slots(nodes * shape.slots_per_node)} on {nodes} {plural}", smaller))
    if job.domains > 1:
        return found
    for slots in range(shape.slots_per_node - 1, 0, -1):
        found.append((f"{_slots(slots)} on 1 node", GangShape(1, slots, slots)))
    return found


def _slots(num: int) -> str:
    return "1 slot" if num == 1 else f"{num} slots"


def _elsewhere(trial: _Trial, snapshot: PlanningInput, job: QueuedJob) -> Change | None:
    if not job.pools:
        return None
    others = [p for p in dict.fromkeys(n.pool for n in snapshot.nodes) if p not in job.pools]
    kind = ChangeKind.POOL
    ideas = [(kind, f"in pool {pool}", replace(job, pools=(pool,))) for pool in others]
    ideas += [
        (kind, f"in pool {pool} with any slot type", replace(job, pools=(pool,), slot_type=""))
        for pool in others
        if job.slot_type
    ]
    return _first(trial, iter(ideas))


def _higher(job: QueuedJob) -> Iterator[_Idea]:
    for priority in range((job.priority // 10 + 1) * 10, 101, 10):
        changed = replace(job, priority=priority)
        yield ChangeKind.PRIORITY, f"at priority {priority}", changed


def _looser(job: QueuedJob) -> Iterator[_Idea]:
    if job.required is not None:
        changed = replace(job, required=None, domains=1)
        yield ChangeKind.TOPOLOGY, f"without `required: {job.required}`", changed
    if job.cpus_per_node:
        changed = replace(job, cpus_per_node=0)
        yield ChangeKind.RESOURCES, f"with fewer than {job.cpus_per_node} CPUs a node", changed
    if job.memory_per_node_bytes:
        changed = replace(job, memory_per_node_bytes=0)
        memory = f"{job.memory_per_node_bytes / (1 << 30):.0f} GB"
        yield ChangeKind.RESOURCES, f"with less than {memory} of memory a node", changed
    if job.slot_type:
        changed = replace(job, slot_type="")
        yield ChangeKind.RESOURCES, f"with any slot type instead of {job.slot_type}", changed


def _shorter(job: QueuedJob) -> Iterator[_Idea]:
    """A declared limit lets a job use slots that are kept for a later start."""
    for limit_s, text in ((8 * 3600.0, "8 h"), (3600.0, "1 h"), (900.0, "15 min")):
        if job.max_duration_s is None or job.max_duration_s > limit_s:
            changed = replace(job, max_duration_s=limit_s)
            yield ChangeKind.LIMIT, f"with `max_duration` of at most {text}", changed


def _quota(snapshot: PlanningInput, job: QueuedJob, now: int) -> Change | None:
    """Raise the limits that the gang exceeds by exactly what it needs."""
    tree = {project.name: project for project in snapshot.projects}
    state = Pass(ClusterIndex.of(snapshot), now)
    entitle(state)
    raised, wishes = {}, []
    for project in lineage(tree, job.project):
        slots = state.ledger.used.get(project.name, 0) + job.num_slots
        jobs = state.ledger.num_jobs.get(project.name, 0) + 1
        if project.max_slots is not None and project.max_slots < slots:
            raised[project.name] = replace(project, max_slots=slots)
            wishes.append(f"project {project.name} might hold {slots} slots")
        if project.max_running is not None and project.max_running < jobs:
            changed = raised.get(project.name, project)
            raised[project.name] = replace(changed, max_running=jobs)
            wishes.append(f"project {project.name} might run {jobs} jobs")
    projects = tuple(raised.get(project.name, project) for project in snapshot.projects)
    changed_input = replace(snapshot, projects=projects)
    if state.ledger.narrow is not None:
        changed_input, more = _without_narrow_limits(changed_input, state.ledger.narrow, job)
        wishes += more
    if not wishes:
        return None
    trial = _Trial(changed_input, job, now)
    return trial.change(ChangeKind.QUOTA, f"if {' and '.join(wishes)}", job)


def _without_narrow_limits(
    snapshot: PlanningInput, ledger: NarrowLedger, job: QueuedJob
) -> tuple[PlanningInput, list[str]]:
    """Raise the limits of slot types and users that the gang exceeds; return what that is, in words."""
    excess: dict[str, tuple[int, int]] = {}
    ledger.claim(job, excess)
    users, projects, wishes = snapshot.users, list(snapshot.projects), []
    for one in ledger.limits.on(job):
        slots, jobs = excess.get(one.key, (0, 0))
        if not slots and not jobs:
            continue
        kind = f"{one.slot_type} slots" if one.slot_type else "slots"
        most, running = (one.max_slots or 0) + slots, (one.max_running or 0) + jobs
        name = holder(one.exceeded(0, 0), job.project)
        wishes += [f"{name} might hold {most} {kind}"] if slots else []
        wishes += [f"{name} might run {running} jobs"] if jobs else []
        raised = RaisedLimit(one, most if slots else None, running if jobs else None)
        users = raised.of_users(users) if not one.project else users
        projects = [
            raised.of_project(project) if project.name == one.project else project
            for project in projects
        ]
    return replace(snapshot, users=users, projects=tuple(projects)), wishes


def _reopened(snapshot: PlanningInput, job: QueuedJob, now: int) -> Change | None:
    """Reopen the nodes that are drained or lost."""
    closed = [node.id for node in snapshot.nodes if node.closed]
    if not closed:
        return None
    nodes = tuple(replace(node, closed="") for node in snapshot.nodes)
    trial = _Trial(replace(snapshot, nodes=nodes), job, now)
    names = ", ".join(closed[:4]) + (f" and {len(closed) - 4} more" if len(closed) > 4 else "")
    return trial.change(ChangeKind.NODES, f"if {names} accepted jobs", job)


__all__ = [
    "Change",
    "ChangeKind",
    "Constraint",
    "Victim",
    "Why",
    "counterfactuals",
    "position",
    "why",
    "why_victim",
]
