"""Changes to jobs after their submission, through the real routes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.rig import Rig

from phalanx.errors import Conflict, PreconditionFailed, SpecInvalid
from phalanx.schemas.api.jobs import ChangeRequest, JobView

pytestmark = pytest.mark.integration


def change(rig: Rig, num: int, if_match: str | None = None, **settings: Any) -> JobView:
    return rig.client.change(num, ChangeRequest(**settings), if_match=if_match)


def changes_of(rig: Rig, num: int) -> list[dict[str, Any]]:
    return [one.data for one in rig.client.history(num) if one.kind == "settings_changed"]


def running(rig: Rig, **spec: Any) -> int:
    num = rig.submit(**spec)
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    assert rig.job(num).state == "running"
    return num


def test_settings_change_with_an_event_that_says_before_and_after(rig: Rig) -> None:
    num = rig.submit(labels={"team": "vision", "run": "1"}, max_duration="2h")
    view = change(
        rig,
        num,
        name="renamed",
        description="The second try",
        labels={"team": "nlp", "run": None, "new": "x"},
        priority="high",
        max_duration=None,
    )
    assert (view.name, view.description, view.priority) == ("renamed", "The second try", 75)
    assert view.labels == {"team": "nlp", "new": "x"}
    (data,) = changes_of(rig, num)
    assert data["before"] == {
        "name": "digits",
        "description": None,
        "labels": {"team": "vision", "run": "1"},
        "priority": 50,
        "max_duration": "2h",
    }
    assert data["after"]["labels"] == view.labels
    assert (data["after"]["priority"], data["after"]["max_duration"]) == (75, None)
    assert (view.spec or {})["name"] == "renamed"
    change(rig, num, priority=75)  # it is so already
    assert len(changes_of(rig, num)) == 1
    rig.check_log(num)


def test_the_planner_sees_a_new_priority_at_its_next_pass(rig: Rig) -> None:
    running(rig)  # it holds every slot
    first, second = rig.submit(), rig.submit()
    rig.turn()
    change(rig, second, priority=90)
    rig.client.stop(1, grace_s=0)
    supervisor = rig.supervisor(1)
    supervisor.sync()
    supervisor.ended(outcome="stopped")
    supervisor.leave()
    for _ in range(3):
        rig.turn(1.0)
    assert (rig.job(first).state, rig.job(second).state) == ("queued", "starting")


def test_a_limit_that_is_set_while_the_job_runs_ends_it(rig: Rig) -> None:
    num = running(rig)
    rig.turn(60.0)
    with pytest.raises(Conflict, match="would fail at once"):
        change(rig, num, max_duration="30s")
    change(rig, num, max_duration="90s")
    rig.turn(29.0)
    assert rig.job(num).state == "running"
    rig.turn(2.0)
    view = rig.job(num)
    assert (view.state, view.goal) == ("stopping", "fail")
    assert "max_duration" in view.reason.message
    rig.check_log(num)


def test_the_pool_of_a_job_that_holds_slots_cannot_change(rig: Rig) -> None:
    num = running(rig)
    with pytest.raises(Conflict, match="is running and holds slots of local: the pool"):
        change(rig, num, pool=["local"])
    assert changes_of(rig, num) == []
    waits = rig.submit()
    assert (change(rig, waits, pool=["local"]).spec or {})["pool"] == ["local"]
    with pytest.raises(SpecInvalid, match="there is no such pool"):
        change(rig, waits, pool=["elsewhere"])


def test_of_a_job_that_has_ended_only_what_describes_it_changes(rig: Rig) -> None:
    num = rig.submit()
    rig.client.stop(num)
    view = change(rig, num, name="kept", labels={"paper": "1"})
    assert (view.state, view.name, view.labels) == ("cancelled", "kept", {"paper": "1"})
    for setting in ({"priority": 90}, {"pool": ["local"]}, {"max_duration": "1h"}):
        with pytest.raises(Conflict, match="has ended"):
            change(rig, num, **setting)
    rig.check_log(num)


def test_a_change_is_for_the_settings_that_were_read(rig: Rig) -> None:
    num = rig.submit()
    read = rig.job(num)
    rig.turn()  # progress of the job is no change of its settings
    change(rig, num, if_match=read.etag, priority=60)
    with pytest.raises(PreconditionFailed, match="have changed since you read them"):
        change(rig, num, if_match=read.etag, priority=70)
    assert rig.job(num).priority == 60


def test_settings_are_checked_as_at_the_submission(rig: Rig) -> None:
    num = rig.submit()
    rig.client.apply_projects({"schema": 1, "projects": [{"name": "default", "max_priority": 60}]})
    with pytest.raises(SpecInvalid) as raised:
        change(rig, num, priority=70)
    assert [one.path for one in raised.value.problems] == ["priority"]
    with pytest.raises(SpecInvalid, match="max_duration"):
        change(rig, num, max_duration="soon")
    with pytest.raises(SpecInvalid, match="priority"):
        change(rig, num, priority="highest")
    assert changes_of(rig, num) == []
