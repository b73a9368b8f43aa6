"""Check whether a job could ever start on this platform, and suggest changes otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.core.contract.credentials import credentials_in
from phalanx.core.contract.pods import CONTAINERS_LABEL
from phalanx.core.gang.placement import Demand, Node
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.residency import permits, residency_of
from phalanx.core.scheduling import EmptyCluster, QueuedJob
from phalanx.core.scheduling.model.entitlement import never_allowed
from phalanx.core.scheduling.model.quotas import NarrowLimits
from phalanx.core.scheduling.stages.reasons import holder
from phalanx.errors import Problem
from phalanx.executors.protocol import Executor, PodChecker
from phalanx.kit.units import format_size
from phalanx.schemas.pools.project_file import (
    ProjectSpec,
    UserQuotaSpec,
    lineage,
    quotas_to_core,
)
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.roles import RolePlan
from phalanx.services.caches.planner_input import asked
from phalanx.services.residency.rules import ResidencyRules
from phalanx.store.jobs import JobFacts
from phalanx.store.resources import Applied

Nodes = Sequence[Node]


def facts_of(spec: JobSpec) -> JobFacts:
    """The job facts of a spec, apart from the `JobPolicy`."""
    return JobFacts(
        project=spec.project,
        name=spec.name,
        owner="",
        labels=dict(spec.labels),
        framework=spec.framework,
        kind="submit",
        priority=spec.priority,
        pools=tuple(spec.pool),
        cpus_per_node=spec.cpus_per_node,
        spec={},
        code_digest=None,
        caller_cwd=None,
        caller_env=None,
        demand=spec.to_demand(),
    )


def gang_of(facts: JobFacts, policy: JobPolicy) -> QueuedJob:
    """The gang of a spec with these facts and this policy as the planner would see it."""
    return asked(policy, facts, 0)


def over_project(spec: JobSpec, projects: Sequence[Applied], job: QueuedJob) -> list[Problem]:
    """Problems of a spec with the gang `job` that can never meet the limits of its project."""
    known = {one.name: ProjectSpec(**one.body) for one in projects}
    problems = []
    tree = {name: one.to_core() for name, one in known.items()}
    too_small = {one.name: one.max_slots for one in never_allowed(tree, job)}
    for one in lineage(known, spec.project):
        part = "" if one.name == spec.project else f", which {spec.project} is part of,"
        if one.max_priority is not None and spec.priority > one.max_priority:
            said = f"project {one.name}{part} allows at most {one.max_priority}"
            problems.append(Problem("priority", said, str(spec.priority)))
        if one.name in too_small:
            said = (
                f"project {one.name}{part} may hold at most {too_small[one.name]} slots, "
                f"the job needs {job.least_slots}"
            )
            problems.append(Problem("resources", said))
    return problems


@dataclass(frozen=True, slots=True)
class QuotaContext:
    """The limits of slot types and users, and the nodes that a job could use."""

    projects: Sequence[Applied]
    users: Sequence[Applied]  # of the whole platform
    nodes: Nodes


def over_quota(spec: JobSpec, quotas: QuotaContext, job: QueuedJob) -> list[Problem]:
    """Problems of a spec with the gang `job`, of its user, that can never meet a quota."""
    tree = {one.name: ProjectSpec(**one.body).to_core() for one in quotas.projects}
    users = {one.name: UserQuotaSpec(**one.body) for one in quotas.users}
    limits = NarrowLimits.of(tree, quotas_to_core(users))
    if limits is None:
        return []
    types = {
        node.slot_type
        for node in quotas.nodes
        if (not spec.pool or node.pool in spec.pool) and node.num_slots >= job.shape.slots_per_node
    }
    problems = []
    for one in limits.never_allowed(job, types):
        kind = f"{one.slot_type} slots" if one.slot_type else "slots"
        said = (
            f"{holder(one, spec.project)} may hold at most {one.most} {kind}, "
            f"the job needs {job.least_slots} slots"
        )
        problems.append(Problem("resources", said))
    return problems


def plain_credentials(spec: Mapping[str, Any]) -> list[Problem]:
    """Problems of a spec, or of a part of it, with credentials in places that are stored and shown."""
    return [
        Problem(
            path,
            f"contains {said}, which would be stored and shown: remove it, store it with "
            "`phalanx secrets set NAME`, name it in `secrets`, and use the variable of that name",
        )
        for path, said in credentials_in(spec)
    ]


def outside_residency(spec: JobSpec, rules: ResidencyRules) -> list[Problem]:
    """Problems of a spec with stores outside its residency, or with rules that agree on nothing."""
    given = {"data": spec.data, "checkpoint": {"store": spec.checkpoint.store}}
    return rules.problems(spec.project, spec.residency or None, given)


def missing_labels(spec: JobSpec, projects: Sequence[Applied]) -> list[Problem]:
    """Problems of a spec without the labels that its project, or one above, requires."""
    known = {one.name: ProjectSpec(**one.body) for one in projects}
    problems = []
    for one in lineage(known, spec.project):
        part = "" if one.name == spec.project else f", which {spec.project} is part of,"
        for label, rule in one.required_labels.items():
            value = spec.labels.get(label)
            if value is None or not rule.allows(value):
                said = f"project {one.name}{part} requires this label with {rule.expected}"
                problems.append(Problem(f"labels.{label}", said, value))
    return problems


def misfits(spec: JobSpec, nodes: Nodes, empty: EmptyCluster, gang: QueuedJob) -> list[Problem]:
    """Why a gang could never be placed, even if nothing else ran; `empty` is the cluster of `nodes`."""
    pools = sorted({node.pool for node in nodes})
    unknown = [pool for pool in spec.pool if pool not in pools]
    if unknown:
        known = ", ".join(pools) or "none"
        said = f"there is no such pool; known: {known}"
        return [Problem("pool", said, ", ".join(unknown))]
    if empty.can_hold(gang):
        return []
    usable = [node for node in nodes if not spec.pool or node.pool in spec.pool]
    if found := _no_containers(spec, usable):
        return found
    where = f"of pool {', '.join(spec.pool)}" if spec.pool else "of any pool"
    if not spec.roles:
        return [_unfit(spec, spec.plans[0], gang, "", usable, where)]
    for plan, shape in zip(spec.plans, (gang.shape, *gang.roles), strict=True):
        demand = _demand_of(spec, plan, gang)
        alone = replace(
            gang,
            shape=shape,
            roles=(),
            cpus_per_node=plan.planned_cpus,
            memory_per_node_bytes=demand.memory_per_node_bytes,
            slot_type=demand.slot_type,
            device_memory_bytes=demand.device_memory_bytes,
        )
        if not empty.can_hold(alone):
            at = f"roles.{plan.name}." if plan.name in spec.roles else ""
            return [_unfit(spec, plan, gang, at, usable, where)]
    within = f"one {spec.placement.required}" if spec.placement.required else "one pool"
    said = f"each role fits alone, but not all at once in {within} ({where})"
    return [Problem("roles", said)]


def _no_containers(spec: JobSpec, usable: Nodes) -> list[Problem]:
    """Problems for keys of containers where no node runs jobs in containers of their own."""
    if any(CONTAINERS_LABEL in node.labels for node in usable):
        return []
    where = f"pool {', '.join(spec.pool)}" if spec.pool else "this platform"
    said = f"{where} runs no containers, only pools with `executor: kubernetes` do; remove it"
    return [Problem(key, said) for key in spec.pod_keys]


def container_pools(
    spec: JobSpec, nodes: Nodes, executor: Executor
) -> tuple[tuple[str, ...], list[Problem]]:
    """The pools that the job may use, and why those that it names, or all others, refuse its pods.

    Where no node runs containers these are the pools that the spec names. Pools that do not answer count
    as able: they are asked again at the start.
    """
    named = tuple(spec.pool)
    # One node tells for its pool; clusters have thousands.
    pools = {node.pool: node for node in reversed(nodes)}
    able = {name for name, node in pools.items() if CONTAINERS_LABEL in node.labels}
    others = pools.keys() - able
    asked = [pool for pool in named or sorted(able) if pool in able]
    if not asked or not isinstance(executor, PodChecker):
        return named, []
    contract, most = spec.to_contract(), sum(plan.shape.nodes for plan in spec.plans)
    refusals = {pool: list(executor.refusals(pool, spec.project, contract, most)) for pool in asked}
    good = tuple(pool for pool in asked if not refusals[pool])
    if named or len(good) == len(asked):
        return named, [one for pool in asked for one in refusals[pool]]
    # A job without keys of containers may use the other pools as well.
    left = good if spec.pod_keys else (*good, *sorted(others))
    return (left, []) if left else (named, [one for pool in asked for one in refusals[pool]])


def _demand_of(spec: JobSpec, plan: RolePlan, gang: QueuedJob) -> Demand:
    """The node requirements of one role, with the residency of the gang."""
    demand = replace(spec.to_demand(), residency=gang.residency)
    if plan.leads:
        return demand
    role = plan.to_core()
    return replace(
        demand,
        memory_per_node_bytes=role.memory_per_node_bytes,
        slot_type=role.slot_type,
        device_memory_bytes=0,
    )


def _unfit(
    spec: JobSpec, plan: RolePlan, gang: QueuedJob, at: str, usable: Nodes, where: str
) -> Problem:
    """Why one role could never be placed; `at` is its path in the spec."""
    for unmet, path, value, explain in _requirements(_demand_of(spec, plan, gang)):
        left = [node for node in usable if not unmet(node)]
        if not left:
            own = at if path.startswith("resources") else ""
            return Problem(f"{own}{path}", f"{explain(usable)} ({where})", value)
        usable = left
    return _largest(spec, plan, at, usable, where)


_Requirement = tuple[Callable[[Node], bool], str, str, Callable[[Nodes], str]]


def _largest_device(nodes: Nodes) -> str:
    return format_size(max(node.planned_device_memory_bytes for node in nodes))


def _requirements(demand: Demand) -> list[_Requirement]:
    """Requirements other than size: a test for nodes that do not meet it, path, value, explanation."""
    found: list[_Requirement] = []
    if demand.residency is not None:
        found.append(_resident(demand.residency))
    if demand.slot_type:
        found.append(
            (
                lambda n: n.slot_type != demand.slot_type,
                "resources.accelerator",
                demand.slot_type,
                lambda ns: f"no node has it; known: {_known(n.slot_type for n in ns)}",
            )
        )
    if demand.device_memory_bytes:
        found.append(
            (
                lambda n: n.planned_device_memory_bytes < demand.device_memory_bytes,
                "resources.accelerator_memory",
                format_size(demand.device_memory_bytes),
                lambda ns: f"the largest has {_largest_device(ns)}",
            )
        )
    if demand.memory_per_node_bytes:
        found.append(
            (
                lambda n: n.memory_bytes < demand.memory_per_node_bytes,
                "resources.memory",
                format_size(demand.memory_per_node_bytes),
                lambda ns: f"the largest node has {format_size(max(n.memory_bytes for n in ns))}",
            )
        )
    found += [_selected(pair) for pair in demand.selector]
    found.append(
        (
            lambda n: not set(n.taints) <= set(demand.tolerates),
            "placement.tolerate",
            ", ".join(demand.tolerates) or "nothing",
            lambda ns: f"every suitable node has taints: {_known(t for n in ns for t in n.taints)}",
        )
    )
    if demand.required not in (None, "node"):
        level = str(demand.required)
        found.append(
            (
                lambda n: level not in dict(n.domains),
                "placement.required",
                level,
                lambda ns: (
                    "no pool has that level; known: node, "
                    + _known(name for n in ns for name, _ in n.domains)
                ),
            )
        )
    return found


def _resident(allowed: tuple[str, ...]) -> _Requirement:
    def explain(nodes: Nodes) -> str:
        known = _known(residency_of(node.labels) for node in nodes)
        return f"no node has this residency, which the job or its project requires; known: {known}"

    return lambda n: not permits(allowed, n.labels), "residency", ", ".join(allowed), explain


def _selected(pair: tuple[str, str]) -> _Requirement:
    def unmet(node: Node) -> bool:
        return pair not in node.labels

    def explain(nodes: Nodes) -> str:
        values = ("=".join(label) for node in nodes for label in node.labels if label[0] == pair[0])
        return f"no node has that label; known: {_known(values)}"

    return unmet, "placement.selector", "=".join(pair), explain


def _known(names: Iterable[str]) -> str:
    found = sorted({name for name in names if name})
    return ", ".join(found[:8]) or "none"


def _largest(spec: JobSpec, plan: RolePlan, at: str, nodes: Nodes, where: str) -> Problem:
    shape, cpus = plan.shape, plan.planned_cpus
    most_cpus = max((node.num_cpus for node in nodes), default=0)
    if cpus > most_cpus:
        return Problem(
            f"{at}resources.cpus", f"the largest node {where} has {most_cpus} CPUs", str(cpus)
        )
    wide = [node for node in nodes if node.num_cpus >= cpus]
    most_slots = max((node.num_slots for node in wide), default=0)
    if shape.slots_per_node > most_slots:
        said = f"more than any node has: the largest {where} has {most_slots} slots"
        return Problem(f"{at}resources.slots_per_node", said, str(shape.slots_per_node))
    within, by_domain = _domains(spec, shape.slots_per_node, wide)
    if spec.placement.domains > 1:
        return _too_few_domains(spec, list(by_domain.values()))
    most = max(by_domain.values(), default=0)
    said = f"at most {most} × {shape.slots_per_node} slots fit in one {within}, even an empty one"
    return Problem(f"{at}resources.nodes", said, str(plan.need.nodes.low))


def _too_few_domains(spec: JobSpec, rooms: Sequence[int]) -> Problem:
    """The problem of a gang with more parts than there are domains for; `rooms` are node shares of each."""
    wish, shape = spec.placement, spec.shape
    each = shape.nodes // wish.domains
    have = sum(room >= each for room in rooms)
    said = (
        f"no pool has that many: of the level {wish.required}, {have} have {each} nodes with "
        f"{shape.slots_per_node} slots each, also when they are empty"
    )
    return Problem("placement.domains", said, str(wish.domains))


def _domains(spec: JobSpec, per_node: int, nodes: Nodes) -> tuple[str, dict[str, int]]:
    """The level that must hold the gang, and the number of its node shares that fit in each domain."""
    level = spec.placement.required
    by_domain: dict[str, int] = {}
    for node in nodes:
        name = node.pool
        if level is not None:
            name = node.id if level == "node" else dict(node.domains).get(level, "")
        room = int(node.num_slots >= per_node)
        if node.splittable and per_node:
            room = node.num_slots // per_node
        by_domain[name] = by_domain.get(name, 0) + room
    return level or "pool", by_domain
