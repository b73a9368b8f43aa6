"""Trouble with one job, or for a moment with the database, is nobody else's trouble."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from integration.rig import Rig
from phalanx.core.jobs import machine
from phalanx.core.jobs.events import AttemptPlaced
from phalanx.core.jobs.machine import due
from phalanx.core.jobs.model import JobState
from phalanx.errors import InvariantBroken, StoreUnavailable
from phalanx.kit.clock import SystemClock
from phalanx.server.context import Presence
from phalanx.server.loops.runner import until_idle
from phalanx.services.lifecycle import polling, requests
from phalanx.services.lifecycle.polling import poll_leaving_step, poll_step
from phalanx.services.lifecycle.requests import timers_step
from phalanx.services.planning import scheduling
from phalanx.store.tables import jobs

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}


def two_jobs(rig: Rig, **changes: object) -> tuple[int, int]:
    return rig.submit(resources=SMALL, **changes), rig.submit(resources=SMALL, **changes)


def run(rig: Rig, num: int):
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started(pids=(1,))
    return supervisor


def test_a_launch_that_runs_into_a_bug_holds_up_no_other(rig: Rig) -> None:
    real = rig.executor.start

    def start(node, assignment):
        if assignment.gang.job.num == 1:
            raise RuntimeError("a bug")
        real(node, assignment)

    rig.executor.start = start
    two_jobs(rig)
    rig.turn()
    assert {ref.job for ref in rig.executor.started} == {2}
    rig.executor.start = real
    rig.turn(60)  # tried again by itself
    assert {ref.job for ref in rig.executor.started} == {1, 2}


def test_a_launch_that_always_runs_into_a_bug_ends_as_a_failed_start(rig: Rig) -> None:
    """An environment that cannot be encoded, for example: no job holds slots for ever."""
    real = rig.executor.start

    def start(node, assignment):
        real(node, assignment)  # something may have been started
        "\ud800".encode()

    rig.executor.start, rig.executor.slow_deaths = start, True
    num = rig.submit(resources=SMALL, recovery={"start_failed": {"count": 0}})
    for _ in range(6):
        rig.turn(60)
    assert rig.job(num).state == "starting", "its supervisor may still live"
    rig.executor.slow_deaths = False
    for _ in range(3):
        rig.turn(60)
    view = rig.job(num)
    assert (view.state, view.reason.code) == ("failed", "start_failed")
    assert "internal error of the platform: UnicodeEncodeError" in view.reason.message
    assert not rig.executor.alive
    assert rig.client.pool("local").num_free == 4
    rig.check_log(num)


def test_a_stored_contract_that_cannot_be_read_any_more_ends_its_job_alone(rig: Rig) -> None:
    policy = {"start_failed": {"count": 0}}
    one, two = two_jobs(rig, recovery=policy)
    rig.store.transact(
        lambda tx: tx.conn.execute(
            jobs.update().where(jobs.c.num == one).values(contract={"rnu": "x"})
        )
    )
    rig.turn()
    rig.turn()
    view = rig.job(one)
    assert (view.state, view.reason.code) == ("failed", "start_failed")
    assert "stored contract" in view.reason.message
    assert rig.job(two).state == "starting"


def test_timers_of_the_others_fire_beside_a_job_with_a_bug(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_jobs(rig, max_duration="60s")
    rig.turn()
    run(rig, one)
    run(rig, two)

    def broken(job, now):
        if job.num == one:
            raise InvariantBroken("a bug")
        return due(job, now)

    monkeypatch.setattr(requests, "due", broken)
    with pytest.raises(InvariantBroken):
        timers_step(rig.platform, rig.clock.advance(61))
    assert (rig.job(one).state, rig.job(two).state) == ("running", "stopping")


def test_deaths_of_the_others_are_noted_beside_a_job_with_a_bug(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_jobs(rig)
    rig.turn()
    for num in (one, two):
        rig.executor.bury(run(rig, num).ref)
    real = polling._gone

    def broken(job, *rest):
        if job.num == one:
            raise InvariantBroken("a bug")
        return real(job, *rest)

    monkeypatch.setattr(polling, "_gone", broken)
    with pytest.raises(InvariantBroken):
        poll_step(rig.platform, rig.clock.now())
    assert (rig.job(one).state, rig.job(two).state) == ("running", "queued")


@pytest.mark.parametrize("healthy", [False, True])
def test_a_database_that_cannot_be_asked_is_no_reason_to_leave(tmp_path, healthy: bool) -> None:
    """With a healthy one and no job, the guard off, it leaves."""

    def view(work):
        if not healthy:
            raise StoreUnavailable("locked")
        return 0

    clock = SystemClock()
    home = SimpleNamespace(root=tmp_path)
    context = SimpleNamespace(
        clock=clock,
        presence=Presence(clock.monotonic() - 3600),
        platform=SimpleNamespace(home=home, store=SimpleNamespace(view=view)),
    )

    async def main() -> bool:
        leaving = asyncio.create_task(until_idle(context, 0.02))
        done, _ = await asyncio.wait({leaving}, timeout=30 if healthy else 0.5)
        leaving.cancel()
        return bool(done)

    assert asyncio.run(main()) is healthy


@pytest.mark.parametrize("guarded", [True, False])
def test_a_start_that_runs_into_a_bug_holds_up_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Without the guard nobody starts."""
    one, two = two_jobs(rig)
    real = machine.TRANSITIONS[JobState.QUEUED, AttemptPlaced]

    def placed(job, event, now):
        if job.num == one:
            raise InvariantBroken("a bug")
        return real(job, event, now)

    monkeypatch.setitem(machine.TRANSITIONS, (JobState.QUEUED, AttemptPlaced), placed)
    if not guarded:
        commit = scheduling.commit_many
        monkeypatch.setattr(
            scheduling, "commit_many", lambda *a, on_bug, **rest: commit(*a, **rest)
        )
        with pytest.raises(InvariantBroken):
            rig.turn()
        assert [rig.job(num).state for num in (one, two)] == ["queued", "queued"]
        return
    rig.turn()
    assert [rig.job(num).state for num in (one, two)] == ["queued", "starting"]
    rig.turn(1)  # it is not planned again for a while, and everybody may read why
    assert (
        rig.job(one).pending_reason.code == "blocked"
        and "a bug" in rig.job(one).pending_reason.message
    )
    assert rig.client.why(one).reason.code == "blocked"
    monkeypatch.setitem(machine.TRANSITIONS, (JobState.QUEUED, AttemptPlaced), real)
    rig.turn(scheduling.BLOCKED_US / 1e6)
    assert rig.job(one).state == "starting"


def test_who_is_expected_to_go_is_asked_for_apart_from_all_others(rig: Rig) -> None:
    one, two = two_jobs(rig)
    rig.turn()
    leaves, dies = run(rig, one), run(rig, two)
    asked: list[set[int]] = []
    poll = rig.executor.poll
    rig.executor.poll = lambda refs: (asked.append({ref.job for ref in refs}), poll(refs))[1]
    now = rig.clock.now()
    assert poll_leaving_step(rig.platform, now).refs == () and not asked
    leaves.ended(0, "succeeded", step=2)
    leaves.leave()
    rig.executor.bury(dies.ref)
    assert poll_leaving_step(rig.platform, now).refs == () and asked == [{one}]
    assert (rig.job(one).state, rig.job(two).state) == ("succeeded", "running")
    poll_step(rig.platform, now)
    assert asked[-1] == {two} and rig.job(two).state == "queued"
