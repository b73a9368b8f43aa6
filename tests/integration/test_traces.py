"""Traces of jobs through the route, the client and `phalanx trace`."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs.monitoring import traces
from phalanx.core.tracing.identity import JobTrace
from phalanx.errors import NotFound
from phalanx.services.tracing.reading import begin
from phalanx.store import jobs

pytestmark = pytest.mark.integration


def recovered(rig: Rig) -> int:
    """A job that restarts once and succeeds."""
    num = rig.submit(name="digits")
    rig.turn(5)
    supervisor = rig.supervisor(num)
    rig.clock.advance(2)
    supervisor.ready()
    rig.clock.advance(1)
    supervisor.started()
    rig.clock.advance(3)
    supervisor.step(0, 4)
    rig.clock.advance(10)
    supervisor.failed(message="password=hunter2")
    supervisor.ended(0, "failed", step=4)
    for _ in range(3):
        rig.turn(30)
    supervisor.started(1)
    rig.clock.advance(2)
    supervisor.step(1, 5)
    rig.clock.advance(10)
    supervisor.ended(1, "succeeded", step=9)
    supervisor.leave()
    rig.turn(1)
    return num


def trace_of(rig: Rig, num: int) -> JobTrace:
    return rig.store.view(lambda tx: begin(tx, num)).trace


def test_the_route_shows_where_the_time_went(rig: Rig) -> None:
    num = recovered(rig)
    view = rig.client.traces.of_job(num)
    trace = trace_of(rig, num)
    assert view.trace_id == trace.root.trace and not view.truncated
    assert all(one.end is not None for one in view.spans)
    lasted = {}
    for one in view.spans:
        assert one.end is not None
        lasted.setdefault(one.name, []).append((one.end - one.begin).total_seconds())
    assert lasted["queued"] == [5] and lasted["launch"] == [2]
    assert lasted["start ranks"][0] == 1 and lasted["first step"] == [3, 2]
    assert len(lasted["generation"]) == 2 and len(lasted["detect failure"]) == 1
    assert lasted["job"][0] == max(max(each) for each in lasted.values())
    roots = {one.span_id for one in view.spans if one.name == "generation"}
    assert roots == {trace.generation(1, 0).span, trace.generation(1, 1).span}
    assert "hunter2" not in view.model_dump_json()


def test_the_uid_of_the_job_is_in_its_identifiers(rig: Rig) -> None:
    num = rig.submit()
    known = rig.store.view(lambda tx: jobs.identity_of(tx, num))
    assert known is not None and known[0] == "default" and known[1]
    assert trace_of(rig, num) == JobTrace(num, known[1])


def test_of_many_spans_the_oldest_leaves_are_left_out(rig: Rig) -> None:
    num = recovered(rig)
    whole = rig.client.traces.of_job(num)
    view = rig.client.traces.of_job(num, limit=10)
    assert view.truncated and len(view.spans) < len(whole.spans)
    known = {one.span_id for one in view.spans}
    assert all(one.parent_id in known for one in view.spans if one.parent_id is not None)
    with pytest.raises(NotFound):
        rig.client.traces.of_job(99)


def test_the_verb_prints_a_tree_and_otlp(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "connected", lambda ctx: nullcontext(rig.client))
    num = recovered(rig)
    done = CliRunner().invoke(app, ["trace", f"j-{num}"], catch_exceptions=False)
    assert done.exit_code == 0
    names = [line.split("\t")[0] for line in done.stdout.splitlines()[1:]]
    assert names[:4] == ["job", "  queued", "  attempt 1", "    starting"]
    assert names.index("    generation 0") < names.index("      detect failure")
    assert "cause=rank_crash rank=1" in done.stdout
    printed = CliRunner().invoke(app, ["trace", f"j-{num}", "--json"], catch_exceptions=False)
    document = json.loads(printed.stdout)
    assert document == rig.client.traces.otlp(num)
    (scope,) = document["resourceSpans"][0]["scopeSpans"]
    assert len(scope["spans"]) == len(rig.client.traces.of_job(num).spans)


def test_a_live_job_shows_what_has_not_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "connected", lambda ctx: nullcontext(rig.client))
    num = rig.submit()
    done = CliRunner().invoke(app, ["trace", f"j-{num}"], catch_exceptions=False)
    assert done.stdout.count(" so far") == 2
    printed = CliRunner().invoke(app, ["trace", f"j-{num}", "--json"], catch_exceptions=False)
    assert json.loads(printed.stdout)["resourceSpans"][0]["scopeSpans"][0]["spans"] == []
