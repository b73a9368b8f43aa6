"""A trial's job in the control plane: its reports, its target, and the pause at it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.rig import Rig, ScriptedSupervisor

from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.events import TargetRaised
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.commit import commit_events
from phalanx.store import events
from phalanx.store.studies import trial_reports

pytestmark = pytest.mark.integration


@pytest.fixture
def supervisor(rig: Rig) -> ScriptedSupervisor:
    rig.submit()
    rig.turn()
    found = rig.supervisor(1)
    found.ready()
    found.started()
    return found


def raise_target(rig: Rig, until: int) -> None:
    now, event = rig.clock.now(), TargetRaised(until)
    rig.store.transact(lambda tx: commit_events(tx, 1, [event], now, "test"))


def report(supervisor: ScriptedSupervisor, unit: int, value: Any, **rest: Any) -> wire.TrialReport:
    return wire.TrialReport(
        seq=supervisor.next_seq(),
        generation=0,
        unit=unit,
        value=value,
        metrics={"loss": value},
        at=supervisor.now(),
        **rest,
    )


def test_each_unit_is_stored_once_and_a_difference_is_told(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    first = report(supervisor, 1, 0.5)
    request = supervisor.request(first)
    for _ in range(2):  # the answer was lost, so it is sent again
        assert supervisor.post(request).status_code == 200
    supervisor.sync(report(supervisor, 1, 0.5))  # redone after a restart
    supervisor.sync(report(supervisor, 2, "nan", checkpoint="/c/2", final=True))
    supervisor.sync(report(supervisor, 1, 0.4))
    rows = rig.store.view(lambda tx: trial_reports.of_jobs(tx, [1]))
    assert [(row.unit, repr(row.value), row.checkpoint) for row in rows] == [
        (1, "0.5", None),
        (2, "nan", "/c/2"),
    ]
    (told,) = rig.store.view(lambda tx: events.of_job(tx, 1, kinds=("warned",)))
    assert told.data["message"].startswith("the report of unit 1 differs from the first one")


def test_a_raised_target_is_news_for_the_supervisor(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    before = supervisor.sync().orders
    raise_target(rig, 9)
    after = supervisor.sync().orders
    assert (before.until, after.until, before.version == after.version) == (None, 9, False)


def test_a_trial_at_its_target_gives_its_slots_back_and_resumes_when_it_is_raised(
    rig: Rig, supervisor: ScriptedSupervisor
) -> None:
    ended = wire.RanksEndedReport(
        seq=supervisor.next_seq(), generation=0, outcome="at_target", port=5000, step=9, target=3
    )
    assert supervisor.sync(ended).orders.action is Action.RELEASE
    supervisor.leave()
    rig.turn()
    view = rig.job(1)
    assert (view.state, view.reason.code, view.restarts) == ("paused", "target_reached", 0)
    raise_target(rig, 9)
    assert rig.job(1).state == "queued"
    rig.turn()
    again = rig.supervisor(1, attempt=2)
    again.ready()
    assert again.sync().orders.until == 9
    rig.check_log(1)
