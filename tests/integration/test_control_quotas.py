"""Quotas of slot types and users through the API: enforced, explained, listed, and told."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from integration.rig import Rig, spec
from phalanx.cli.app import app
from phalanx.cli.verbs import pools
from phalanx.errors import PlatformError
from phalanx.schemas.api.jobs import CloneRequest, SubmitRequest
from phalanx.schemas.api.schedules import PutScheduleRequest
from phalanx.schemas.api.studies import SubmitStudyRequest
from phalanx.server.observe.exposition import Exposition
from phalanx.services.quotas.usage import quotas_step
from phalanx.services.schedules.fire import schedules_step
from phalanx.services.studies.step import studies_step
from phalanx.services.studies.suggestions import suggestions_step

pytestmark = pytest.mark.integration


def test_a_user_waits_for_its_quota_and_others_pass(rig: Rig) -> None:
    file = {
        "schema": 1,
        "users": {"default": {"max_submitted": 3}},
        "projects": [{"name": "default", "users": {"default": {"max_running": 1}}}],
    }
    rig.client.apply_projects(file)
    nums = [rig.submit(), rig.submit()]
    rig.turn(4)
    states = [rig.client.job(num).state for num in nums]
    assert states[0] != "queued" and states[1] == "queued"
    why = rig.client.why(nums[1])
    text = str(why)
    assert "waiting_for_user_quota" in text and f"j-{nums[0]}" in text
    assert "runs 1 jobs of at most 1" in text
    rig.submit()
    with pytest.raises(PlatformError, match=r"of at most 3 \(max_submitted\)"):
        rig.submit()
    found = {one.label: (one.used, one.limit) for one in rig.client.quotas().quotas}
    assert (1, 1) in found.values() and (3, 3) in found.values()
    assert rig.client.quotas(user="stranger").quotas == []
    quotas_step(rig.platform, rig.clock.now())
    rig.clock.advance(700)
    quotas_step(rig.platform, rig.clock.now())
    alerts = rig.client.quotas().alerts
    assert alerts and all(one.percent in (80, 100) for one in alerts)
    quotas_step(rig.platform, rig.clock.now())
    assert rig.client.quotas().alerts == alerts


def limits(rig: Rig, **of_users: int) -> None:
    """Limit every user of the project `default`."""
    users = {"default": of_users}
    projects = [{"name": "default", "users": users}] if of_users else [{"name": "default"}]
    rig.clock.advance(1)
    rig.client.apply_projects({"schema": 1, "projects": projects})


@pytest.mark.parametrize("way", ["array", "batch", "clone"])
def test_every_way_to_submit_counts(rig: Rig, way: str) -> None:
    def request(**changes: object) -> SubmitRequest:
        return SubmitRequest(spec=spec(**changes), owner="ada")

    ways = {
        "array": lambda: rig.client.submit_batch([request(array="0-2")]),
        "batch": lambda: rig.client.submit_batch([request() for _ in range(3)]),
        "clone": lambda: [rig.client.clone(1, CloneRequest()) for _ in range(3)],
    }
    rig.submit()
    limits(rig, max_submitted=3)
    with pytest.raises(PlatformError, match=r"of at most 3 \(max_submitted\)"):
        ways[way]()
    if way != "clone":
        assert len(rig.client.jobs().jobs) == 1, "all or none"
    limits(rig)
    ways[way]()


def test_a_job_that_can_never_fit_its_quota_is_refused_at_once(rig: Rig) -> None:
    limits(rig, max_slots=2)
    with pytest.raises(PlatformError, match="may hold at most 2 slots, the job needs 3 slots"):
        rig.submit()
    limits(rig)
    assert rig.submit() > 0


def test_quotas_are_listed_and_a_project_shows_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "connected", lambda ctx: nullcontext(rig.client))

    def printed(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    assert "no quotas" in printed("quotas")
    limits(rig, max_submitted=4)
    rig.submit()
    assert "1" in printed("quotas") and "no quotas" not in printed("quotas")
    assert '"unit": "submitted"' in printed("quotas", "--json")
    assert "no quotas" in printed("quotas", "--project", "other")


def test_a_due_time_beyond_max_submitted_is_recorded_as_refused(rig: Rig) -> None:
    limits(rig, max_submitted=1)
    request = PutScheduleRequest(spec=spec(name="nightly"), cron="0 * * * *", owner="ada")
    made = rig.client.schedules.put("nightly", request)
    num = rig.submit()
    with pytest.raises(PlatformError, match=r"of at most 1 \(max_submitted\)"):
        rig.client.schedules.run("nightly")
    assert made.next_at is not None
    rig.clock.advance(made.next_at.timestamp() - rig.clock.now() / 1e6)
    schedules_step(rig.platform, rig.clock.now())
    (run,) = rig.client.schedules.show("nightly").runs
    assert run.outcome == "refused" and "(max_submitted)" in run.message
    assert len(rig.client.jobs().jobs) == 1
    rig.client.stop(num, goal="cancel")
    rig.clock.advance(3600)
    schedules_step(rig.platform, rig.clock.now())
    assert rig.client.schedules.show("nightly").runs[0].outcome == "submitted"


def test_trials_beyond_max_submitted_wait_and_are_not_lost(rig: Rig) -> None:
    study = {
        "kind": "study",
        "name": "lr",
        "objective": {"metric": "loss"},
        "search": {"method": "grid", "seed": 1},
        "space": {"lr": {"values": [0.1, 0.2, 0.3]}},
        "trials": {"parallel": 3},
        "job": {"run": ["python", "t.py", "${params.lr}"], "resources": {"slots_per_node": 1}},
    }
    limits(rig, max_submitted=1)
    rig.client.studies.submit(SubmitStudyRequest(spec=study, owner="ada"))

    def loops() -> list[int]:
        for _ in range(6):
            rig.clock.advance(3)
            suggestions_step(rig.platform, rig.clock.now())
            studies_step(rig.platform, rig.clock.now())
        return [one.num for one in rig.client.jobs().jobs]

    assert loops() == [1]
    limits(rig)
    assert loops() == [3, 2, 1]


def test_why_says_which_limit_of_the_user_to_raise(rig: Rig) -> None:
    limits(rig, max_running=1)
    rig.submit(resources={"slots_per_node": 1})
    waiting = rig.submit(resources={"slots_per_node": 1})
    rig.turn(4)
    changes = [one.text for one in rig.client.why(waiting).changes if one.kind == "quota"]
    assert len(changes) == 1 and "ada" in changes[0] and "might run 2 jobs" in changes[0]
    limits(rig, max_running=2)
    rig.turn(4)
    assert rig.job(waiting).state != "queued", "the change that `why` named lets the job start"


def test_gauges_have_use_and_limit_of_each_quota(rig: Rig) -> None:
    limits(rig, max_submitted=4)
    rig.submit()
    text = Exposition(rig.context).scrape(rig.clock.now()).decode()
    labels = 'project="default",slot_type="",unit="submitted",user="ada"'
    found = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("phalanx_quota") and labels in line
    }
    assert sorted(found.values()) == [1.0, 4.0] and "phalanx_quotas_not_shown 0.0" in text
    limits(rig)
    assert "phalanx_quota_used{" not in Exposition(rig.context).scrape(rig.clock.now()).decode()
