"""Entitlement: what each project may count on now.

Guarantees come first, as far as they are wanted; the surplus is shared by weight, level by level of
the project tree, and nobody gets more than he wants or may have. What a project does not lend of an
unused guarantee stays empty for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from phalanx.core.scheduling.snapshot import Project


class Tier(IntEnum):
    """How well founded a claim is; lower goes first."""

    URGENT = 0
    GUARANTEED = 1
    SHARED = 2
    BORROWED = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """A project's position during one pass."""

    project: Project
    entitled: float

    def tier(self, used: int, wanted: int) -> Tier:
        """How a claim for `wanted` more slots stands, given what the project holds."""
        if used + wanted <= self.project.guaranteed_slots:
            return Tier.GUARANTEED
        if used + wanted <= self.entitled:
            return Tier.SHARED
        return Tier.BORROWED

    def level(self, used: int) -> int:
        """Use above guarantee by weight, in coarse steps, so that the shares grow side by side."""
        over = max(0.0, used + self.project.past_slots - self.project.guaranteed_slots)
        return int(over / max(self.project.weight, 1e-9))

    def over_limit(self, used: int, wanted: int) -> bool:
        """Whether the claim would break the project's own limit."""
        limit = self.project.max_slots
        return limit is not None and used + wanted > limit


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


def standings(
    projects: Mapping[str, Project],
    used: Mapping[str, int],
    demand: Mapping[str, int],
    capacity: int,
) -> dict[str, Standing]:
    """The standing of every project with quotas; empty when there are none."""
    if not projects:
        return {}
    total = {name: used.get(name, 0) + demand.get(name, 0) for name in {*used, *demand}}
    shares = entitlements(projects, total, capacity)
    return {name: Standing(project, shares[name]) for name, project in projects.items()}
