"""A request whose answer is lost is sent again, and takes effect once."""

from __future__ import annotations

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig, spec
from phalanx.errors import Conflict, SpecInvalid
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.telemetry import ProfileRequest
from phalanx.sdk import PhalanxClient, transport
from phalanx.services.lifecycle import submit as submitting

pytestmark = pytest.mark.integration
DAY_S = 24 * 3600


class LosesAnswers(httpx.BaseTransport):
    """A network that loses the first answers to requests that change something."""

    def __init__(self, inner: httpx.BaseTransport, losses: int) -> None:
        self.inner, self.losses = inner, losses
        self.keys: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self.inner.handle_request(request)
        if request.method == "POST":
            self.keys.append(request.headers.get("Idempotency-Key"))
            if len(self.keys) <= self.losses:
                raise httpx.RemoteProtocolError("the server disconnected", request=request)
        return answer


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_PAUSES_S", (0.0, 0.0))


def test_a_submission_whose_answer_is_lost_makes_one_job(rig: Rig, no_pauses) -> None:
    network = LosesAnswers(rig.transport, losses=2)
    with PhalanxClient(URL, TOKEN, transport=network) as client:
        job = client.submit(SubmitRequest(spec=spec())).job
    assert job.num == 1 and [one.num for one in rig.client.jobs().jobs] == [1]
    assert len(network.keys) == 3 and len(set(network.keys)) == 1 and network.keys[0]


def test_without_a_key_each_repetition_makes_a_job(rig: Rig) -> None:
    """The guard of the test above, off."""
    body, headers = (
        SubmitRequest(spec=spec()).model_dump_json(),
        {"Authorization": f"Bearer {TOKEN}"},
    )
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        for _ in range(2):
            http.post(
                "/api/v1/jobs",
                content=body,
                headers=headers | {"Content-Type": "application/json"},
            )
    assert len(rig.client.jobs().jobs) == 2


def test_requests_to_ranks_are_sent_once(rig: Rig, no_pauses) -> None:
    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    network = LosesAnswers(rig.transport, losses=1)
    with PhalanxClient(URL, TOKEN, transport=network) as client:
        assert client.ask_stacks(num).request == 1
        assert client.ask_stacks(num).request == 2  # a new call is a new request
        network.losses = 4
        assert client.ask_profile(num, ProfileRequest()).request == 1
    assert len(network.keys) == 5


def test_a_key_belongs_to_one_request_for_a_day(rig: Rig) -> None:
    first = rig.client.submit(SubmitRequest(spec=spec()), key="k-1")
    assert rig.client.submit(SubmitRequest(spec=spec()), key="k-1").job.num == 1
    assert rig.client.submit(SubmitRequest(spec=spec()), key="k-1").spec == first.spec
    with pytest.raises(Conflict, match="belongs to another request"):
        rig.client.submit(SubmitRequest(spec=spec(name="other")), key="k-1")
    with pytest.raises(Conflict, match="belongs to another request"):
        rig.client._post("/api/v1/jobs/1/stacks", None, object, key="k-1")
    rig.clock.advance(DAY_S + 1)
    assert rig.client.submit(SubmitRequest(spec=spec(name="other")), key="k-1").job.num == 2


def test_the_key_of_a_refused_request_is_free_again(rig: Rig) -> None:
    with pytest.raises(SpecInvalid):
        rig.client.submit(SubmitRequest(spec=spec(resources={"nodes": 9})), key="k-1")
    assert rig.client.submit(SubmitRequest(spec=spec()), key="k-1").job.num == 1
    dry = rig.client.submit(SubmitRequest(spec=spec()), key="k-2", dry_run=True)
    assert dry.job is None
    assert rig.client.submit(SubmitRequest(spec=spec()), key="k-2").job.num == 2


def test_the_key_and_the_job_are_stored_together(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between both would make a second job, or an answer about none."""
    real = submitting.commit_new

    def crash(*args: object) -> None:
        real(*args)
        raise RuntimeError("crash before the commit")

    monkeypatch.setattr(submitting, "commit_new", crash)
    with pytest.raises(Exception, match="RuntimeError"):
        rig.client.submit(SubmitRequest(spec=spec()), key="k-1")
    monkeypatch.setattr(submitting, "commit_new", real)
    assert rig.client.jobs().jobs == []
    assert rig.client.submit(SubmitRequest(spec=spec()), key="k-1").job.num == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "é"])
def test_what_is_no_key_is_refused(rig: Rig, key: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        answer = http.post(
            "/api/v1/jobs",
            content=SubmitRequest(spec=spec()).model_dump_json(),
            headers=[*headers.items(), (b"Idempotency-Key", key.encode())],
        )
    assert answer.status_code == 422 and "Idempotency-Key" in answer.text
    assert rig.client.jobs().jobs == []
