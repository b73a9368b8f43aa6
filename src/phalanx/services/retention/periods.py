"""The retention periods of each project: its own, those of its ancestors, or those of the platform."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from phalanx.core.retention.policy import (
    FAILED_LOGS,
    FOREVER,
    DataKind,
    RetentionPeriods,
    effective,
)
from phalanx.errors import SpecInvalid
from phalanx.schemas.pools.project_file import ProjectSpec, lineage
from phalanx.schemas.pools.retain import RetainSpec, shown_period
from phalanx.schemas.spec.document import problems_of
from phalanx.services.platform import Platform
from phalanx.store import resources
from phalanx.store.database import Tx
from phalanx.store.jobs import JobsOf
from phalanx.store.resources import Applied


@dataclass(frozen=True, slots=True)
class RetentionScope:
    """Projects with the same periods. `projects` None: every one but those of `others`."""

    periods: RetentionPeriods
    projects: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()

    @property
    def jobs(self) -> JobsOf:
        """The jobs of these projects."""
        return JobsOf(self.projects, self.others)

    @property
    def outputs(self) -> tuple[tuple[JobsOf, float], ...]:
        """The jobs with output that expires, and its period in seconds: failed ones may be kept longer."""
        others, failed = (self.periods.logs_of(failed=one) for one in (False, True))
        if others == failed:
            given = [(self.jobs, others)]
        else:
            given = [
                (replace(self.jobs, failed=False), others),
                (replace(self.jobs, failed=True), failed),
            ]
        return tuple((among, one) for among, one in given if one is not None and one != FOREVER)


def scopes(platform: Platform, tx: Tx) -> list[RetentionScope]:
    """All projects, by their periods; the last scope has those without periods of their own."""
    default = platform.retention.periods
    own: dict[RetentionPeriods, list[str]] = defaultdict(list)
    for name, periods in _of_projects(platform, tx).items():
        if periods != default:
            own[periods].append(name)
    found = [RetentionScope(one, tuple(sorted(names))) for one, names in own.items()]
    others = tuple(sorted(name for one in found for name in one.projects or ()))
    return [*found, RetentionScope(default, None, others)]


def periods_of(platform: Platform, tx: Tx, project: str) -> RetentionPeriods:
    """The periods of one project."""
    return _of_projects(platform, tx).get(project, platform.retention.periods)


def shown_periods(periods: RetentionPeriods) -> dict[str, str]:
    """Periods in words, by kind; that of the output of failed jobs behind that of output."""
    shown = {kind.value: shown_period(periods.of(kind)) for kind in DataKind}
    failed = shown_period(periods.logs_of(failed=True))
    return {DataKind.LOGS.value: shown.pop(DataKind.LOGS.value), FAILED_LOGS: failed, **shown}


def set_periods(
    platform: Platform, name: str, changes: Mapping[str, Any], now: int, actor: str
) -> None:
    """Change the periods of a project; what `changes` leaves out stays, None removes one.

    A project that no file names gets an entry without limits. Raises SpecInvalid.
    """
    try:
        wanted = RetainSpec.model_validate(dict(changes))
        fresh = ProjectSpec.model_validate({"name": name})
    except ValidationError as error:
        raise SpecInvalid(problems_of(error.errors(include_url=False), RetainSpec)) from None

    def work(tx: Tx) -> None:
        before = {one.name: ProjectSpec(**one.body) for one in resources.projects.now(tx)}
        spec = before.get(name) or fresh
        both = {**spec.retain.model_dump(), **wanted.model_dump(include=set(changes))}
        after = spec.model_copy(update={"retain": RetainSpec.model_validate(both)})
        if after != before.get(name):
            row = Applied(name, after.model_dump(mode="json"), now, actor)
            resources.projects.put(tx, [row])

    platform.store.transact(work)


def shortest(found: Sequence[RetentionScope], kind: DataKind) -> float | None:
    """The shortest period of a kind in any scope, in seconds; None: it is kept without limit."""
    known = [period for one in found if (period := one.periods.of(kind)) is not None]
    return min(known, default=None)


def _of_projects(platform: Platform, tx: Tx) -> Mapping[str, RetentionPeriods]:
    specs = {one.name: ProjectSpec(**one.body) for one in resources.projects.now(tx)}
    return {
        name: effective(
            platform.retention.periods, (one.retain.chosen for one in lineage(specs, name))
        )
        for name in specs
    }
