"""Judge the objectives of job classes by the jobs that have ended within a period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from phalanx.core.jobs.faults import JobFault, fault_of_end
from phalanx.core.slo.objectives import (
    Indicator,
    JobClass,
    Judgement,
    ServiceObjective,
    SliEvent,
    class_of,
    judge,
)
from phalanx.schemas.api.health.objectives import BurnView, ObjectiveReport, ObjectivesView
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.listings.outcomes import (
    MOST_JOBS,
    EndedJob,
    RecoveredFailure,
    ended_jobs,
    recoveries,
)

_DAY_S = 86_400
_DAY_US = _DAY_S * 1_000_000


def judged_objectives(
    platform: Platform, now: int, *, days: int, projects: Sequence[str] | None
) -> ObjectivesView:
    """All objectives of all classes over the days up to now, by the jobs of these projects."""

    def read(tx: Tx) -> tuple[list[EndedJob], list[RecoveredFailure]]:
        jobs = ended_jobs(tx, now - days * _DAY_US, projects)
        restarted = sorted(one.num for one in jobs if one.restarts)
        return jobs, list(recoveries(tx, restarted))

    jobs, recovered = platform.store.view(read)
    classes = platform.classes
    named = {one.num: class_of(one.job_class, classes).name for one in jobs}
    of_class: defaultdict[str, list[EndedJob]] = defaultdict(list)
    for one in jobs:
        of_class[named[one.num]].append(one)
    back: defaultdict[str, list[RecoveredFailure]] = defaultdict(list)
    for failure in recovered:
        back[named[failure.job]].append(failure)
    found = [
        _view(
            job_class,
            judge(
                objective,
                list(_events(objective, of_class[name], back[name])),
                now,
                days * _DAY_S,
                pages=job_class.pages,
            ),
        )
        for name, job_class in sorted(classes.items())
        for objective in job_class.objectives
    ]
    return ObjectivesView(days=days, objectives=found, truncated=len(jobs) >= MOST_JOBS)


def _events(
    objective: ServiceObjective, jobs: Sequence[EndedJob], recovered: Sequence[RecoveredFailure]
) -> Iterator[SliEvent]:
    limit_s = objective.limit_s or 0.0
    match objective.indicator:
        case Indicator.SUCCESS:
            for one in jobs:
                fault = fault_of_end(one.state, one.reason, one.cause)
                if fault is not JobFault.CANCELLED:
                    yield SliEvent(one.ended_at, 1.0, float(fault is JobFault.PLATFORM))
        case Indicator.GOODPUT:
            for one in jobs:
                if one.held_s:
                    lost_s = max(0.0, one.held_s - one.productive_s)
                    yield SliEvent(one.ended_at, one.held_s, lost_s)
        case Indicator.START:
            for one in jobs:
                if one.queue_s is not None:
                    yield SliEvent(one.ended_at, 1.0, float(one.queue_s > limit_s))
        case Indicator.RECOVERY:
            for failure in recovered:
                yield SliEvent(failure.up_at, 1.0, float(failure.took_s > limit_s))


def _view(job_class: JobClass, found: Judgement) -> ObjectiveReport:
    objective = found.objective
    return ObjectiveReport(
        job_class=job_class.name,
        objective=objective.indicator.value,
        target=objective.target,
        limit_s=objective.limit_s,
        total=found.tally.total,
        bad=found.tally.bad,
        reached=1.0 - found.tally.share if found.tally.total else None,
        budget_left=found.budget_left if found.tally.total else None,
        state=found.state,
        burns=[
            BurnView(
                severity="page" if one.window.pages else "ticket",
                long_s=one.window.long_s,
                short_s=one.window.short_s,
                limit=one.window.burn,
                long_rate=one.long,
                short_rate=one.short,
                fires=one.fires,
            )
            for one in found.burns
        ],
    )
