"""The planning policies that an operator can select by name: documented sets of constants.

docs/explanation/policies.md has what each of them was measured to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from phalanx.core.scheduling.model.planning_input import PlannerConfig

DEFAULT_POLICY: Final = "throughput"

NAMED_POLICIES: Mapping[str, PlannerConfig] = {
    # The least mean delay: jobs of equal priority share time by learned urgency.
    DEFAULT_POLICY: PlannerConfig(),
    # Shorter longest waits: urgency grows within hours instead of days, and the guard acts after one day.
    "fair": PlannerConfig(
        age_s=3600.0,
        steep_s=12 * 3600.0,
        steepness=4.0,
        guard_after_s=86_400.0,
        guard_quantum_s=2 * 3600.0,
    ),
    # By arrival within a priority: no job of equal priority is preempted, others only fill the gaps.
    "fifo": PlannerConfig(by_arrival=True, hysteresis=math.inf, guard_after_s=math.inf),
    # A started job runs to its end among its equals, and blocked gangs keep their expected start.
    "deadline": PlannerConfig(hysteresis=math.inf, num_reservations=16, guard_after_s=2 * 86_400.0),
}
"""The constants of each policy. Priorities, quotas and guarantees hold under all of them."""

PURPOSES: Mapping[str, str] = {
    DEFAULT_POLICY: "the least mean delay",
    "fair": "shorter longest waits",
    "fifo": "by arrival, and no equal is preempted",
    "deadline": "a job that has started is not preempted by its equals",
}
"""What each policy is for, in a few words."""
