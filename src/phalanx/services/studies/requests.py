"""What users and outside evaluators ask of a study. Each request may be repeated."""

from __future__ import annotations

from phalanx.core.search import events as e
from phalanx.core.search.model import Origin, Study, StudyState
from phalanx.errors import Conflict, NotFound, Problem, SpecInvalid
from phalanx.kit.text import study_label, trial_label
from phalanx.schemas.api.studies import (
    AskRequest,
    ExtendStudyRequest,
    Scalar,
    TellRequest,
    TrialReportRequest,
)
from phalanx.services.platform import Platform
from phalanx.services.studies.commit import ACTOR, StudyWork, transact_studies
from phalanx.store.idempotency import RequestKey, once


def pause_study(platform: Platform, num: int, now: int, actor: str) -> None:
    """Have all trials save and leave their slots. Raises NotFound, Conflict."""
    _ask(platform, num, e.StudyPaused(f"by {actor}"), StudyState.PAUSED, now, actor)


def resume_study(platform: Platform, num: int, now: int, actor: str) -> None:
    """Have the trials of a paused study go on. Raises NotFound, Conflict."""
    _ask(platform, num, e.StudyResumed(), StudyState.RUNNING, now, actor)


def stop_study(platform: Platform, num: int, now: int, actor: str, *, finish: bool = False) -> None:
    """Have all trials save and end, and the study with them. Raises NotFound, Conflict.

    With `finish`, only begin no more trials: the study ends when those that have begun have ended.
    """
    event = e.StudyStopped(f"by {actor}", finish)
    _ask(platform, num, event, StudyState.CANCELLED, now, actor)


def _ask(
    platform: Platform, num: int, event: e.StudyEvent, goal: StudyState, now: int, actor: str
) -> None:
    def work(here: StudyWork) -> None:
        study = here.study(num)
        if goal in (study.state, study.facts.ending):
            return
        if study.is_over or study.state is StudyState.STOPPING:
            said = "has ended" if study.is_over else "is stopping"
            raise Conflict(f"{study_label(num)} {said} ({study.reason})", "`extend` lets it go on")
        if study.state is StudyState.PAUSED and isinstance(event, e.StudyStopped) and event.finish:
            said = "`resume` it first, or stop it without letting its trials finish"
            raise Conflict(f"{study_label(num)} is paused: no trial of it can finish", said)
        here.apply(num, [event], actor)

    transact_studies(platform, now, work)


def extend_study(
    platform: Platform, num: int, request: ExtendStudyRequest, now: int, actor: str
) -> None:
    """Raise limits of a study; one that has ended goes on. Raises NotFound, Conflict."""
    event = e.StudyExtended(**request.model_dump())

    def work(here: StudyWork) -> None:
        if here.study(num).state is StudyState.STOPPING:
            raise Conflict(f"{study_label(num)} is stopping", "try again when it has stopped")
        here.apply(num, [event], actor)

    transact_studies(platform, now, work)


def add_trial(
    platform: Platform,
    num: int,
    params: dict[str, Scalar],
    now: int,
    actor: str,
    key: RequestKey | None = None,
) -> int:
    """Add a trial with given params, and return its number. Raises NotFound, Conflict, SpecInvalid."""

    def work(here: StudyWork) -> int:
        def add() -> int:
            study = here.study(num)
            if study.state not in (StudyState.RUNNING, StudyState.PAUSED):
                raise Conflict(f"{study_label(num)} has ended", "`extend` lets it go on")
            faults = study.policy.space.violations(params)
            if faults:
                raise SpecInvalid([Problem("params", fault) for fault in faults])
            here.apply(num, [e.TrialAdded(params, Origin("user"))], actor)
            return len(study.trials)

        return int(once(here.tx, key, add))

    return transact_studies(platform, now, work)


# -- evaluators outside the platform -------------------------------------------------------------

_OUTCOMES = {
    "completed": e.TrialOutcome.SUCCEEDED,
    "failed": e.TrialOutcome.FAILED,
    "rejected": e.TrialOutcome.REJECTED,
}


def ask_trials(
    platform: Platform, num: int, request: AskRequest, now: int, key: RequestKey | None = None
) -> list[int]:
    """Give an evaluator up to `count` trials; returns their numbers. Raises NotFound, Conflict.

    The params of a new trial come from the sampler, later.
    """

    def work(here: StudyWork) -> list[int]:
        def ask() -> list[int]:
            _outside(here.study(num), num)
            given: list[int] = []
            for _ in range(request.count):
                before = here.study(num)
                event = e.TrialAsked(request.evaluator, request.lease_s)
                if here.apply(num, [event], request.evaluator or ACTOR):
                    break
                waiting = before.index.suggested.first()
                given.append(len(before.trials) if waiting is None else waiting)
            return given

        return [int(one) for one in once(here.tx, key, ask)]

    return transact_studies(platform, now, work)


def report_trial(
    platform: Platform, num: int, trial: int, request: TrialReportRequest, now: int
) -> None:
    """Take a report of an outside evaluator. Raises NotFound, Conflict."""
    _of_evaluator(platform, num, trial, e.TrialReported(trial, request.unit, request.value), now)


def tell_trial(platform: Platform, num: int, trial: int, request: TellRequest, now: int) -> None:
    """Take the result of an outside evaluator; the first one stands. Raises NotFound, Conflict."""
    outcome = _OUTCOMES[request.outcome]
    event = e.TrialTold(trial, request.value, outcome, request.reason)
    _of_evaluator(platform, num, trial, event, now)


def _of_evaluator(platform: Platform, num: int, number: int, event: e.StudyEvent, now: int) -> None:
    def work(here: StudyWork) -> None:
        study = here.study(num)
        _outside(study, num)
        if number >= len(study.trials):
            raise NotFound(f"there is no trial {trial_label(num, number)}")
        trial = study.trials[number]
        if trial.evaluator is None and not trial.is_over:
            said = f"no evaluator has asked for {trial_label(num, number)}"
            raise Conflict(said, "ask the study for a trial")
        here.apply(num, [event], trial.evaluator or ACTOR)

    transact_studies(platform, now, work)


def _outside(study: Study, num: int) -> None:
    """Raise Conflict unless the study is evaluated outside."""
    if study.policy.jobs:
        said = f"the trials of {study_label(num)} are jobs, which evaluate themselves"
        raise Conflict(said, "leave `job` out of the spec of a study that is evaluated outside")
