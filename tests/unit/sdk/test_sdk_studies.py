"""The handle of a study: it repeats itself until it is answered, and waits for trials of others."""

from __future__ import annotations

import json

import httpx
import pytest

from phalanx.errors import PlatformError, ServerUnavailable
from phalanx.sdk import PhalanxClient, studies
from phalanx.sdk.studies import StudyHandle

pytestmark = pytest.mark.unit
TRIAL = {
    "study": 3, "number": 0, "label": "s-3/0", "params": {"x": 1}, "origin": {"sampler": "tpe"},
    "status": "running",
}  # fmt: skip
EMPTY = {"trials": [], "waiting": 0, "done": False, "state": "running", "cursor": 7}


class Server:
    """Answers in a given order; None: the answer is lost."""

    def __init__(self, answers: list[object]) -> None:
        self.answers, self.seen = answers, list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0)
        if answer is None:
            raise httpx.ConnectError("no server")
        return httpx.Response(200, json=answer)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(studies.time, "sleep", slept.append)
    return slept


def handle(server: Server) -> StudyHandle:
    client = PhalanxClient("http://x", "t", transport=httpx.MockTransport(server))
    return StudyHandle(client.studies, 3)


def test_an_ask_is_repeated_with_its_key_until_its_trial_has_params(paused: list[float]) -> None:
    server = Server([None, EMPTY | {"waiting": 1}, None, EMPTY | {"trials": [TRIAL]}])
    trial = handle(server).ask(evaluator="laptop")
    assert trial is not None and trial.params == {"x": 1}
    assert len({one.headers["Idempotency-Key"] for one in server.seen}) == 1
    assert len(paused) == 2


def test_an_ask_without_a_trial_waits_for_an_event_and_asks_anew(paused: list[float]) -> None:
    events = {"events": [], "cursor": 8, "done": False}
    server = Server([EMPTY, events, EMPTY | {"done": True}])
    assert handle(server).ask() is None
    first, waited, second = server.seen
    assert (waited.url.path, waited.url.params["after"]) == ("/api/v1/studies/3/events", "7")
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_a_value_that_is_not_finite_is_told_as_none(paused: list[float]) -> None:
    server = Server([TRIAL | {"status": "diverged"}, TRIAL, TRIAL | {"status": "stopped"}])
    study = handle(server)
    trial = studies.TrialView.model_validate(TRIAL)
    study.tell(trial, float("nan"))
    assert json.loads(server.seen[0].content)["value"] is None
    assert [study.report(trial, unit, 0.5) for unit in (1, 2)] == [True, False]


def test_patience_ends(paused: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr(studies.time, "monotonic", lambda: next(times))
    with pytest.raises(ServerUnavailable):
        handle(Server([None] * 9)).view()


def test_a_study_is_opened_and_created_with_patience(paused: list[float]) -> None:
    """An answer that is no study shows that the calls before it were repeated."""
    for call in ("open", "create"):
        server = Server([None, None, {}])
        client = PhalanxClient("http://x", "t", transport=httpx.MockTransport(server))
        with pytest.raises(PlatformError):
            client.studies.open(3) if call == "open" else client.studies.create({})
        assert len(server.seen) == 3
    assert len({one.headers["Idempotency-Key"] for one in server.seen}) == 1
