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
from phalanx.services.quotas.usage import quotas_step

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
