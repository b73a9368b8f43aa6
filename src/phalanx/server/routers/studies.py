"""Routes for studies: submit, check, list, show and change them; ask, report and tell for evaluators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from phalanx.core.search.model import StudyState, TrialStatus
from phalanx.core.tenancy.roles import Permission
from phalanx.schemas.api.studies import (
    AddTrialRequest,
    AskRequest,
    AskResponse,
    ExtendStudyRequest,
    StudyCheckView,
    StudyEventPage,
    StudyPage,
    StudyResultsView,
    StudyView,
    SubmitStudyRequest,
    SubmitStudyResponse,
    TellRequest,
    TrialPage,
    TrialReportRequest,
    TrialView,
)
from phalanx.server.access import Of, needs
from phalanx.server.context import By, Here, in_thread
from phalanx.server.strict_requests import (
    IdempotencyKey,
    Number,
    SearchText,
    StrictRoute,
    Wait,
)
from phalanx.services.queries import studies as views
from phalanx.services.studies import requests
from phalanx.services.studies.commit import study_topic
from phalanx.services.studies.submit import check_study, submit_study
from phalanx.store.idempotency import RequestKey
from phalanx.store.studies.rows import StudyFilter

router = APIRouter(prefix="/api/v1/studies", tags=["studies"], route_class=StrictRoute)
StudyNum = Annotated[int, Path(alias="num", ge=1, lt=2**63, description="Number of the study.")]
TrialNumber = Annotated[
    int, Path(alias="trial", ge=0, lt=2**63, description="Number of the trial in its study.")
]


@router.post("", status_code=201, openapi_extra=needs(Permission.JOBS_SUBMIT, Of.BODY))
def post_study(
    here: Here, by: By, request: SubmitStudyRequest, key: IdempotencyKey = None
) -> SubmitStudyResponse:
    """Submit a study.

    A request with the key of an earlier one returns the study of that one; keys are known for a day.
    """
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "studies", request.model_dump_json())
    num = submit_study(here.platform, request, now, asked, by=by)
    view = views.study_view(here.platform, num, now)
    return SubmitStudyResponse(study=view, spec=view.spec or {})


@router.post("/check", openapi_extra=needs(Permission.JOBS_SUBMIT, Of.BODY))
def post_check(here: Here, by: By, request: SubmitStudyRequest) -> StudyCheckView:
    """What a study would do, without submitting it."""
    return check_study(here.platform, request, by)


@router.get("", openapi_extra=needs(Permission.JOBS_READ, Of.ANY))
def get_studies(  # noqa: PLR0913
    here: Here,
    by: By,
    state: Annotated[list[StudyState] | None, Query(max_length=len(StudyState))] = None,
    project: SearchText = None,
    owner: SearchText = None,
    name: SearchText = None,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> StudyPage:
    """Studies, newest first. `before` is the `next` of the previous page."""
    states = tuple(one.value for one in state or ())
    wanted = StudyFilter(states, project, owner, name, by.projects(Permission.JOBS_READ))
    return views.list_studies(here.platform, wanted, before=before, limit=limit)


@router.get("/{num}", openapi_extra=needs(Permission.JOBS_READ, Of.STUDY))
def get_study(here: Here, num: StudyNum) -> StudyView:
    """One study with its best trial, its rungs and its spec."""
    return views.study_view(here.platform, num, here.clock.now())


@router.get("/{num}/results", openapi_extra=needs(Permission.JOBS_READ, Of.STUDY))
def get_results(here: Here, num: StudyNum) -> StudyResultsView:
    """What a study has found: how much each parameter matters, and its trials as parallel coordinates.

    Of a study with more than 1,000 trials, those that its sampler learns from.
    """
    return views.study_results(here.platform, num, here.clock.now())


@router.get("/{num}/trials", openapi_extra=needs(Permission.JOBS_READ, Of.STUDY))
def get_trials(
    here: Here,
    num: StudyNum,
    after: Annotated[int, Query(ge=-1, lt=2**63)] = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    status: Annotated[list[TrialStatus] | None, Query(max_length=len(TrialStatus))] = None,
) -> TrialPage:
    """A study's trials, in number order. `after` is the `next` of the previous page."""
    statuses = tuple(one.value for one in status or ())
    now = here.clock.now()
    return views.list_trials(here.platform, num, now, after=after, limit=limit, statuses=statuses)


@router.get("/{num}/events", openapi_extra=needs(Permission.JOBS_READ, Of.STUDY))
async def get_study_events(
    here: Here, num: StudyNum, after: Number = 0, wait_s: Wait = 0.0
) -> StudyEventPage:
    """The study's events after number `after`; waits up to `wait_s` seconds for new ones."""
    return await here.poll_until(
        (study_topic(num),),
        wait_s,
        lambda: views.study_event_page(here.platform, num, after=after),
        lambda page: bool(page.events) or page.done,
    )


@router.post(
    "/{num}/trials", status_code=201, openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY)
)
def post_trial(
    here: Here, by: By, num: StudyNum, request: AddTrialRequest, key: IdempotencyKey = None
) -> TrialView:
    """Add a trial with given params, which starts before suggested ones."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "trials", str(num), request.model_dump_json())
    number = requests.add_trial(here.platform, num, dict(request.params), now, by.actor, asked)
    return views.show_trial(here.platform, num, number)


@router.post("/{num}/pause", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
def post_pause(here: Here, by: By, num: StudyNum) -> StudyView:
    """Have all trials save and leave their slots; may be repeated."""
    requests.pause_study(here.platform, num, here.clock.now(), by.actor)
    return views.study_view(here.platform, num, here.clock.now())


@router.post("/{num}/resume", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
def post_resume_study(here: Here, by: By, num: StudyNum) -> StudyView:
    """Have the trials of a paused study go on; may be repeated."""
    requests.resume_study(here.platform, num, here.clock.now(), by.actor)
    return views.study_view(here.platform, num, here.clock.now())


@router.post("/{num}/stop", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
def post_stop_study(here: Here, by: By, num: StudyNum, finish: bool = False) -> StudyView:
    """Have all trials save and end, and the study with them; may be repeated.

    With `finish`, no more trials begin, and the study ends when those that have begun have ended.
    """
    requests.stop_study(here.platform, num, here.clock.now(), by.actor, finish=finish)
    return views.study_view(here.platform, num, here.clock.now())


@router.post("/{num}/extend", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
def post_extend(here: Here, by: By, num: StudyNum, request: ExtendStudyRequest) -> StudyView:
    """Set new limits of a study; one that has ended goes on."""
    requests.extend_study(here.platform, num, request, here.clock.now(), by.actor)
    return views.study_view(here.platform, num, here.clock.now())


@router.post("/{num}/ask", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
async def post_ask(
    here: Here,
    by: By,
    num: StudyNum,
    request: AskRequest,
    key: IdempotencyKey = None,
    wait_s: Wait = 0.0,
) -> AskResponse:
    """Ask for trials of a study without a job, to evaluate outside of the platform.

    Waits up to `wait_s` seconds for their params. A request with the key of an earlier one returns the
    trials of that one, but those that are over.
    """
    now = here.clock.now()
    asked = RequestKey.of(key, now, by.actor, "ask", str(num), request.model_dump_json())
    numbers = await in_thread(lambda: requests.ask_trials(here.platform, num, request, now, asked))
    return await here.poll_until(
        (study_topic(num),),
        wait_s,
        lambda: views.asked_trials(here.platform, num, numbers),
        lambda found: not found.waiting or found.done,
    )


@router.post("/{num}/trials/{trial}/report", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
def post_report(
    here: Here, num: StudyNum, trial: TrialNumber, request: TrialReportRequest
) -> TrialView:
    """Report a value of a trial that is evaluated outside; one that is over afterwards should stop.

    The first report of a unit stands. Each report begins the evaluator's lease anew.
    """
    requests.report_trial(here.platform, num, trial, request, here.clock.now())
    return views.show_trial(here.platform, num, trial)


@router.post("/{num}/trials/{trial}/tell", openapi_extra=needs(Permission.JOBS_CHANGE, Of.STUDY))
def post_tell(here: Here, num: StudyNum, trial: TrialNumber, request: TellRequest) -> TrialView:
    """Tell how a trial that was evaluated outside has ended; may be repeated, and the first one stands."""
    requests.tell_trial(here.platform, num, trial, request, here.clock.now())
    return views.show_trial(here.platform, num, trial)
