"""The routes about studies: submission, check, state, trials, events, and changes of a running study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import httpx

from phalanx.kit.text import random_hex
from phalanx.schemas.api.studies import (
    AddTrialRequest,
    ExtendStudyRequest,
    Scalar,
    StudyCheckView,
    StudyEventPage,
    StudyPage,
    StudyView,
    SubmitStudyRequest,
    SubmitStudyResponse,
    TrialPage,
    TrialView,
)
from phalanx.sdk.transport import V1, Transport

_STUDIES = f"{V1}/studies"
_LONG_POLL_S = 20.0


class StudyCalls(Transport):
    """One method for each route about studies; `client.studies`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def submit(self, request: SubmitStudyRequest, *, key: str | None = None) -> SubmitStudyResponse:
        """Submit a study. Raises SpecInvalid with every problem, NotFound for code not yet uploaded.

        When its answer is lost, it is repeated with the same idempotency key and makes one study.
        """
        return self._post(_STUDIES, request, SubmitStudyResponse, key=key or random_hex(32))

    def check(self, request: SubmitStudyRequest) -> StudyCheckView:
        """What a study would do, without submitting it. Raises SpecInvalid with every problem."""
        return self._post(f"{_STUDIES}/check", request, StudyCheckView)

    def list(
        self,
        *,
        states: Sequence[str] = (),
        project: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> StudyPage:
        """One page of studies, newest first."""
        wanted = {
            "state": [*states],
            "project": project,
            "owner": owner,
            "name": name,
            "before": before,
            "limit": limit,
        }
        return self._get(_STUDIES, StudyPage, wanted)

    def get(self, num: int) -> StudyView:
        """One study with its best trial, its rungs and its spec. Raises NotFound."""
        return self._get(f"{_STUDIES}/{num}", StudyView)

    def trials(
        self, num: int, *, after: int = -1, limit: int = 1000, statuses: Sequence[str] = ()
    ) -> TrialPage:
        """One page of a study's trials, in number order. Raises NotFound."""
        wanted = {"after": after, "limit": limit, "status": [*statuses]}
        return self._get(f"{_STUDIES}/{num}/trials", TrialPage, wanted)

    def all_trials(self, num: int, *, statuses: Sequence[str] = ()) -> Iterator[TrialView]:
        """Every trial of a study, over all pages. Raises NotFound."""
        after: int | None = -1
        while after is not None:
            page = self.trials(num, after=after, statuses=statuses)
            yield from page.trials
            after = page.next

    def events(self, num: int, *, after: int = 0, wait_s: float = 0.0) -> StudyEventPage:
        """Events after number `after`; waits up to `wait_s` seconds for the first one."""
        params = {"after": after, "wait_s": wait_s}
        return self._get(f"{_STUDIES}/{num}/events", StudyEventPage, params, wait_s)

    def follow(
        self, num: int, *, after: int = 0, wait_s: float = _LONG_POLL_S
    ) -> Iterator[StudyEventPage]:
        """Pages of events as they come, until the study ends. A page without events: `wait_s` passed."""
        while True:
            page = self.events(num, after=after, wait_s=wait_s)
            yield page
            if page.done:
                return
            after = page.cursor

    def pause(self, num: int) -> StudyView:
        """Have all trials save and leave their slots. Raises Conflict for a study that has ended."""
        return self._post(f"{_STUDIES}/{num}/pause", None, StudyView)

    def resume(self, num: int) -> StudyView:
        """Have the trials of a paused study go on. Raises Conflict for a study that has ended."""
        return self._post(f"{_STUDIES}/{num}/resume", None, StudyView)

    def stop(self, num: int) -> StudyView:
        """Have all trials save and end, and the study with them."""
        return self._post(f"{_STUDIES}/{num}/stop", None, StudyView)

    def extend(self, num: int, limits: ExtendStudyRequest) -> StudyView:
        """Set new limits of a study; one that has ended goes on."""
        return self._post(f"{_STUDIES}/{num}/extend", limits, StudyView)

    def add_trial(
        self, num: int, params: Mapping[str, Scalar], *, key: str | None = None
    ) -> TrialView:
        """Add a trial with these params, which starts before suggested ones. Raises SpecInvalid."""
        body = AddTrialRequest(params=dict(params))
        return self._post(f"{_STUDIES}/{num}/trials", body, TrialView, key=key or random_hex(32))
