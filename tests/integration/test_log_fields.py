"""Log lines of requests name the request, its caller and its trace; answers name the request."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from integration.rig import TOKEN, URL, Rig
from phalanx.core.contract.secrecy import redacted
from phalanx.errors import StoreUnavailable
from phalanx.kit.log_lines import JsonFormatter
from phalanx.server.routers import jobs
from phalanx.services.planning.scheduling import scheduling_step

pytestmark = pytest.mark.integration
TRACE, SPAN = "a" * 32, "b" * 16


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter(redacted, {"service": "control-plane"}))
    log = logging.getLogger("phalanx")
    log.addHandler(handler)
    yield out
    log.removeHandler(handler)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_a_line_of_a_request_names_it(
    rig: Rig, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StoreUnavailable("cannot reach postgres://ada:correct-horse@db")

    monkeypatch.setattr(jobs.views, "list_checkpoints", fails)
    num = rig.submit()
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Request-Id": "from-a-proxy.1"}
    headers["traceparent"] = f"00-{TRACE}-{SPAN}-01"
    with httpx.Client(base_url=URL, transport=rig.transport) as http:
        answer = http.get(f"/api/v1/jobs/{num}/checkpoints", headers=headers)
        other = http.get("/api/v1/info", headers={"X-Request-Id": "no\tid"})
    assert answer.status_code == 503 and answer.headers["x-request-id"] == "from-a-proxy.1"
    assert other.status_code == 401 and len(other.headers["x-request-id"]) == 16
    (line,) = read(lines)
    assert line["level"] == "error" and "correct-horse" not in json.dumps(line)
    assert line["request_id"] == "from-a-proxy.1" and line["actor"]
    assert (line["trace_id"], line["span_id"]) == (TRACE, SPAN)


def test_a_line_about_a_job_has_it_as_a_field(
    rig: Rig, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.services.lifecycle import dispatch

    num = rig.submit()
    scheduling_step(rig.platform, rig.clock.now())

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(dispatch, "assignments", fails)
    rig.turn(1)
    found = [one for one in read(lines) if one.get("job") == num]
    assert [one["event"] for one in found] == ["command_failed"]
    assert "RuntimeError: a bug" in found[0]["exception"]
