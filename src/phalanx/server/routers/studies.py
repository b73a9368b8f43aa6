"""Routes for studies: submit, check, list, show, pause, resume, stop, extend, add trials."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from phalanx.core.search.model import StudyState, TrialStatus
from phalanx.schemas.api.studies import (
    AddTrialRequest,
    ExtendStudyRequest,
    StudyCheckView,
    StudyEventPage,
    StudyPage,
    StudyView,
    SubmitStudyRequest,
    SubmitStudyResponse,
    TrialPage,
    TrialView,
)
from phalanx.server.context import Here
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
_ACTOR = "user"


@router.post("", status_code=201)
def post_study(
    here: Here, request: SubmitStudyRequest, key: IdempotencyKey = None
) -> SubmitStudyResponse:
    """Submit a study.

    A request with the key of an earlier one returns the study of that one; keys are known for a day.
    """
    now = here.clock.now()
    asked = RequestKey.of(key, now, "studies", request.model_dump_json())
    view = views.study_view(here.platform, submit_study(here.platform, request, now, asked))
    return SubmitStudyResponse(study=view, spec=view.spec or {})


@router.post("/check")
def post_check(here: Here, request: SubmitStudyRequest) -> StudyCheckView:
    """What a study would do, without submitting it."""
    return check_study(here.platform, request)


@router.get("")
def get_studies(
    here: Here,
    state: Annotated[list[StudyState] | None, Query(max_length=len(StudyState))] = None,
    project: SearchText = None,
    owner: SearchText = None,
    name: SearchText = None,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> StudyPage:
    """Studies, newest first. `before` is the `next` of the previous page."""
    states = tuple(one.value for one in state or ())
    wanted = StudyFilter(states, project, owner, name)
    return views.list_studies(here.platform, wanted, before=before, limit=limit)


@router.get("/{num}")
def get_study(here: Here, num: StudyNum) -> StudyView:
    """One study with its best trial, its rungs and its spec."""
    return views.study_view(here.platform, num)


@router.get("/{num}/trials")
def get_trials(
    here: Here,
    num: StudyNum,
    after: Annotated[int, Query(ge=-1, lt=2**63)] = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    status: Annotated[list[TrialStatus] | None, Query(max_length=len(TrialStatus))] = None,
) -> TrialPage:
    """A study's trials, in number order. `after` is the `next` of the previous page."""
    statuses = tuple(one.value for one in status or ())
    return views.list_trials(here.platform, num, after=after, limit=limit, statuses=statuses)


@router.get("/{num}/events")
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


@router.post("/{num}/trials", status_code=201)
def post_trial(
    here: Here, num: StudyNum, request: AddTrialRequest, key: IdempotencyKey = None
) -> TrialView:
    """Add a trial with given params, which starts before suggested ones."""
    now = here.clock.now()
    asked = RequestKey.of(key, now, "trials", str(num), request.model_dump_json())
    number = requests.add_trial(here.platform, num, dict(request.params), now, _ACTOR, asked)
    return views.show_trial(here.platform, num, number)


@router.post("/{num}/pause")
def post_pause(here: Here, num: StudyNum) -> StudyView:
    """Have all trials save and leave their slots; may be repeated."""
    requests.pause_study(here.platform, num, here.clock.now(), _ACTOR)
    return views.study_view(here.platform, num)


@router.post("/{num}/resume")
def post_resume_study(here: Here, num: StudyNum) -> StudyView:
    """Have the trials of a paused study go on; may be repeated."""
    requests.resume_study(here.platform, num, here.clock.now(), _ACTOR)
    return views.study_view(here.platform, num)


@router.post("/{num}/stop")
def post_stop_study(here: Here, num: StudyNum) -> StudyView:
    """Have all trials save and end, and the study with them; may be repeated."""
    requests.stop_study(here.platform, num, here.clock.now(), _ACTOR)
    return views.study_view(here.platform, num)


@router.post("/{num}/extend")
def post_extend(here: Here, num: StudyNum, request: ExtendStudyRequest) -> StudyView:
    """Set new limits of a study; one that has ended goes on."""
    requests.extend_study(here.platform, num, request, here.clock.now(), _ACTOR)
    return views.study_view(here.platform, num)
