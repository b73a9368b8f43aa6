"""Schedules through HTTP and their step: once per due time, policies, rights, crashes and clocks."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from integration.rig import URL, Rig, open_rig, spec
from phalanx.core.contract.access import Scope
from phalanx.errors import (
    Conflict,
    NotFound,
    PermissionDenied,
    SpecInvalid,
    StoreUnavailable,
)
from phalanx.kit.clock import ManualClock
from phalanx.schemas.api.schedules import PutScheduleRequest, ScheduleView
from phalanx.sdk import PhalanxClient
from phalanx.server.loops.runner import _has_work
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.schedules import fire
from phalanx.services.schedules.fire import schedules_step
from phalanx.store import Store, jobs
from phalanx.store.schedules import rows

pytest.importorskip("cronsim")  # an environment of an earlier release does not have it
pytestmark = pytest.mark.integration
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
SPEC = spec(name="nightly", resources={"slots_per_node": 1})


def put(rig: Rig, name: str = "nightly", **changes: Any) -> ScheduleView:
    fields: dict[str, Any] = {"spec": SPEC, "cron": "0 * * * *", "owner": "ada"} | changes
    project = fields["spec"].get("project", "default")
    return rig.client.schedules.put(name, PutScheduleRequest(**fields), project)


def step(rig: Rig, seconds: float = 0.0) -> int | None:
    return schedules_step(rig.platform, rig.clock.advance(seconds))


def to_next(rig: Rig, name: str = "nightly") -> None:
    """Move the clock to the next due time."""
    at = rig.client.schedules.show(name).next_at
    assert at is not None
    rig.clock.advance(at.timestamp() - rig.clock.now() / 1e6)


def runs(rig: Rig, name: str = "nightly", project: str = "default") -> list[tuple[str, int | None]]:
    return [(one.outcome, one.job) for one in rig.client.schedules.show(name, project).runs][::-1]


def states(rig: Rig) -> list[str]:
    return [one.state for one in rig.client.jobs(sort="num").jobs]


def test_a_due_time_submits_one_job_with_its_time_and_owner(rig: Rig) -> None:
    made = put(rig)
    assert step(rig) == round(made.next_at.timestamp() * 1e6)
    assert states(rig) == []
    to_next(rig)
    step(rig)
    assert step(rig) is not None
    assert runs(rig) == [("submitted", 1)]
    stored = rig.store.view(lambda tx: jobs.load(tx, 1))
    assert (stored.facts.owner, stored.facts.name) == ("ada", "nightly")
    env = contract_of(stored.facts).env
    due = made.next_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert (env["PHALANX_SCHEDULE"], env["PHALANX_SCHEDULED_AT"]) == ("nightly", due)
    view = rig.client.schedules.show("nightly")
    assert [one.minute for one in view.next] == [0] * 5 and view.next[0] == view.next_at
    assert view.runs[0].due_at == made.next_at
    assert rig.client.schedules.list()[0].last_run == view.runs[0]
    assert rig.client.schedules.list("elsewhere") == []


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", ["missed"]),
        ("last", ["missed", "submitted"]),
        ("all", ["missed", "submitted", "submitted", "submitted"]),
    ],
)
def test_times_of_an_outage(rig: Rig, catch_up: str, expected: list[str]) -> None:
    put(rig, catch_up=catch_up, catch_up_limit=3, overlap="allow")
    to_next(rig)
    step(rig, 9.5 * HOUR)
    assert [one for one, _ in runs(rig)] == expected
    dues = [one.due_at for one in rig.client.schedules.show("nightly").runs]
    assert dues == sorted(dues, reverse=True) and len(set(dues)) == len(dues)
    step(rig)
    assert [one for one, _ in runs(rig)] == expected


@pytest.mark.parametrize(
    ("overlap", "outcomes", "left"),
    [
        ("forbid", ["submitted", "overlapped"], ["queued"]),
        ("allow", ["submitted", "submitted"], ["queued", "queued"]),
        ("replace", ["submitted", "submitted"], ["cancelled", "queued"]),
    ],
)
def test_a_job_that_is_not_over(
    rig: Rig, overlap: str, outcomes: list[str], left: list[str]
) -> None:
    put(rig, overlap=overlap)
    for _ in range(2):
        to_next(rig)
        step(rig)
    assert ([one for one, _ in runs(rig)], states(rig)) == (outcomes, left)
    if overlap == "forbid":
        assert rig.client.schedules.show("nightly").runs[0].message == "j-1 is not over"
        rig.client.stop(1)
        to_next(rig)
        step(rig)
        assert runs(rig)[-1] == ("submitted", 2)


def test_a_schedule_of_an_array_waits_for_all_of_it(rig: Rig) -> None:
    put(rig, spec={**SPEC, "array": "0-2"})
    to_next(rig)
    step(rig)
    rig.client.stop(1)
    rig.client.stop(2)
    to_next(rig)
    step(rig)
    assert runs(rig) == [("submitted", 1), ("overlapped", None)]
    rig.client.stop(3)
    to_next(rig)
    step(rig)
    assert runs(rig)[-1] == ("submitted", 4)


class Crash(Exception):
    """What ends a process in these tests."""


def test_a_crash_before_the_commit_loses_nothing_and_one_behind_it_repeats_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(rig)
    to_next(rig)

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_announce", crash)  # at the end of the transaction
        with pytest.raises(Crash):
            step(rig)
    assert (runs(rig), states(rig)) == ([], [])
    with monkeypatch.context() as patch:
        patch.setattr(rows, "next_at", crash)  # behind the commit
        with pytest.raises(Crash):
            step(rig)
    step(rig)
    assert (runs(rig), states(rig)) == ([("submitted", 1)], ["queued"])


def test_two_leaders_with_the_same_view_start_one_job(rig: Rig) -> None:
    put(rig)
    to_next(rig)
    now = rig.clock.now()
    (seen,) = rig.store.view(lambda tx: rows.due(tx, now, 10))
    for _ in range(2):
        fire._handle(rig.platform, seen, now)
    assert (runs(rig), states(rig)) == ([("submitted", 1)], ["queued"])


_KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from integration.rig import open_rig
from phalanx.kit.clock import ManualClock
from phalanx.services.schedules.fire import schedules_step
from phalanx.store import Store
from phalanx.store.schedules import rows
def kill(*args):
    os.kill(os.getpid(), signal.SIGKILL)
with open_rig(Path({home!r}), clock=ManualClock({now})) as rig:
    if {before}:
        Store._announce = kill
    else:
        rows.next_at = kill
    schedules_step(rig.platform, {now})
"""


@pytest.mark.extras
@pytest.mark.sqlite
@pytest.mark.parametrize("before", [True, False])
def test_sigkill_around_the_commit(tmp_path: Path, before: bool) -> None:
    home, tests = tmp_path / "home", str(Path(__file__).parents[1])
    with open_rig(home) as rig:
        put(rig)
        to_next(rig)
        now = rig.clock.now()
    code = _KILLED.format(tests=tests, home=str(home), now=now, before=before)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with open_rig(home, clock=ManualClock(now)) as rig:
        assert len(runs(rig)) == (0 if before else 1)
        step(rig)
        assert (runs(rig), states(rig)) == ([("submitted", 1)], ["queued"])


def test_a_clock_that_jumps_an_hour_repeats_nothing(rig: Rig) -> None:
    put(rig, cron="*/10 * * * *", overlap="allow")
    to_next(rig)
    step(rig)
    step(rig, HOUR)  # forward: the newest of six times, the others are missed
    assert [one for one, _ in runs(rig)] == ["submitted", "missed", "submitted"]
    now = rig.clock.now() - round(HOUR * 1e6)
    for minutes in range(0, 60, 5):  # and back again: each of these times was handled
        schedules_step(rig.platform, now + round(minutes * MINUTE * 1e6))
    assert len(runs(rig)) == 3
    # Even if the schedule is resumed meanwhile, with a clock that is behind.
    rig.clock.advance(-HOUR)
    rig.client.schedules.pause("nightly")
    rig.client.schedules.resume("nightly")
    for _ in range(6):
        to_next(rig)
        step(rig)
    dues = [one.due_at for one in rig.client.schedules.show("nightly").runs]
    assert len(set(dues)) == len(dues)


def test_pause_resume_replace_and_remove(rig: Rig) -> None:
    put(rig)
    assert rig.client.schedules.pause("nightly").next_at is None
    step(rig, 5 * HOUR)
    resumed = rig.client.schedules.resume("nightly")
    assert resumed == rig.client.schedules.resume("nightly")  # may be repeated
    assert (runs(rig), resumed.next_at.timestamp() * 1e6 > rig.clock.now()) == ([], True)
    with pytest.raises(Conflict, match="has a schedule nightly"):
        put(rig)
    changed = put(rig, cron="30 4 * * *", timezone="Asia/Tokyo", replace=True)
    assert changed.next_at.astimezone(UTC).strftime("%H:%M") == "19:30"
    assert changed.created_at == resumed.created_at
    rig.client.schedules.remove("nightly")
    for call in (rig.client.schedules.remove, rig.client.schedules.show, rig.client.schedules.run):
        with pytest.raises(NotFound, match="no schedule nightly"):
            call("nightly")
    assert step(rig, DAY) is None


def test_a_run_on_request_is_beside_the_times(rig: Rig) -> None:
    put(rig, paused=True)
    first = rig.client.schedules.run("nightly", key="k" * 20)
    assert rig.client.schedules.run("nightly", key="k" * 20) == first
    second = rig.client.schedules.run("nightly")
    assert (first.job, second.job, second.on_request, second.by) == (1, 2, True, "user:admin")


def test_a_refused_run_says_why_and_the_schedule_goes_on(rig: Rig) -> None:
    put(rig)
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "default", "max_priority": 10}]})
    to_next(rig)
    step(rig)
    refused = rig.client.schedules.show("nightly").runs[0]
    assert refused.outcome == "refused" and "allows at most 10" in refused.message
    # A removed project has no limits any more; a full quota only lets the job wait.
    rig.client.remove_project("default")
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "default", "max_running": 1}]})
    rig.submit(resources={"slots_per_node": 1})
    rig.turn()
    to_next(rig)
    step(rig)
    rig.turn()
    assert runs(rig)[-1] == ("submitted", 2) and rig.job(2).state == "queued"


def test_trouble_of_the_database_is_no_refusal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    put(rig)
    to_next(rig)
    with monkeypatch.context() as patch:

        def busy(*_: object, **__: object) -> None:
            raise StoreUnavailable("the database is busy")

        patch.setattr(fire, "store_batch", busy)
        with pytest.raises(StoreUnavailable):
            step(rig)
    step(rig)
    assert runs(rig) == [("submitted", 1)]


def client_of(rig: Rig, name: str, role: str | None) -> PhalanxClient:
    rig.client.accounts.add(name)
    if role is not None:
        rig.client.accounts.grant(f"user:{name}", role, "default")
    token = rig.client.create_token(name, [Scope.ADMIN], principal=f"user:{name}").token
    return PhalanxClient(URL, token, transport=rig.transport)


def test_jobs_have_the_present_rights_of_the_owner(rig: Rig) -> None:
    with client_of(rig, "mia", "member") as mia, client_of(rig, "bob", "member") as bob:
        request = PutScheduleRequest(spec=SPEC, cron="0 * * * *", overlap="allow")
        made = mia.schedules.put("hers", request)
        assert (made.principal, made.owner) == ("user:mia", "mia")
        for call in (bob.schedules.remove, bob.schedules.run, bob.schedules.pause):
            with pytest.raises(PermissionDenied, match="only its owner and operators"):
                call("hers")
        with pytest.raises(PermissionDenied):
            bob.schedules.put("hers", request.model_copy(update={"replace": True}))
        to_next(rig, "hers")
        step(rig)
        assert rig.job(1).owner == "mia"
        rig.client.accounts.take("user:mia", "default")
        to_next(rig, "hers")
        step(rig)
        refused = rig.client.schedules.show("hers").runs[0].message
        assert "user:mia may not do this in project 'default' (it needs jobs.submit)" in refused
        rig.client.accounts.grant("user:mia", "member", "default")
        to_next(rig, "hers")
        step(rig)
        rig.client.accounts.remove("user:mia")
        to_next(rig, "hers")
        step(rig)
    outcomes = ["submitted", "refused", "submitted", "refused"]
    assert [one for one, _ in runs(rig, "hers")] == outcomes
    said = rig.client.schedules.show("hers").runs[0].message
    assert "user:mia, the owner of schedule hers, has no account any more" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"timezone": "Mars"}, "no such time zone"),
        ({"catch_up": "all"}, "write `last`, or let them overlap"),
        ({"spec": {**SPEC, "priority": 101}}, "priority"),
        ({"spec": {**SPEC, "resources": {"slots_per_node": 999}}}, "resources"),
        ({"spec": {**SPEC, "env": {"API_TOKEN": "tok-1234567890"}}}, "phalanx secrets set"),
    ],
)
def test_mistakes_are_refused_when_the_schedule_is_made(
    rig: Rig, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecInvalid, match=says):
        put(rig, **changes)
    assert rig.client.schedules.list() == []


def test_the_project_is_that_of_the_spec(rig: Rig) -> None:
    with pytest.raises(SpecInvalid, match="is not the project of the schedule"):
        rig.client.schedules.put("x", PutScheduleRequest(spec=SPEC, cron="0 * * * *"), "vision")


def test_old_runs_are_forgotten_and_changes_are_audited(rig: Rig) -> None:
    put(rig, overlap="forbid", cron="* * * * *")
    to_next(rig)
    for _ in range(rows.KEPT_RUNS + 3):
        step(rig, MINUTE)
    kept = rig.store.view(lambda tx: rows.runs_of(tx, "default", "nightly", 1000))
    assert len(kept) == rows.KEPT_RUNS + 1  # that of the job that is not over stays
    assert [one.outcome for one in kept].count("submitted") == 1 and states(rig) == ["queued"]
    rig.client.stop(1)
    step(rig, MINUTE)
    assert [
        one.job for one in rig.store.view(lambda tx: rows.runs_of(tx, "default", "nightly", 1000))
    ][-1] is None
    rig.client.schedules.pause("nightly")
    entries = [one for one in rig.client.accounts.audit() if "/schedules/" in one.target]
    assert [one.changes[0].what for one in entries] == ["schedule default/nightly"] * 2
    assert entries[0].changes[0].after["paused"] is True


def test_an_embedded_control_plane_stays_up_for_a_schedule(rig: Rig) -> None:
    import asyncio

    assert not asyncio.run(_has_work(rig.context))
    put(rig)
    assert asyncio.run(_has_work(rig.context))
    rig.client.schedules.pause("nightly")
    assert not asyncio.run(_has_work(rig.context))
