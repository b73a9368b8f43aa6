"""What users ask of a study: pause, resume, stop, extend it, and add a trial. Each may be repeated."""

from __future__ import annotations

from phalanx.core.search import events as e
from phalanx.core.search.model import Origin, StudyState
from phalanx.errors import Conflict, Problem, SpecInvalid
from phalanx.kit.text import study_label
from phalanx.schemas.api.studies import ExtendStudyRequest, Scalar
from phalanx.services.platform import Platform
from phalanx.services.studies.commit import StudyWork, transact_studies
from phalanx.store.idempotency import RequestKey, once


def pause_study(platform: Platform, num: int, now: int, actor: str) -> None:
    """Have all trials save and leave their slots. Raises NotFound, Conflict."""
    _ask(platform, num, e.StudyPaused(f"by {actor}"), StudyState.PAUSED, now, actor)


def resume_study(platform: Platform, num: int, now: int, actor: str) -> None:
    """Have the trials of a paused study go on. Raises NotFound, Conflict."""
    _ask(platform, num, e.StudyResumed(), StudyState.RUNNING, now, actor)


def stop_study(platform: Platform, num: int, now: int, actor: str) -> None:
    """Have all trials save and end, and the study with them. Raises NotFound, Conflict."""
    _ask(platform, num, e.StudyStopped(f"by {actor}"), StudyState.CANCELLED, now, actor)


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
