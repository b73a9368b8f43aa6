"""Entitlement: the slots that each project is entitled to now.

Guarantees come first, as far as they are wanted; the surplus is shared by weight, level by level of
the project tree, and no project gets more than its demand or its limit. The part of an unused
guarantee that a project does not lend stays free for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

from phalanx.core.scheduling.model.planning_input import Project, QueuedJob


class EntitlementTier(IntEnum):
    """The entitlement tier of a request; lower goes first."""

    URGENT = 0
    GUARANTEED = 1
    SHARED = 2
    BORROWED = 3


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """A limit that a request would exceed: the project holds `holds` of at most `most` `unit`.

    With `kept_for` the room below the limit is kept for that job. With `user` only the jobs of this user
    count, with `slot_type` only slots of this type.
    """

    project: str  # the project of the job, or one above it; empty: the whole platform
    unit: Literal["slots", "jobs"]  # what the limit counts
    holds: int
    most: int
    kept_for: int | None = None
    user: str = ""
    slot_type: str = ""


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """A project's position during one pass. `above` are the projects it is part of, nearest first.

    What a project holds or is granted counts for every project above it too: `used` maps each name
    to what it and its parts hold together.
    """

    project: Project
    entitled: float
    above: tuple[Project, ...] = ()

    @property
    def lineage(self) -> tuple[Project, ...]:
        """The project itself and those above it."""
        return (self.project, *self.above)

    def tier(self, used: Mapping[str, int], wanted: int) -> EntitlementTier:
        """Return the tier of a request for `wanted` more slots, given the current use."""
        if self.is_guaranteed(used, wanted):
            return EntitlementTier.GUARANTEED
        if used.get(self.project.name, 0) + wanted <= self.entitled:
            return EntitlementTier.SHARED
        return EntitlementTier.BORROWED

    def is_guaranteed(
        self, used: Mapping[str, int], wanted: int, against: Collection[str] = ()
    ) -> bool:
        """Whether `wanted` more slots are within its guarantee, or one that it is part of.

        `against` names projects that the other side is part of too: their guarantees settle nothing.
        """
        return any(
            used.get(one.name, 0) + wanted <= one.guaranteed_slots
            for one in self.lineage
            if one.name not in against
        )

    def over_guarantee(self, used: Mapping[str, int]) -> tuple[int, ...]:
        """Use above guarantee by weight, the widest project first, so that shares grow side by side."""
        return tuple(_over(one, used.get(one.name, 0)) for one in reversed(self.lineage))

    def over_limit(
        self, used: Mapping[str, int], num_jobs: Mapping[str, int], wanted: int
    ) -> QuotaLimit | None:
        """Return the first limit, its own or one above, that a job of `wanted` slots would exceed.

        `num_jobs` maps each name to the jobs that hold slots, those of its parts included.
        """
        for one in self.lineage:
            slots, jobs = used.get(one.name, 0), num_jobs.get(one.name, 0)
            if one.max_slots is not None and slots + wanted > one.max_slots:
                return QuotaLimit(one.name, "slots", slots, one.max_slots)
            if one.max_running is not None and jobs >= one.max_running:
                return QuotaLimit(one.name, "jobs", jobs, one.max_running)
        return None

    @property
    def most_slots(self) -> float:
        """Return the slots that all its limits allow on an empty cluster."""
        limits = [one.max_slots for one in self.lineage if one.max_slots is not None]
        return min(limits, default=float("inf"))

    def left(self, used: Mapping[str, int]) -> int | None:
        """Slots that all its limits still allow; None if nothing limits it."""
        limits = [
            max(one.max_slots - used.get(one.name, 0), 0)
            for one in self.lineage
            if one.max_slots is not None
        ]
        return min(limits, default=None)


def _over(project: Project, used: int) -> int:
    over = max(0.0, used + project.past_slots - project.guaranteed_slots)
    return int(over / max(project.weight, 1e-9))


def lineage(projects: Mapping[str, Project], name: str) -> tuple[Project, ...]:
    """A project and those it is part of, nearest first; nothing for a name that is not a project."""
    found: list[Project] = []
    here = projects.get(name)
    while here is not None and here not in found:
        found.append(here)
        here = projects.get(here.parent)
    return tuple(found)


def never_allowed(projects: Mapping[str, Project], job: QueuedJob) -> list[Project]:
    """Return the projects, its own and those above, with a limit below the least size of a job."""
    return [
        one
        for one in lineage(projects, job.project)
        if one.max_slots is not None and job.least_slots > one.max_slots
    ]


def rolled_up(projects: Mapping[str, Project], amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts by project, those of its parts included."""
    found = {name: amount for name, amount in amounts.items() if name not in projects}
    for name, amount in amounts.items():
        for one in lineage(projects, name):
            found[one.name] = found.get(one.name, 0) + amount
    return found


def entitlements(
    projects: Mapping[str, Project], demand: Mapping[str, int], capacity: int
) -> dict[str, float]:
    """Slots each project may count on. `demand` is what it holds plus what it waits for."""
    children: dict[str, list[Project]] = {}
    for project in projects.values():
        parent = project.parent if project.parent in projects else ""
        children.setdefault(parent, []).append(project)
    wanted = {name: _demand_below(name, children, demand) for name in projects}
    shares: dict[str, float] = {}
    _divide("", float(capacity), children, wanted, shares)
    return shares


def _demand_below(
    name: str, children: Mapping[str, list[Project]], demand: Mapping[str, int]
) -> float:
    own = float(demand.get(name, 0))
    return own + sum(
        _demand_below(child.name, children, demand) for child in children.get(name, ())
    )


def _divide(
    parent: str,
    capacity: float,
    children: Mapping[str, list[Project]],
    wanted: Mapping[str, float],
    shares: dict[str, float],
) -> None:
    here = children.get(parent, [])
    ceiling = {p.name: min(wanted[p.name], _limit(p)) for p in here}
    got = {p.name: min(ceiling[p.name], float(p.guaranteed_slots)) for p in here}
    left = capacity - sum(got.values()) - sum(_kept(p, got[p.name]) for p in here)
    open_ = [p for p in here if got[p.name] < ceiling[p.name]]
    while open_ and left > 1e-9:
        step = min((ceiling[p.name] - got[p.name]) / max(p.weight, 1e-9) for p in open_)
        step = min(step, left / sum(max(p.weight, 1e-9) for p in open_))
        for p in open_:
            got[p.name] += step * max(p.weight, 1e-9)
        left -= step * sum(max(p.weight, 1e-9) for p in open_)
        open_ = [p for p in open_ if ceiling[p.name] - got[p.name] > 1e-9]
    for p in here:
        shares[p.name] = got[p.name]
        if p.name in children:
            _divide(p.name, got[p.name], children, wanted, shares)


def _limit(project: Project) -> float:
    return float("inf") if project.max_slots is None else float(project.max_slots)


def _kept(project: Project, got: float) -> float:
    """The part of an unused guarantee that is not lent."""
    unused = max(0.0, project.guaranteed_slots - got)
    if project.lend_slots is None:
        return 0.0
    return max(0.0, unused - project.lend_slots)


def project_shares(
    projects: Mapping[str, Project],
    used: Mapping[str, int],
    demand: Mapping[str, int],
    capacity: int,
) -> dict[str, ProjectShare]:
    """Return the share of every project with quotas; empty when there are none."""
    if not projects:
        return {}
    total = {name: used.get(name, 0) + demand.get(name, 0) for name in {*used, *demand}}
    shares = entitlements(projects, total, capacity)
    past = {name: project.past_slots for name, project in projects.items()}
    for name, project in projects.items():
        for one in lineage(projects, name)[1:]:
            past[one.name] += project.past_slots
    whole = {name: replace(project, past_slots=past[name]) for name, project in projects.items()}
    return {
        name: ProjectShare(project, shares[name], lineage(whole, name)[1:])
        for name, project in whole.items()
    }
