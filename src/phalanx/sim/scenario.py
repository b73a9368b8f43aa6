"""Scenarios of a replay: cluster, quotas, price and policy, and their `--what-if` changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import Node
from phalanx.core.scheduling import DEFAULT_POLICY, NAMED_POLICIES, Project
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster
from phalanx.core.scheduling.model.entitlement import never_allowed
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.core.scheduling.model.quotas import NarrowLimits
from phalanx.core.scheduling.stages.preference import NOTHING
from phalanx.errors import UserError
from phalanx.kit.units import parse_duration
from phalanx.sim.cluster.engine import Result, simulate
from phalanx.sim.costs import Costs
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SimulationSetup
from phalanx.sim.output.report import ProjectRow, RunFigures, figures, project_rows
from phalanx.sim.peers.catalog import POLICIES
from phalanx.sim.workload import faults, traces

_EXAMPLE = "write for example nodes=+4, policy=las, quota.vision=64 or price=1.90"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One column of a comparison.

    Without `prefer` the planner prefers the narrowest level and its peers none; "none" is no level.
    """

    policy: str = "phalanx"  # name in the catalog
    planner: str = DEFAULT_POLICY  # named policy of the production planner
    num_nodes: int = 16  # nodes, or at most so many of `topology`
    slots_per_node: int = 8  # slots of each node of the grid
    rack: int = 16  # nodes of each rack of the grid
    projects: tuple[Project, ...] = ()  # quotas
    price: float = 0.0  # of one slot for an hour, used or not
    failures: float = 0.0  # multiple of the published failure rates
    costs: Costs = Costs()  # times of starts, saves and restarts
    seed: int = 0  # of the drawn failures
    topology: tuple[Node, ...] = ()  # nodes of a topology file; empty: a grid
    label: str = ""  # added to the policy name in reports
    prefer: str = ""  # topology level that every gang insists on at first
    patience_s: float | None = None  # time in the queue for which it insists
    users: tuple[UserQuota, ...] = ()  # quotas of users on the whole platform

    def nodes(self) -> list[Node]:
        """The nodes: those of a topology file, else a grid."""
        if self.topology:
            return list(self.topology[: self.num_nodes])
        return traces.grid_nodes(self.num_nodes, self.slots_per_node, self.rack)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scenario that was run, with its figures."""

    scenario: Scenario
    figures: RunFigures
    projects: tuple[ProjectRow, ...]
    result: Result


def run(scenario: Scenario, jobs: Sequence[TraceJob], audit_every: int = 0) -> Outcome:
    """Replay the jobs. Raises UserError for jobs that the cluster could never hold."""
    nodes = scenario.nodes()
    check_fit(jobs, nodes, scenario.projects, scenario.users)
    jobs = _patient(jobs, nodes, scenario)
    span_s = max((job.submit_s + job.duration_s for job in jobs), default=0.0) * 1.5
    rates = faults.PUBLISHED.times(scenario.failures)
    outages, crashes = faults.draw(rates, nodes, span_s, scenario.seed)
    setup = SimulationSetup(
        nodes,
        scenario.projects,
        NAMED_POLICIES[scenario.planner],
        costs=scenario.costs,
        outages=outages,
        crashes=crashes,
        audit_every=audit_every,
        sample_s=max(span_s / 1500.0, 60.0),
        users=scenario.users,
    )
    result = simulate(jobs, setup, POLICIES[scenario.policy]())
    row = figures(result, price=scenario.price)
    named = replace(row, policy=f"{scenario.policy}{scenario.label}")
    return Outcome(scenario, named, project_rows(result, scenario.price), result)


def _patient(
    jobs: Sequence[TraceJob], nodes: Sequence[Node], scenario: Scenario
) -> Sequence[TraceJob]:
    level, patience_s = scenario.prefer, scenario.patience_s
    if not level:
        return jobs
    levels = dict.fromkeys(name for node in nodes for name, _ in node.domains)
    if level != NOTHING and level not in levels:
        raise UserError(f"the nodes have no level {level!r}", f"known: {', '.join(levels)}")
    return [
        replace(job, preferred=level, patience_s=patience_s) if job.shape.nodes > 1 else job
        for job in jobs
    ]


def check_fit(
    jobs: Sequence[TraceJob],
    nodes: Sequence[Node],
    projects: Sequence[Project] = (),
    users: Sequence[UserQuota] = (),
) -> None:
    """Refuse jobs that can never run, naming the first. Raises UserError."""
    empty, tree = EmptyCluster(nodes), {project.name: project for project in projects}
    narrow = NarrowLimits.of(tree, users)
    types = {node.slot_type for node in nodes}
    for job in (traced.waiting() for traced in jobs):
        if not empty.can_hold(job):
            total = sum(node.num_slots for node in nodes)
            raise UserError(
                f"job {job.num} needs {job.shape.nodes} × {job.shape.slots_per_node} slots; "
                f"the cluster has {len(nodes)} nodes with {total}",
                "give more --nodes, or another trace",
            )
        for project in never_allowed(tree, job):
            raise UserError(
                f"job {job.num} needs {job.least_slots} slots; project {project.name} may hold "
                f"{project.max_slots}",
                f"raise quota.{project.name}",
            )
        for limit in [] if narrow is None else narrow.never_allowed(job, types):
            holder = f"user {limit.user}" if limit.user else f"project {limit.project}"
            raise UserError(
                f"job {job.num} needs {job.least_slots} slots; {holder} may hold {limit.most}",
                "apply a project file with a larger quota, or give --quota to use no stored one",
            )


def changed(scenario: Scenario, text: str) -> Scenario:
    """The scenario with the changes of `--what-if`: `key=value`, several behind commas.

    Raises UserError that says what can be changed.
    """
    made = scenario
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or not value:
            raise UserError(f"--what-if {text}: {_EXAMPLE}")
        noun, _, name = key.partition(".")
        change = _CHANGES.get(noun)
        if change is None or bool(name) != (noun in _PER_PROJECT):
            raise UserError(f"--what-if {text}: {key!r} cannot be changed; {_EXAMPLE}")
        made = change(made, name, value)
    return replace(made, label=f" [{text}]")


def with_project(scenario: Scenario, name: str, **more: object) -> Scenario:
    """The scenario with one project changed, or added."""
    known = {project.name: project for project in scenario.projects}
    project = replace(known.get(name, Project(name)), **more)  # type: ignore[arg-type]
    return replace(scenario, projects=tuple((known | {name: project}).values()))


def whole(text: str, now: int, what: str) -> int:
    """A count, or a difference to `now` with a sign before it. Raises UserError."""
    try:
        value = int(text)
    except ValueError:
        raise UserError(f"{what}={text} is not a whole number; {_EXAMPLE}") from None
    value = now + value if text[0] in "+-" else value
    if value < 1:
        raise UserError(f"{what}={text}: must leave at least 1")
    return value


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{what}={text} is not a number; {_EXAMPLE}") from None
    if not 0 <= value < 1e12:
        raise UserError(f"{what}={text} must not be negative")
    return value


def _nodes(scenario: Scenario, _: str, value: str) -> Scenario:
    return replace(scenario, num_nodes=whole(value, scenario.num_nodes, "nodes"))


def _policy(scenario: Scenario, _: str, value: str) -> Scenario:
    if value not in POLICIES:
        raise UserError(f"unknown policy {value!r}; known: {', '.join(POLICIES)}")
    return replace(scenario, policy=value)


def planner_named(name: str) -> str:
    """A named policy of the production planner. Raises UserError."""
    if name not in NAMED_POLICIES:
        raise UserError(f"unknown planning policy {name!r}; known: {', '.join(NAMED_POLICIES)}")
    return name


def _planner(scenario: Scenario, _: str, value: str) -> Scenario:
    return replace(scenario, policy="phalanx", planner=planner_named(value))


def _price(scenario: Scenario, _: str, value: str) -> Scenario:
    return replace(scenario, price=_number(value, "price"))


def _failures(scenario: Scenario, _: str, value: str) -> Scenario:
    return replace(scenario, failures=_number(value, "failures"))


def _prefer(scenario: Scenario, _: str, value: str) -> Scenario:
    return replace(scenario, prefer=value)


def _patience(scenario: Scenario, _: str, value: str) -> Scenario:
    try:
        return replace(scenario, patience_s=parse_duration(value))
    except ValueError as error:
        raise UserError(f"patience={value}: {error}") from None


def _quota(scenario: Scenario, name: str, value: str) -> Scenario:
    known = next((p.max_slots for p in scenario.projects if p.name == name), None)
    return with_project(scenario, name, max_slots=whole(value, known or 0, f"quota.{name}"))


def _guarantee(scenario: Scenario, name: str, value: str) -> Scenario:
    known = next((p.guaranteed_slots for p in scenario.projects if p.name == name), 0)
    slots = whole(value, known, f"guarantee.{name}")
    return with_project(scenario, name, guaranteed_slots=slots)


def _weight(scenario: Scenario, name: str, value: str) -> Scenario:
    return with_project(scenario, name, weight=_number(value, f"weight.{name}"))


_PER_PROJECT = frozenset({"quota", "guarantee", "weight"})
_CHANGES: dict[str, Callable[[Scenario, str, str], Scenario]] = {
    "nodes": _nodes,
    "policy": _policy,
    "planner": _planner,
    "price": _price,
    "failures": _failures,
    "prefer": _prefer,
    "patience": _patience,
    "quota": _quota,
    "guarantee": _guarantee,
    "weight": _weight,
}
