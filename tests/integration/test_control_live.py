"""Live views: what arrives, in which order, once each, and when a stream ends."""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from integration.rig import Rig, spec
from integration.served import TOKEN, Served, served
from phalanx.cli.app import app
from phalanx.cli.verbs import logs
from phalanx.errors import NotFound, UserError
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.sdk import PhalanxClient
from phalanx.sdk.live import LiveMessage, decode
from phalanx.server.live import event_stream
from phalanx.server.settings import ApiSettings, Settings
from phalanx.services.queries import live
from phalanx.store.events import FeedFilter
from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(event_stream, "_TICK_S", 0.01)
    monkeypatch.setattr("phalanx.sdk.live._PAUSE_S", 0.01)
    with served(tmp_path / "home") as one:
        yield one


def submit(client: PhalanxClient, **changes: object) -> int:
    return client.submit(SubmitRequest(spec=spec(**changes))).job.num


def take(stream: Iterator[LiveMessage], count: int) -> list[LiveMessage]:
    return [next(stream) for _ in range(count)]


def test_events_of_all_jobs_arrive_once_each_also_over_new_connections(server: Served) -> None:
    with server.client() as client, server.client() as other:
        first = submit(client)
        stream = client.live.follow(begin="0", kinds=["submitted"])
        assert next(stream).body.job == first
        second = submit(other)
        message = next(stream)
        assert (message.body.job, message.body.kind) == (second, "submitted")
        stream.close()
        third = submit(other)
        again = client.live.follow(begin=message.place, kinds=["submitted"])
        assert next(again).body.job == third
        again.close()


def test_a_place_that_is_not_kept_repeats_events(server: Served) -> None:
    """The negative control: without the place of the last message, all come again."""
    with server.client() as client:
        first = submit(client)
        for _ in range(2):
            stream = client.live.follow(begin="0", kinds=["submitted"])
            assert next(stream).body.job == first
            stream.close()


def test_a_job_is_followed_to_its_end_with_its_output_and_metrics(rig: Rig) -> None:
    num = rig.submit()
    rig.turn()
    ranks = rig.supervisor(num)
    ranks.ready()
    ranks.started()
    ranks.log(0, b"hello\nwor")
    ranks.step(0, 1, 0.25)
    place, kinds, found = "", [], []
    for _ in range(3):
        page = live.live_job(rig.platform, num, ("events", "metrics", "logs"), place)
        place = page.place
        kinds += [one.kind for one in page.messages]
        found += [(one.kind, json.loads(one.data)) for one in page.messages]
    assert not page.done and not page.messages, "nothing is sent twice"
    assert [one["text"] for kind, body in found if kind == "logs" for one in body] == ["hello"]
    points = [one for kind, body in found if kind == "metrics" for one in body]
    assert points[0]["values"]["loss"] == 0.25 and points[0]["step"] == 1
    rig.client.stop(num, grace_s=0)
    ranks.ended(exit_code=0)
    ranks.leave()
    rig.turn()
    texts, states = [], []
    while not page.done:
        page = live.live_job(rig.platform, num, ("events", "metrics", "logs"), page.place)
        texts += [
            line["text"]
            for one in page.messages
            if one.kind == "logs"
            for line in json.loads(one.data)
        ]
        states += [json.loads(one.data)["state"] for one in page.messages if one.kind == "event"]
    assert texts == ["wor"] and states[-1] in ("cancelled", "succeeded")


def test_a_stream_of_a_job_ends_when_the_job_has(server: Served) -> None:
    with server.client() as client, server.client() as other:
        # A job that waits for another is never placed: no supervisor is there to let it go.
        num = submit(client, depends_on=f"j-{submit(client)}")
        stream = client.live.follow_job(num)
        assert next(stream).body.kind == "submitted"
        other.stop(num, grace_s=0)
        states = [one.body.state for one in stream]
        assert states[-1] == "cancelled", "the iterator has ended by itself"


def test_places_that_are_none_are_refused(rig: Rig) -> None:
    num = rig.submit()
    for wrong in ("x", "-1", "9" * 30, "1:x:", "²"):
        with pytest.raises(UserError, match="no place in a live view"):
            live.live_job(rig.platform, num, ("events",), wrong)
        with pytest.raises(UserError):
            live.live_feed(rig.platform, FeedFilter(), wrong)
    with pytest.raises(NotFound):
        live.live_job(rig.platform, 99, ("events",), "")


def test_the_feed_has_what_its_filter_names_and_moves_past_the_rest(rig: Rig) -> None:
    one, two = rig.submit(project="a"), rig.submit(project="b")
    page = live.feed_page(rig.platform, FeedFilter(projects=("b",)), "0")
    assert {event.job for event in page.events} == {two} and not page.more
    last = live.feed_page(rig.platform, FeedFilter(), "0").events[-1].feed
    assert page.cursor == last
    nothing = live.feed_page(rig.platform, FeedFilter(projects=()), "0")
    assert nothing.events == [] and nothing.cursor == last
    some = live.feed_page(rig.platform, FeedFilter(jobs=(one,)), "0", limit=1)
    assert [event.job for event in some.events] == [one]
    assert live.feed_page(rig.platform, FeedFilter(), live.NEW).events == []


def test_a_caller_gets_the_projects_that_it_sees() -> None:
    assert live.projects_of(None, None) is None
    assert live.projects_of("a", None) == ("a",)
    assert live.projects_of(None, ("a", "b")) == ("a", "b")
    with pytest.raises(NotFound, match="there is no project c"):
        live.projects_of("c", ("a", "b"))


def test_a_revoked_token_ends_the_stream(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_CHECK_S", 0.0)
    with server.client() as client:
        made = client.create_token("viewer", ["read"])
        with PhalanxClient(server.url, made.token) as viewer:
            stream = viewer.live.follow(begin="0")
            client.revoke_token(made.view.id)
            submit(client)
            with pytest.raises(Exception, match="token is missing or wrong"):
                for _ in stream:
                    pass


def test_without_the_check_the_stream_of_a_revoked_token_goes_on(server: Served) -> None:
    """The negative control: within the time between two checks, events still arrive."""
    with server.client() as client:
        made = client.create_token("viewer", ["read"])
        with PhalanxClient(server.url, made.token) as viewer:
            first = submit(client)
            stream = viewer.live.follow(begin="0", kinds=["submitted"])
            assert next(stream).body.job == first
            client.revoke_token(made.view.id)
            second = submit(client)
            assert next(stream).body.job == second
            stream.close()


def test_more_streams_than_the_limit_are_refused(tmp_path: Path) -> None:
    settings = Settings(api=ApiSettings(max_streams=1))
    with served(tmp_path / "home", settings) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{server.url}/api/v1/events/stream"
        with httpx.stream("GET", url, headers=headers) as one:
            assert one.status_code == 200
            assert one.headers["content-type"].startswith("text/event-stream")
            lines = one.iter_lines()
            assert next(lines).startswith("retry:")
            refused = httpx.get(url, headers=headers)
            assert (refused.status_code, refused.json()["retryable"]) == (429, True)


def test_a_client_that_left_is_not_counted(tmp_path: Path) -> None:
    settings = Settings(api=ApiSettings(max_streams=1))
    with served(tmp_path / "home", settings) as server, server.client() as client:
        for _ in range(5):
            submit(client)
            stream = client.live.follow(begin="0", kinds=["submitted"])
            next(stream)
            stream.close()


def test_a_stream_of_a_job_that_does_not_end_is_kept_alive(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A placed job with a supervisor that does not answer is stopping until its time to save is over."""
    monkeypatch.setattr(event_stream, "_HEARTBEAT_S", 0.05)
    with server.client() as client:
        num = submit(client)
        wait_until(lambda: client.job(num).state == "starting")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{server.url}/api/v1/jobs/{num}/stream"
        with httpx.stream("GET", url, headers=headers, timeout=60) as one:
            lines = one.iter_lines()
            client.stop(num)
            seen = [next(lines)]
            while not (seen[-1] == ":" and any("stop_requested" in line for line in seen)):
                seen.append(next(lines))
        assert client.job(num).state == "stopping"


def test_a_stream_ends_when_the_server_stops(tmp_path: Path) -> None:
    ended = threading.Event()
    seen: list[str] = []
    with served(tmp_path / "home") as server:

        def follow() -> None:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.stream(
                "GET", f"{server.url}/api/v1/events/stream", headers=headers, timeout=60
            ) as one:
                begun.set()
                seen.extend(one.iter_lines())
            ended.set()

        begun = threading.Event()
        thread = threading.Thread(target=follow)
        thread.start()
        assert begun.wait(60)
    thread.join(60)
    assert ended.is_set() and 'data: {"reason": "stopping"}' in seen


def test_events_are_printed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "connected", lambda ctx: nullcontext(rig.client))
    one, two = rig.submit(), rig.submit()

    def printed(*words: str) -> str:
        done = CliRunner().invoke(app, ["events", *words], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    assert f"j-{one}" in printed() and f"j-{two}" in printed()
    assert f"j-{two}" not in printed(f"j-{one}")
    lines = [json.loads(line) for line in printed("--json").splitlines()]
    assert [line["feed"] for line in lines] == sorted(line["feed"] for line in lines)
    assert printed("--after", str(lines[-1]["feed"])) == ""
    assert {line["kind"] for line in lines} >= {"submitted"}
    assert printed("--kind", "no_such_kind") == ""


def test_messages_are_read_as_the_standard_says() -> None:
    lines = ["retry: 1000", "", ":", "id: 7", "", "event: event", "data: {", "data: }", ""]
    lines += ["id: 8", "data: x", "", "data: cut off"]
    assert list(decode(iter(lines))) == [("event", "{\n}", "7"), ("message", "x", "8")]


def test_a_long_poll_ends_when_its_client_leaves(tmp_path: Path) -> None:
    """Four polls are all that this token may have: while one of them is open, it gets no answer."""
    settings = Settings(api=ApiSettings(max_requests_per_token=4, max_wait_s=3600))
    with served(tmp_path / "home", settings) as server, server.client() as client:
        num = submit(client)
        last = client.live.feed().cursor
        headers = {"Authorization": f"Bearer {TOKEN}"}
        asked = f"GET /api/v1/events?wait_s=3600&after={last} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        asked += f"Authorization: Bearer {TOKEN}\r\n\r\n"
        polls = [server.connect(asked.encode()) for _ in range(4)]

        def status() -> int:
            return httpx.get(f"{server.url}/api/v1/jobs/{num}", headers=headers).status_code

        def all_served() -> bool:
            """Whether no request is left; a poll that was refused because of `status` is sent again."""
            for refused in select.select(polls, [], [], 0)[0]:
                refused.close()
                polls[polls.index(refused)] = server.connect(asked.encode())
            return status() == 429

        wait_until(all_served, "the polls are being served")
        for one in polls:
            one.close()
        wait_until(lambda: status() == 200, "the polls have ended", guard_s=60)
