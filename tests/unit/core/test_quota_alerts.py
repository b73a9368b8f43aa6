"""Use against quotas, and alerts that are told once."""

from __future__ import annotations

import pytest

from phalanx.core.quotas.alerts import SUSTAINED_US, WAIT_US, QuotaWait, judged_alerts
from phalanx.core.quotas.usage import HeldSlots, QuotaKey, QuotaUnit, QuotaUse, quota_uses
from phalanx.core.scheduling import Project
from phalanx.core.scheduling.model.planning_input import UserQuota

pytestmark = pytest.mark.unit

KEY = QuotaKey("vision", "ada", "", QuotaUnit.SLOTS)


def test_a_job_counts_for_its_user_its_project_and_those_above() -> None:
    projects = {
        "lab": Project("lab", max_slots=20, users=(UserQuota("", 8), UserQuota("ada", None, 2))),
        "vision": Project("vision", parent="lab", max_slots_by_type=(("H100", 6),)),
    }
    held = [HeldSlots("vision", "ada", {"H100": 4}), HeldSlots("lab", "bob", {"A100": 2})]
    found = quota_uses(projects, (UserQuota("", max_submitted=9),), held, {("lab", "ada"): 3})
    told = {(one.key.label): (one.used, one.most) for one in found}
    assert told == {
        "slots of project lab": (6, 20),
        "slots of user ada in project lab": (4, 8),
        "running jobs of user ada in project lab": (1, 2),
        "slots of user bob in project lab": (2, 8),
        "H100 slots of project vision": (4, 6),
        "submitted jobs of user ada": (3, 9),
        "submitted jobs of user bob": (0, 9),
    }


def test_sustained_use_is_told_once_until_it_is_over() -> None:
    def judged(before: list, used: int, now: int) -> list:
        return judged_alerts(before, [QuotaUse(KEY, used, 10)], (), now)

    first = judged([], 9, 0)
    assert [(one.percent, one.told_at) for one in first] == [(80, None)]
    assert judged(first, 5, 60) == []
    told = judged(first, 9, SUSTAINED_US)
    assert told[0].told_at == SUSTAINED_US
    assert told[0].message == "9 of 10 slots of user ada in project vision are used"
    over = judged(told, 1, SUSTAINED_US + 1)
    assert over[0].reached_at is None
    again = judged(over, 9, 3 * SUSTAINED_US)
    assert again[0].told_at == SUSTAINED_US


def test_a_long_wait_is_told_once() -> None:
    wait = QuotaWait(7, "vision", "ada", 0, "user ada holds 8 of at most 8")
    assert judged_alerts([], [], [wait], WAIT_US - 1) == []
    told = judged_alerts([], [], [wait], WAIT_US)
    assert told[0].message.startswith("j-7 has waited 24 h and waits for a quota")
    assert judged_alerts(told, [], [wait], 2 * WAIT_US) == told
    assert judged_alerts(told, [], [], 2 * WAIT_US) == []
