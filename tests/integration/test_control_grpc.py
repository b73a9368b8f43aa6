"""The gRPC API: the same jobs, permissions, errors and limits as over HTTP, and its streams."""

from __future__ import annotations

import queue
import runpy
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")

from google.protobuf import json_format  # noqa: E402
from google.rpc import error_details_pb2, status_pb2  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from integration.rig import TOKEN, Rig, ScriptedSupervisor, open_rig, spec  # noqa: E402
from integration.served import served  # noqa: E402
from integration.test_control_posted_metrics import token_of  # noqa: E402
from integration.test_control_tls import NOW, made, serial  # noqa: E402
from phalanx.schemas.rpc import jobs_pb2, jobs_pb2_grpc  # noqa: E402
from phalanx.schemas.rpc.methods import METHODS, SERVICE, RpcMethod  # noqa: E402
from phalanx.server.access import AccessTable  # noqa: E402
from phalanx.server.app import create_app  # noqa: E402
from phalanx.server.gate import Gate  # noqa: E402
from phalanx.server.live import event_stream  # noqa: E402
from phalanx.server.rpc import listener as rpc_listener  # noqa: E402
from phalanx.server.rpc import service as rpc_service  # noqa: E402
from phalanx.server.rpc.calls import message_class  # noqa: E402
from phalanx.server.settings import ApiSettings, GrpcSettings, Settings  # noqa: E402
from phalanx.services.queries.views import job_view  # noqa: E402
from support.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.integration
LIMIT_S = 60.0


class Rpc:
    """A client of one port with one token."""

    def __init__(self, port: int, token: str = TOKEN, channel: Any = None) -> None:
        self.channel = channel or grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub = jobs_pb2_grpc.JobsStub(self.channel)
        self.port, self.token = port, token

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def call(self, name: str, message: Any, **rest: Any) -> Any:
        given = {"timeout": LIMIT_S, "metadata": self.metadata} | rest
        return getattr(self.stub, name)(message, **given)

    def submit(self, key: str = "", **changes: Any) -> Any:
        wanted = jobs_pb2.SubmitRequest()
        if key:
            wanted.idempotency_key = key
        wanted.spec.update(spec(**changes))
        return self.call("Submit", wanted)

    def get(self, num: int) -> Any:
        return self.call("Get", jobs_pb2.GetRequest(num=num))

    def as_user(self, token: str) -> Rpc:
        return Rpc(self.port, token, self.channel)

    def raw(self, name: str, messages: Iterator[bytes], **rest: Any) -> Any:
        """A call of bytes, by its name."""
        given = {"timeout": LIMIT_S, "metadata": self.metadata} | rest
        return self.channel.stream_stream(f"/{SERVICE}/{name}")(messages, **given)


@contextmanager
def listening(rig: Rig, settings: GrpcSettings | None = None) -> Iterator[Rpc]:
    """The gRPC API of a rig, in the event loop of its HTTP API."""
    portal = rig.transport._portal

    async def begin() -> tuple[Any, int]:
        app = create_app(rig.context)
        one = rpc_listener.RpcListener(app, rig.context, None, settings or GrpcSettings())
        return one, await one.start("127.0.0.1", 0)

    one, port = portal.call(begin)
    client = Rpc(port)
    try:
        yield client
    finally:
        client.channel.close()
        portal.call(one.stop, 1.0)


@pytest.fixture
def live_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(event_stream, "_TICK_S", 0.01)
    with open_rig(tmp_path / "home", settings=Settings()) as one:
        yield one


@pytest.fixture
def rpc(live_rig: Rig) -> Iterator[Rpc]:
    with listening(live_rig) as one:
        yield one


def refused(call: Callable[[], Any]) -> tuple[str, str, dict[str, Any]]:
    """The code, message and details of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = caught.value
    found: dict[str, Any] = {}
    raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if raw is not None:
        status = status_pb2.Status.FromString(raw)
        assert (status.code, status.message) == (error.code().value[0], error.details())
        for one in status.details:
            kind = one.type_url.rpartition(".")[2]
            found[kind] = getattr(error_details_pb2, kind)()
            assert one.Unpack(found[kind])
    return error.code().name, error.details(), found


def last(stream: Any) -> None:
    for _ in stream:
        pass


def any_call(rpc: Rpc, method: RpcMethod) -> Callable[[], Any]:
    """A call of a method for job 1, with fields that are right."""
    message = message_class(method)()
    if "num" in message.DESCRIPTOR.fields_by_name:
        message.num = 1
    if method.name == "Submit":
        message.spec.update(spec())
    given = iter([message]) if method.streams_requests else message

    def call() -> Any:
        answer = rpc.call(method.name, given)
        return next(answer) if method.streams_responses else answer

    return call


# -- the same jobs --------------------------------------------------------------------------------


def test_a_job_is_submitted_listed_read_and_cancelled_as_over_http(live_rig: Rig, rpc: Rpc) -> None:
    made = rpc.submit(name="first", labels={"team": "a"})
    view = live_rig.client.job(made.job.num)
    assert (made.job.name, made.job.url, made.job.state) == ("first", view.url, view.state)
    assert json_format.MessageToDict(made.spec)["name"] == "first"
    rpc.submit(name="second")
    page = rpc.call("List", jobs_pb2.JobsQuery(label=["team=a"]))
    assert [one.num for one in page.jobs] == [made.job.num]
    page = rpc.call("List", jobs_pb2.JobsQuery(limit=1, sort="name"))
    assert [one.name for one in page.jobs] == ["first"] and page.cursor
    rest = rpc.call("List", jobs_pb2.JobsQuery(limit=5, sort="name", cursor=page.cursor))
    assert [one.name for one in rest.jobs] == ["second"] and not rest.HasField("cursor")
    got = rpc.get(made.job.num)
    assert got.submitted_at.ToDatetime() == view.submitted_at.replace(tzinfo=None)
    assert not got.HasField("ended_at")
    ended = rpc.call("Cancel", jobs_pb2.CancelRequest(num=made.job.num, grace_s=0))
    assert (ended.state, live_rig.job(made.job.num).state) == ("cancelled", "cancelled")


def test_a_job_has_the_same_values_as_over_http(live_rig: Rig, rpc: Rpc) -> None:
    num = rpc.submit(resources={"nodes": 2, "slots_per_node": 1}, labels={"a": "b"}).job.num
    live_rig.turn()
    shown = json_format.MessageToDict(
        rpc.get(num), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    wanted = job_view(live_rig.platform, num, live_rig.clock.now()).model_dump(mode="json")
    numbers = ("num", "attempts", "num_slots", "world_size", "attempt", "priority")
    assert [int(shown[name]) for name in numbers] == [wanted[name] for name in numbers]
    same = ("label", "etag", "state", "reason", "labels", "owner", "spec", "submitted_at")
    assert [shown[name] for name in same] == [wanted[name] for name in same]
    # Nothing is left out but what has no value.
    left_out = {name for name, one in wanted.items() if one is not None} - shown.keys()
    assert left_out == set()


def test_filters_are_those_of_the_listing(live_rig: Rig, rpc: Rpc) -> None:
    query = jobs_pb2.JobsQuery.DESCRIPTOR
    old = rpc.submit(project="p").job.num
    live_rig.clock.advance(10.0)
    new = rpc.submit(priority=70).job.num
    moment = live_rig.client.job(new).submitted_at
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"project": "p"}, [old]),
        ({"min_priority": 60}, [new]),
        ({"min_priority": 0, "state": ["queued"]}, [new, old]),
        ({"state": ["failed"]}, []),
        ({"submitted_from": moment}, [new]),
        ({"name": "dig*", "limit": 1}, [new]),
    ]
    for wanted, found in cases:
        page = rpc.call("List", jobs_pb2.JobsQuery(**wanted))
        assert [one.num for one in page.jobs] == found, wanted
    assert len(query.fields) > 15
    code, said, _ = refused(lambda: rpc.call("List", jobs_pb2.JobsQuery(limit=5000)))
    assert (code, said.startswith("limit")) == ("INVALID_ARGUMENT", True)


def test_a_request_with_the_key_of_an_earlier_one_makes_no_second_job(rpc: Rpc) -> None:
    first = rpc.submit(key="abc").job.num
    assert rpc.submit(key="abc").job.num == first
    code, _, details = refused(lambda: rpc.submit(key="abc", name="other"))
    assert (code, details["ErrorInfo"].reason) == ("FAILED_PRECONDITION", "conflict")


def test_a_dry_run_returns_the_spec_and_makes_no_job(rpc: Rpc) -> None:
    wanted = jobs_pb2.SubmitRequest(dry_run=True)
    wanted.spec.update(spec())
    answer = rpc.call("Submit", wanted)
    assert not answer.HasField("job") and answer.spec["name"] == "digits"
    assert not rpc.call("List", jobs_pb2.JobsQuery()).jobs


# -- streams of events ----------------------------------------------------------------------------


def test_events_of_a_job_arrive_until_it_has_ended_and_continue_from_a_place(rpc: Rpc) -> None:
    num = rpc.submit().job.num
    stream = rpc.call("Events", jobs_pb2.EventsRequest(num=num))
    first = next(stream)
    assert (first.event.job, first.event.kind) == (num, "submitted")
    rpc.call("Cancel", jobs_pb2.CancelRequest(num=num, grace_s=0))
    rest = list(stream)
    assert rest[-1].event.state == "cancelled", "the stream has ended by itself"
    again = list(rpc.call("Events", jobs_pb2.EventsRequest(num=num, place=first.place)))
    assert [one.event.seq for one in again] == [one.event.seq for one in rest]


def test_the_feed_has_the_events_of_all_jobs_that_its_filter_names(rpc: Rpc) -> None:
    one, two = rpc.submit(project="a").job.num, rpc.submit(project="b").job.num
    stream = rpc.call("Feed", jobs_pb2.FeedRequest(project="b", kind=["submitted"], place="0"))
    assert next(stream).event.job == two
    stream.cancel()
    stream = rpc.call("Feed", jobs_pb2.FeedRequest(job=[one], place="0"))
    assert next(stream).event.job == one
    stream.cancel()
    code, said, _ = refused(lambda: last(rpc.call("Feed", jobs_pb2.FeedRequest(place="x"))))
    assert code == "INVALID_ARGUMENT" and "no place" in said


@pytest.mark.parametrize("left", ["cancel", "deadline"])
def test_a_client_that_leaves_or_whose_deadline_is_over_ends_its_stream(
    live_rig: Rig, rpc: Rpc, left: str
) -> None:
    presence = live_rig.context.presence
    if left == "cancel":
        stream = rpc.call("Feed", jobs_pb2.FeedRequest())
        wait_until(lambda: presence.num_streams == 1)
        stream.cancel()
    else:
        stream = rpc.call("Feed", jobs_pb2.FeedRequest(), timeout=0.5)
    assert refused(lambda: last(stream))[0] in ("CANCELLED", "DEADLINE_EXCEEDED")
    wait_until(lambda: presence.num_streams == 0 and presence.num_open == 0)


def test_a_revoked_token_ends_the_stream(
    live_rig: Rig, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "_CHECK_S", 0.0)
    made = live_rig.client.create_token("viewer", ["read"])
    stream = rpc.as_user(made.token).call("Feed", jobs_pb2.FeedRequest(place="0"))
    live_rig.client.revoke_token(made.view.id)
    rpc.submit()
    assert refused(lambda: last(stream))[0] in ("PERMISSION_DENIED", "UNAUTHENTICATED")


def test_a_stream_whose_time_is_over_asks_for_another_call(tmp_path: Path) -> None:
    given_settings = Settings(api=ApiSettings(max_stream_s=0))
    with open_rig(tmp_path / "home", settings=given_settings) as rig, listening(rig) as rpc:
        rpc.submit()
        stream = rpc.call("Feed", jobs_pb2.FeedRequest(place="0"))
        place = next(stream).place
        code, said, details = refused(lambda: last(stream))
        assert code == "UNAVAILABLE" and "lifetime" in said and "RetryInfo" in details
        rpc.submit()
        stream = rpc.call("Feed", jobs_pb2.FeedRequest(place=place, kind=["submitted"]))
        assert next(stream).event.job == 2


# -- permissions and errors -----------------------------------------------------------------------


def test_every_method_of_the_service_has_a_route_in_the_table_of_permissions(rig: Rig) -> None:
    table = AccessTable(create_app(rig.context).routes)
    for method in METHODS:
        assert (method.verb, method.route) in table.of_route, method.name
    service = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"]
    assert [one.name for one in service.methods] == [one.name for one in METHODS]
    for one, method in zip(service.methods, METHODS, strict=True):
        known = (one.client_streaming, one.server_streaming)
        assert known == (method.streams_requests, method.streams_responses)


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
@pytest.mark.parametrize("token", ["", "wrong", f"phx_{'0' * 16}_{'0' * 40}"])
def test_no_method_is_served_without_a_valid_token(
    live_rig: Rig, rpc: Rpc, method: RpcMethod, token: str
) -> None:
    live_rig.submit()
    code, said, details = refused(any_call(rpc.as_user(token), method))
    assert (code, details["ErrorInfo"].reason) == ("UNAUTHENTICATED", "unauthenticated")
    assert "token" in said
    assert len(live_rig.client.jobs().jobs) == 1


def test_a_method_that_is_not_listed_does_not_exist(rpc: Rpc) -> None:
    code, _, _ = refused(lambda: last(rpc.raw("Delete", iter([b""]))))
    assert code == "UNIMPLEMENTED"


def viewer(rig: Rig) -> str:
    return rig.client.create_token("viewer", ["read"]).token


def test_a_token_for_reading_changes_nothing_and_the_attempt_is_written_down(
    live_rig: Rig, rpc: Rpc
) -> None:
    rpc.submit()
    reader = rpc.as_user(viewer(live_rig))
    assert reader.get(1).num == 1
    code, said, _ = refused(lambda: reader.submit())
    assert code == "PERMISSION_DENIED" and "this token has read" in said
    code, _, _ = refused(lambda: reader.call("Cancel", jobs_pb2.CancelRequest(num=1)))
    assert code == "PERMISSION_DENIED"
    rows = list(live_rig.client.accounts.audit())
    found = [(one.action, one.outcome) for one in rows if one.address == "127.0.0.1"]
    assert ("POST /api/v1/jobs", "denied") in found
    assert ("POST /api/v1/jobs/{num}/stop", "denied") in found
    assert ("POST /api/v1/jobs", "changed") in found


def test_the_test_of_permissions_finds_a_gate_that_is_off(
    live_rig: Rig, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_given: Any) -> None:
        return None

    monkeypatch.setattr(Gate, "_check_permission", nothing)
    rpc.submit()
    reader = rpc.as_user(viewer(live_rig))
    assert reader.call("Cancel", jobs_pb2.CancelRequest(num=1, grace_s=0)).state == "cancelled"


def test_what_is_wrong_with_a_spec_is_listed_field_by_field(rpc: Rpc) -> None:
    code, said, details = refused(lambda: rpc.submit(priority=500, naem="x"))
    fields = {one.field for one in details["BadRequest"].field_violations}
    assert (code, fields) == ("INVALID_ARGUMENT", {"priority", "naem"}), said
    code, said, _ = refused(lambda: rpc.submit(priority=float("nan")))
    assert code == "INVALID_ARGUMENT" and "NaN" in said
    code, said, _ = refused(lambda: last(rpc.raw("Submit", iter([b"\xff\xff"]))))
    assert code == "INVALID_ARGUMENT" and "the message is no SubmitRequest" in said


def test_errors_have_the_codes_of_the_error_tree(rpc: Rpc) -> None:
    code, said, details = refused(lambda: rpc.get(99))
    assert (code, said) == ("NOT_FOUND", "there is no job j-99")
    assert details["ErrorInfo"].domain == "phalanx"
    assert details["ErrorInfo"].metadata["retryable"] == "false"
    assert refused(lambda: rpc.get(0))[0] == "INVALID_ARGUMENT"
    assert refused(lambda: rpc.get(-(2**62)))[0] == "INVALID_ARGUMENT"
    events = jobs_pb2.EventsRequest(num=99)
    assert refused(lambda: last(rpc.call("Events", events)))[0] == "NOT_FOUND"


def test_a_bug_is_an_internal_error_and_its_traceback_stays_in_the_log(
    rpc: Rpc, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_given: Any, **_rest: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("phalanx.services.queries.views.list_jobs", broken)
    code, said, _ = refused(lambda: rpc.call("List", jobs_pb2.JobsQuery()))
    assert code == "INTERNAL" and "secret" not in said and "RuntimeError" in said
    wait_until(lambda: "secret detail" in caplog.text)


# -- limits ---------------------------------------------------------------------------------------


def test_a_message_over_the_limit_of_a_body_is_refused(tmp_path: Path) -> None:
    given_settings = Settings(api=ApiSettings(max_body_bytes=4000))
    with open_rig(tmp_path / "home", settings=given_settings) as rig, listening(rig) as rpc:
        assert rpc.submit(env={"A": "x" * 1000}).job.num == 1
        code, _, _ = refused(lambda: rpc.submit(env={"A": "x" * 5000}))
        assert code == "RESOURCE_EXHAUSTED"
        # Within the limit of a message, and over it as JSON, which the gate counts.
        code, said, _ = refused(lambda: rpc.submit(env={"A": "\x01" * 1000}))
        assert code == "RESOURCE_EXHAUSTED" and "larger than" in said


def test_requests_of_one_token_are_counted_over_all_protocols(tmp_path: Path) -> None:
    given_settings = Settings(api=ApiSettings(max_requests_per_token=4))
    with open_rig(tmp_path / "home", settings=given_settings) as rig, listening(rig) as rpc:
        streams = [rpc.call("Feed", jobs_pb2.FeedRequest()) for _ in range(4)]
        wait_until(lambda: rig.context.presence.num_open == 4)
        code, _, details = refused(lambda: rpc.call("List", jobs_pb2.JobsQuery()))
        assert code == "RESOURCE_EXHAUSTED"
        assert details["ErrorInfo"].reason == "too_many_requests" and "RetryInfo" in details
        other = rpc.as_user(viewer(rig))
        other.call("List", jobs_pb2.JobsQuery())
        for one in streams:
            one.cancel()
        wait_until(lambda: rig.context.presence.num_open == 0)
        rpc.call("List", jobs_pb2.JobsQuery())


def test_a_small_message_that_unpacks_to_a_large_one_is_refused(tmp_path: Path) -> None:
    given_settings = Settings(api=ApiSettings(max_body_bytes=4000))
    with open_rig(tmp_path / "home", settings=given_settings) as rig, listening(rig) as rpc:
        packed = grpc.insecure_channel(f"127.0.0.1:{rpc.port}", compression=grpc.Compression.Gzip)
        with packed:
            one = Rpc(rpc.port, channel=packed)
            assert one.submit(env={"A": "x" * 1000}).job.num == 1
            assert refused(lambda: one.submit(env={"A": "x" * 100_000}))[0] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("token", ["", TOKEN], ids=["stranger", "home"])
def test_no_message_is_a_bug(live_rig: Rig, rpc: Rpc, token: str) -> None:
    """Whatever a client sends, the answer says what is wrong with it."""
    live_rig.client.stop(live_rig.submit(), grace_s=0)  # so that its stream of events ends
    caller, seen = rpc.as_user(token), set()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(name=st.sampled_from([one.name for one in METHODS]), data=st.data())
    def send(name: str, data: st.DataObject) -> None:
        message = data.draw(st.one_of(st.binary(max_size=200), _messages(name)))
        # The feed of all jobs has no end.
        limit_s = 0.1 if name == "Feed" else LIMIT_S
        stream = caller.raw(name, iter([message]), timeout=limit_s)
        try:
            next(stream, None)
        except grpc.RpcError as error:
            seen.add(error.code().name)
        assert not seen & {"INTERNAL", "UNKNOWN"}, (name, message)
        stream.cancel()

    send()
    expected = {"UNAUTHENTICATED", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
    assert seen <= expected | {"DEADLINE_EXCEEDED"}
    assert seen & expected, "a fuzzer that is never refused sends nothing"


TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def _messages(name: str) -> st.SearchStrategy[bytes]:
    """Messages of a method with any values of the right types."""
    method = next(one for one in METHODS if one.name == name)
    kind = message_class(method)
    fields: dict[str, st.SearchStrategy[Any]] = {
        "num": st.integers(-1, 2) | NUMBERS,
        "rank": NUMBERS,
        "limit": NUMBERS,
        "study": NUMBERS,
        "place": TEXTS,
        "idempotency_key": TEXTS,
        "dry_run": st.just(True),
        "project": TEXTS,
        "sort": TEXTS,
        "cursor": TEXTS,
        "state": st.lists(TEXTS, max_size=2),
        "label": st.lists(TEXTS, max_size=2),
        "kind": TEXTS,
        "grace_s": st.floats(),
        "spec": st.dictionaries(TEXTS, JSON, max_size=4),
    }
    known = kind.DESCRIPTOR.fields_by_name
    chosen = {key: one for key, one in fields.items() if key in known}
    if name == "Feed":
        del chosen["kind"]

    def build(values: dict[str, Any]) -> bytes:
        message = kind()
        for key, value in values.items():
            if key == "spec":
                message.spec.update(value)
            elif isinstance(value, list):
                getattr(message, key).extend(value)
            else:
                setattr(message, key, value)
        return bytes(message.SerializeToString())

    return st.fixed_dictionaries({}, optional=chosen).map(build)


def test_texts_that_no_header_can_have_are_refused(rpc: Rpc) -> None:
    for key in ("Ω", "a b", "x" * 300, "a\nb"):
        code, said, _ = refused(lambda key=key: rpc.submit(key=key))
        assert code == "INVALID_ARGUMENT", said
    stream = rpc.call("Feed", jobs_pb2.FeedRequest(place="Ω"))
    assert refused(lambda: last(stream))[0] == "INVALID_ARGUMENT"
    assert not rpc.call("List", jobs_pb2.JobsQuery()).jobs


def test_more_calls_than_the_limit_are_refused(live_rig: Rig) -> None:
    with listening(live_rig, GrpcSettings(max_calls=1)) as rpc:
        stream = rpc.call("Feed", jobs_pb2.FeedRequest())
        wait_until(lambda: live_rig.context.presence.num_streams == 1)
        assert refused(lambda: rpc.call("List", jobs_pb2.JobsQuery()))[0] == "RESOURCE_EXHAUSTED"
        stream.cancel()


def silent() -> tuple[Iterator[bytes], threading.Event]:
    """Messages of a client that sends none until the event is set."""
    go = threading.Event()

    def messages() -> Iterator[bytes]:
        go.wait(LIMIT_S)
        return
        yield b""

    return messages(), go


@pytest.mark.parametrize("name", ["Submit", "Feed", "ReportMetrics"])
def test_a_stranger_that_sends_no_message_is_refused_at_once(rpc: Rpc, name: str) -> None:
    messages, go = silent()
    try:
        code, _, _ = refused(lambda: last(rpc.as_user("wrong").raw(name, messages)))
        assert code == "UNAUTHENTICATED"
    finally:
        go.set()


def test_a_client_that_sends_no_message_is_waited_for_so_long(
    rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_service, "MESSAGE_S", 0.05)
    messages, go = silent()
    try:
        code, said, _ = refused(lambda: last(rpc.raw("Submit", messages)))
        assert code == "INVALID_ARGUMENT" and "no message" in said
    finally:
        go.set()


# -- metrics and early stops ----------------------------------------------------------------------


@pytest.fixture
def supervisor(live_rig: Rig) -> ScriptedSupervisor:
    num = live_rig.submit()
    live_rig.turn()
    one = live_rig.supervisor(num)
    one.ready()
    one.started()
    return one


class Reporter:
    """One stream of metrics, which sends what it is told."""

    def __init__(self, rpc: Rpc, token: str) -> None:
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers = rpc.as_user(token).call("ReportMetrics", iter(self._sent.get, None))

    def send(self, *points: tuple[str, int, float], rank: int | None = None) -> Any:
        message = jobs_pb2.MetricsRequest()
        if rank is not None:
            message.rank = rank
        for name, step, value in points:
            message.points.add(name=name, step=step, value=value)
        self._sent.put(message)
        return next(self.answers)

    def end(self) -> None:
        self._sent.put(None)


def test_metrics_are_stored_and_each_message_is_answered(
    live_rig: Rig, rpc: Rpc, supervisor: ScriptedSupervisor
) -> None:
    reporter = Reporter(rpc, token_of(supervisor))
    answer = reporter.send(("loss", 0, 0.5), ("accuracy", 0, 0.9))
    assert (answer.received, answer.stop) == (1, False)
    answer = reporter.send(("loss", 1, 0.25), ("loss", 2, float("nan")), rank=0)
    assert (answer.received, answer.HasField("left_s")) == (2, False)
    reporter.end()
    assert list(reporter.answers) == []
    found = {one.name: one for one in live_rig.client.metrics(1).series}
    assert (found["loss"].steps, found["loss"].values) == ([0, 1], [0.5, 0.25])
    assert found["accuracy"].values == [0.9]


def test_a_stop_reaches_a_rank_that_sends_nothing(
    live_rig: Rig, rpc: Rpc, supervisor: ScriptedSupervisor
) -> None:
    reporter = Reporter(rpc, token_of(supervisor))
    assert not reporter.send(("loss", 1, 0.5)).stop
    live_rig.client.stop(1, grace_s=60)
    pushed = next(reporter.answers)
    assert (pushed.stop, pushed.reason, pushed.received) == (True, "cancel_requested", 1)
    assert 0 < pushed.left_s <= 60
    assert reporter.send(("loss", 2, 0.25)).received == 2, "what it still sends is stored"
    reporter.end()
    assert list(reporter.answers) == [], "the stop is said once"
    assert live_rig.client.metrics(1).series[0].steps == [1, 2]


def test_a_rank_that_reports_after_the_stop_is_told_before_it_sends(
    live_rig: Rig, rpc: Rpc, supervisor: ScriptedSupervisor
) -> None:
    live_rig.client.stop(1, grace_s=60)
    reporter = Reporter(rpc, token_of(supervisor))
    first = next(reporter.answers)
    assert (first.stop, first.received) == (True, 0)
    reporter.end()


def test_a_token_of_metrics_opens_no_other_method_and_no_other_generation(
    live_rig: Rig, rpc: Rpc, supervisor: ScriptedSupervisor
) -> None:
    good = token_of(supervisor)
    for method in METHODS:
        if method.name != "ReportMetrics":
            assert refused(any_call(rpc.as_user(good), method))[0] == "UNAUTHENTICATED"
    for wrong in (good.replace(".0.", ".1.", 1), f"2{good[1:]}", TOKEN):
        with_wrong = rpc.as_user(wrong).call("ReportMetrics", iter(()))
        assert refused(lambda one=with_wrong: last(one))[0] == "UNAUTHENTICATED"
    supervisor.failed()
    reporter = Reporter(rpc, good)
    answer = next(reporter.answers)
    assert (answer.stop, answer.reason) == (True, "superseded")
    reporter.end()


def test_wrong_points_are_refused_and_nothing_is_stored(
    live_rig: Rig, rpc: Rpc, supervisor: ScriptedSupervisor
) -> None:
    for points, rank in (
        ([("", 1, 0.5)], None),
        ([("loss", -1, 0.5)], None),
        ([("loss", 1, 0.5)], 99),
        ([("loss", 1, 0.5)] * 1001, None),
    ):
        reporter = Reporter(rpc, token_of(supervisor))
        code, _, _ = refused(lambda one=reporter, p=points, r=rank: one.send(*p, rank=r))
        assert code == "INVALID_ARGUMENT"
        reporter.end()
    assert live_rig.client.metrics(1).series == []


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    folder = Path(__file__).resolve().parents[2] / "examples" / "grpc"
    return lambda name: runpy.run_path(str(folder / name))


def test_the_example_of_a_rank_sends_metrics_and_stops(
    live_rig: Rig,
    rpc: Rpc,
    supervisor: ScriptedSupervisor,
    examples: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GRPC_ADDRESS", f"127.0.0.1:{rpc.port}")
    monkeypatch.setenv("PHALANX_METRICS_TOKEN", token_of(supervisor))
    main = examples("report.py")["main"]
    main()
    assert capsys.readouterr().out.startswith("loss 0.000000")
    assert live_rig.client.metrics(1).series[0].steps[-1] == 199
    live_rig.client.stop(1, grace_s=60)
    main()
    assert capsys.readouterr().out.startswith("told to stop at step 0")


def test_the_example_of_a_client_submits_and_follows_a_job(
    live_rig: Rig,
    rpc: Rpc,
    examples: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHALANX_TOKEN", TOKEN)
    ended: list[str] = []
    main = examples("submit.py")["main"]
    thread = threading.Thread(target=lambda: ended.append(main(f"127.0.0.1:{rpc.port}")))
    thread.start()
    wait_until(lambda: bool(live_rig.client.jobs().jobs))
    assert live_rig.job(1).name == "grpc"
    live_rig.client.stop(1, grace_s=0)
    thread.join(LIMIT_S)
    assert ended == ["cancelled"]


# -- the port -------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_control_plane_serves_both_ports_and_ends_streams_when_it_stops(tmp_path: Path) -> None:
    port = free_port()
    rpc = Rpc(port)
    with served(tmp_path / "home", Settings(grpc=GrpcSettings(port=port))) as server:
        num = rpc.submit().job.num
        with server.client() as client:
            assert client.job(num).url == rpc.get(num).url
        stream = rpc.call("Feed", jobs_pb2.FeedRequest(place="0"))
        next(stream)
    code, _, _ = refused(lambda: last(stream))
    assert code in ("UNAVAILABLE", "CANCELLED")
    rpc.channel.close()


def encrypted(port: int, ca: str) -> Rpc:
    credentials = grpc.ssl_channel_credentials(ca.encode())
    # Not the connection that an earlier channel has made.
    options = [("grpc.use_local_subchannel_pool", 1)]
    return Rpc(port, channel=grpc.secure_channel(f"localhost:{port}", credentials, options))


def test_the_certificate_of_the_other_port_is_served_also_after_a_renewal(tmp_path: Path) -> None:
    port, certificate = free_port(), made(tmp_path / "home")
    given_settings = Settings(grpc=GrpcSettings(port=port))
    with (
        served(tmp_path / "home", given_settings, certificate) as server,
        server.client() as client,
    ):
        with encrypted(port, certificate.authority).channel as channel:
            assert Rpc(port, channel=channel).submit().job.num == client.jobs().jobs[0].num
        first = serial(port, certificate.authority)
        assert first == serial(server.port, certificate.authority)
        certificate._until = 0
        certificate.renew(NOW)
        assert first != serial(port, certificate.authority) == serial(server.port, server.ca)
        others = (
            Rpc(port),
            encrypted(port, made(tmp_path / "other").authority),
        )
        for one in others:
            with one.channel:
                assert refused(lambda one=one: one.get(1))[0] == "UNAVAILABLE"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(
                AssertionError, match=f"port {port} of 127.0.0.1 cannot be used for gRPC"
            ),
            served(tmp_path / "home", Settings(grpc=GrpcSettings(port=port))),
        ):
            pass


def test_without_the_package_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.startswith("phalanx.server.rpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with (
        pytest.raises(AssertionError, match="needs the package grpc"),
        served(tmp_path / "home", Settings(grpc=GrpcSettings(port=free_port()))),
    ):
        pass


def test_health_and_reflection_are_off_unless_they_are_asked_for(live_rig: Rig) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    def checked(rpc: Rpc) -> int:
        stub = health_pb2_grpc.HealthStub(rpc.channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        return stub.Check(request, timeout=LIMIT_S).status

    with listening(live_rig) as rpc:
        assert refused(lambda: checked(rpc))[0] == "UNIMPLEMENTED"
        names = ProtoReflectionDescriptorDatabase(rpc.channel).get_services
        assert refused(names)[0] == "UNIMPLEMENTED"
    with listening(live_rig, GrpcSettings(health=True, reflection=True)) as rpc:
        assert checked(rpc) == health_pb2.HealthCheckResponse.SERVING
        assert SERVICE in ProtoReflectionDescriptorDatabase(rpc.channel).get_services()


def test_health_is_that_of_readyz(live_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    said = ["no step is completed"]
    monkeypatch.setattr("phalanx.server.observe.readiness._loops", lambda context: said[-1])
    monkeypatch.setattr("phalanx.server.observe.readiness._KEPT_S", 0.0)
    monkeypatch.setattr(rpc_listener, "_HEALTH_S", 0.01)
    with listening(live_rig, GrpcSettings(health=True)) as rpc:
        stub = health_pb2_grpc.HealthStub(rpc.channel)
        stream = stub.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        states = health_pb2.HealthCheckResponse
        assert next(stream).status == states.NOT_SERVING
        said.append("ok")
        assert next(stream).status == states.SERVING
        stream.cancel()
