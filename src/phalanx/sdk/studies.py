"""The routes about studies: submission, check, state, trials, events, and changes of a running study."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import httpx

from phalanx.errors import ServerUnavailable
from phalanx.kit.clock import backoff_s
from phalanx.kit.text import random_hex, study_label
from phalanx.schemas.api.studies import (
    AddTrialRequest,
    AskRequest,
    AskResponse,
    ExtendStudyRequest,
    Scalar,
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
from phalanx.sdk.transport import V1, Transport

_STUDIES = f"{V1}/studies"
_LONG_POLL_S = 20.0
PATIENCE_S = 300.0
"""How long an evaluator's calls are repeated while no server answers."""
T = TypeVar("T")


class StudyCalls(Transport):
    """One method for each route about studies; `client.studies`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def submit(self, request: SubmitStudyRequest, *, key: str | None = None) -> SubmitStudyResponse:
        """Submit a study. Raises SpecInvalid with every problem, NotFound for code not yet uploaded.

        When its answer is lost, it is repeated with the same idempotency key and makes one study.
        """
        return self._post(_STUDIES, request, SubmitStudyResponse, key=key or random_hex(32))

    def create(self, spec: Mapping[str, Any], *, owner: str = "") -> StudyHandle:
        """Submit a study without a job, to evaluate its trials in this program. Raises SpecInvalid."""
        body, key = SubmitStudyRequest(spec=dict(spec), owner=owner), random_hex(32)
        return StudyHandle(
            self, _patiently(lambda: self.submit(body, key=key), PATIENCE_S).study.num
        )

    def open(self, num: int) -> StudyHandle:
        """A study that exists, to evaluate its trials in this program. Raises NotFound."""
        return StudyHandle(self, _patiently(lambda: self.get(num), PATIENCE_S).num)

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

    def results(self, num: int) -> StudyResultsView:
        """How much each parameter matters, and the trials as parallel coordinates. Raises NotFound."""
        return self._get(f"{_STUDIES}/{num}/results", StudyResultsView)

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

    def stop(self, num: int, *, finish: bool = False) -> StudyView:
        """Have all trials save and end, and the study with them; `finish`: begin no more trials."""
        more = "?finish=true" if finish else ""
        return self._post(f"{_STUDIES}/{num}/stop{more}", None, StudyView)

    def extend(self, num: int, limits: ExtendStudyRequest) -> StudyView:
        """Set new limits of a study; one that has ended goes on."""
        return self._post(f"{_STUDIES}/{num}/extend", limits, StudyView)

    def add_trial(
        self, num: int, params: Mapping[str, Scalar], *, key: str | None = None
    ) -> TrialView:
        """Add a trial with these params, which starts before suggested ones. Raises SpecInvalid."""
        body = AddTrialRequest(params=dict(params))
        return self._post(f"{_STUDIES}/{num}/trials", body, TrialView, key=key or random_hex(32))

    def ask(
        self, num: int, request: AskRequest, *, key: str | None = None, wait_s: float = 0.0
    ) -> AskResponse:
        """Ask for trials to evaluate; waits up to `wait_s` seconds for their params. Raises Conflict."""
        params = {"wait_s": str(wait_s)}
        return self._post(
            f"{_STUDIES}/{num}/ask", request, AskResponse, params, key or random_hex(32)
        )

    def report(self, num: int, trial: int, request: TrialReportRequest) -> TrialView:
        """Report a value of a trial that is evaluated outside; one that is over should stop."""
        return self._post(f"{_STUDIES}/{num}/trials/{trial}/report", request, TrialView)

    def tell(self, num: int, trial: int, request: TellRequest) -> TrialView:
        """Tell how a trial that was evaluated outside has ended; the first result stands."""
        return self._post(f"{_STUDIES}/{num}/trials/{trial}/tell", request, TrialView)


class StudyHandle:
    """A study without a job: its trials are evaluated outside of the platform, in this program and others.

        study = client.studies.create(spec)
        while trial := study.ask():
            study.tell(trial, train(**trial.params))

    Each call is repeated for up to `patience_s` seconds while no server answers, and takes effect once.
    """

    def __init__(self, calls: StudyCalls, num: int, *, patience_s: float = PATIENCE_S) -> None:
        self.num, self.label = num, study_label(num)
        self._calls, self._patience_s = calls, patience_s

    def ask(
        self, *, evaluator: str = "", lease_s: float = 3600.0, wait_s: float = math.inf
    ) -> TrialView | None:
        """The next trial; None when the study has ended, or there is none for `wait_s` seconds.

        Without a report or a result for `lease_s` seconds, the trial is given to the next one that asks.
        """
        found = self.ask_many(1, evaluator=evaluator, lease_s=lease_s, wait_s=wait_s)
        return found[0] if found else None

    def ask_many(
        self,
        count: int,
        *,
        evaluator: str = "",
        lease_s: float = 3600.0,
        wait_s: float = math.inf,
    ) -> list[TrialView]:
        """Up to `count` trials at once, and at least one; empty as for `ask`."""
        request = AskRequest(count=count, evaluator=evaluator, lease_s=lease_s)
        until = time.monotonic() + wait_s
        key = random_hex(32)
        while True:
            left_s = max(0.0, min(until - time.monotonic(), _LONG_POLL_S))
            found = self._patiently(
                lambda key=key, left_s=left_s: self._calls.ask(  # type: ignore[misc]
                    self.num, request, key=key, wait_s=left_s
                )
            )
            if (found.trials and not found.waiting) or found.done or left_s <= 0:
                return found.trials
            if not found.waiting:
                # All trials are with evaluators: what happens to one of them may free another.
                self._patiently(
                    lambda after=found.cursor, left_s=left_s: self._calls.events(  # type: ignore[misc]
                        self.num, after=after, wait_s=left_s
                    )
                )
                key = random_hex(32)

    def report(self, trial: TrialView, unit: int, value: float) -> bool:
        """Report the objective after `unit` units; False: stop this trial, its result is known."""
        body = TrialReportRequest(unit=unit, value=_finite(value))
        told = self._patiently(lambda: self._calls.report(self.num, trial.number, body))
        return not told.is_over

    def tell(
        self,
        trial: TrialView,
        value: float | None = None,
        *,
        outcome: Literal["completed", "failed", "rejected"] = "completed",
        reason: str = "",
    ) -> TrialView:
        """Tell how a trial has ended; may be repeated. With a value that is not finite, it diverged."""
        shown = None if value is None else _finite(value)
        body = TellRequest(outcome=outcome, value=shown, reason=reason)
        return self._patiently(lambda: self._calls.tell(self.num, trial.number, body))

    def view(self) -> StudyView:
        """The study as it is now."""
        return self._patiently(lambda: self._calls.get(self.num))

    @property
    def best(self) -> TrialView | None:
        """The best trial so far."""
        return self.view().best

    def trials(self) -> list[TrialView]:
        """Every trial, in number order."""
        return self._patiently(lambda: list(self._calls.all_trials(self.num)))

    def _patiently(self, call: Callable[[], T]) -> T:
        return _patiently(call, self._patience_s)


def _patiently(call: Callable[[], T], patience_s: float) -> T:
    """Repeat a call until a server answers, or the patience is over."""
    until, tries = time.monotonic() + patience_s, 0
    while True:
        try:
            return call()
        except ServerUnavailable:
            tries += 1
            pause_s = backoff_s(tries, first_s=0.2, max_s=5.0)
            if time.monotonic() + pause_s > until:
                raise
            time.sleep(pause_s)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
