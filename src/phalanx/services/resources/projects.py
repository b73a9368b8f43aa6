"""Projects: apply a project file, remove a project, and show limits, usage and entitlement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.scheduling.model.entitlement import entitlements, rolled_up
from phalanx.core.scheduling.model.planner_state import past_slots
from phalanx.errors import Conflict, NotFound, SpecInvalid
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.pools import ApplyResponse, ProjectView
from phalanx.schemas.pools.project_file import (
    ProjectSpec,
    UserQuotaSpec,
    check_tree,
    read_projects,
)
from phalanx.services.lifecycle.commit import QUEUE
from phalanx.services.platform import Platform
from phalanx.services.quotas.usage import quota_views, slot_types, uses_now
from phalanx.services.resources.inventory import change_views, suggestion
from phalanx.services.resources.stores import replace_stores, tell_outside
from phalanx.services.retention.periods import periods_of, shown_periods
from phalanx.store import planning, resources
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.quotas import rows as quotas
from phalanx.store.resources import Applied


def apply_projects(
    platform: Platform, file: Mapping[str, Any], now: int, actor: str
) -> ApplyResponse:
    """Add or replace the projects of a file, all or none. Raises SpecInvalid with every problem.

    The warnings name running jobs that are outside their residency now, which get an event.
    """
    found = read_projects(file)
    num_slots = sum(node.num_slots for node in platform.cluster())

    def work(tx: Tx) -> ApplyResponse:
        if found.users is not None:
            _apply_users(tx, found.users, now, actor)
        if found.stores is not None:
            replace_stores(tx, found.stores, now, actor)
        before = {one.name: ProjectSpec(**one.body) for one in resources.projects.now(tx)}
        after = {**before, **{project.name: project for project in found.projects}}
        problems = check_tree(after.values())
        if problems:
            raise SpecInvalid(problems)
        changed = [one for one in found.projects if before.get(one.name) != one]
        resources.projects.put(
            tx, [Applied(one.name, one.model_dump(mode="json"), now, actor) for one in changed]
        )
        tx.touched.topics.add(QUEUE)
        return ApplyResponse(
            changes=change_views([one.name for one in found.projects], before, changed),
            warnings=_too_generous(after.values(), num_slots),
        )

    done = platform.store.transact(work)
    told = tell_outside(platform, now, actor)
    return done.model_copy(update={"warnings": [*done.warnings, *told]})


def _apply_users(tx: Tx, users: Mapping[str, UserQuotaSpec], now: int, actor: str) -> None:
    """Replace the quotas of users on the whole platform."""
    before = {one.name: UserQuotaSpec(**one.body) for one in quotas.users.now(tx)}
    for name in before.keys() - users.keys():
        quotas.users.remove(tx, name)
    changed = [(name, one) for name, one in users.items() if before.get(name) != one]
    quotas.users.put(
        tx, [Applied(name, one.model_dump(mode="json"), now, actor) for name, one in changed]
    )


def _too_generous(projects: Iterable[ProjectSpec], num_slots: int) -> list[str]:
    promised = sum(one.guaranteed_slots for one in projects if one.parent is None)
    if promised <= num_slots:
        return []
    total = f"{promised} slots are guaranteed, the pools have {num_slots}"
    return [f"{total}: not all guarantees can be kept at the same time"]


def remove_project(platform: Platform, name: str, now: int, actor: str) -> None:
    """Remove a project's limits; its jobs go on. Raises NotFound, Conflict for a parent of others."""

    def work(tx: Tx) -> None:
        before = {one.name: ProjectSpec(**one.body) for one in resources.projects.now(tx)}
        if name not in before:
            raise NotFound(
                f"there is no project {name} from a project file", suggestion(name, before)
            )
        parts = [one.name for one in before.values() if one.parent == name]
        if parts:
            raise Conflict(
                f"project {name} is the parent of {', '.join(parts)}", "remove them first"
            )
        resources.projects.remove(tx, name)
        tx.touched.topics.add(QUEUE)

    platform.store.transact(work)
    tell_outside(platform, now, actor)


def list_projects(platform: Platform, now: int) -> list[ProjectView]:
    """Projects with limits, and projects that live jobs name. Raises ExecutorUnavailable."""
    num_slots = sum(node.num_slots for node in platform.cluster() if not node.closed)

    def work(tx: Tx) -> list[ProjectView]:
        applied = {one.name: one for one in resources.projects.now(tx)}
        usage = planning.usage_now(tx)
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        counted = _count(waiting, holding)
        specs = {name: ProjectSpec(**one.body) for name, one in applied.items()}
        half_life_s = platform.policy.half_life_s
        tree = {name: spec.to_core() for name, spec in specs.items()}
        below = rolled_up(tree, {name: one.held for name, one in counted.items()})
        entitled = entitlements(
            tree,
            {name: one.held + one.waiting_slots for name, one in counted.items()},
            num_slots,
        )
        return [
            _project(
                name,
                specs.get(name),
                counted.get(name, _Count()),
                entitled.get(name),
                past_slots(usage.get(name), half_life_s, now),
                applied[name].applied_at if name in applied else None,
            ).model_copy(update={"child_slots": below.get(name, 0) - _held(counted, name)})
            for name in sorted({*applied, *counted})
        ]

    return platform.store.view(work)


def show_project(
    platform: Platform, name: str, now: int, seen: Sequence[str] | None = None
) -> ProjectView:
    """One project with its part of the project file. Raises NotFound, ExecutorUnavailable.

    `seen` are the projects that the caller may see; None: all.
    """
    views = {one.name: one for one in list_projects(platform, now)}
    if name not in views:
        shown = [one for one in views if seen is None or one in seen]
        raise NotFound(f"there is no project {name}", suggestion(name, shown))
    types = slot_types(platform)
    applied, uses, periods = platform.store.view(
        lambda tx: (
            resources.projects.now(tx),
            uses_now(platform, tx, types),
            periods_of(platform, tx, name),
        )
    )
    spec = next((dict(one.body) for one in applied if one.name == name), None)
    own = quota_views(uses, lambda key: key.project == name)
    kept = shown_periods(periods)
    return views[name].model_copy(update={"spec": spec, "quotas": own, "retain": kept})


@dataclass(slots=True)
class _Count:
    held: int = 0
    running: int = 0
    waiting: int = 0
    waiting_slots: int = 0


def _count(waiting: Sequence[StoredJob], holding: Sequence[StoredJob]) -> Mapping[str, _Count]:
    counted: dict[str, _Count] = {}
    for one in waiting:
        count = counted.setdefault(one.facts.project, _Count())
        count.waiting += 1
        count.waiting_slots += one.job.policy.num_slots
    for one in holding:
        count = counted.setdefault(one.facts.project, _Count())
        count.running += 1
        count.held += 0 if one.job.attempt is None else one.job.attempt.num_slots
    return counted


def _held(counted: Mapping[str, _Count], name: str) -> int:
    return counted[name].held if name in counted else 0


def _project(
    name: str,
    spec: ProjectSpec | None,
    count: _Count,
    entitled: float | None,
    average: float,
    applied_at: int | None,
) -> ProjectView:
    limits = ProjectSpec(name=name) if spec is None else spec
    return ProjectView.of(
        limits,
        retain={},
        residency=list(limits.residency),
        max_slots=limits.quota,
        required_labels={name: one.expected for name, one in limits.required_labels.items()},
        held_slots=count.held,
        num_running=count.running,
        num_waiting=count.waiting,
        waiting_slots=count.waiting_slots,
        entitled_slots=None if entitled is None else round(entitled, 3),
        average_slots=round(average, 3),
        applied_at=at_or_none(applied_at),
    )
