"""Quotas of slot types and users through the API: enforced, explained, listed, and told."""

from __future__ import annotations

import pytest

from integration.rig import Rig
from phalanx.errors import PlatformError
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
