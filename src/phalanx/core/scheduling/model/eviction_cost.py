"""What stopping a running job costs, in slot-seconds."""

from __future__ import annotations

from phalanx.core.scheduling.model.planning_input import US, RunningJob
from phalanx.core.scheduling.stages.scheduling_pass import Pass


def price(state: Pass, held: RunningJob) -> float:
    """Slot-seconds that stopping this job is expected to cost."""
    known = state.prices.get(held.job)
    if known is None:
        pause_s = held.restart_s + (held.save_s or 0.0)
        known = state.prices[held.job] = held.num_slots * pause_s + lost_work(state, held)
    return known


def lost_work(state: Pass, held: RunningJob) -> float:
    """Slot-seconds of work that stopping this job throws away; none where it saves on request."""
    if held.save_s is not None:
        return 0.0
    saved = held.saved_at if held.saved_at is not None else held.started_at
    return held.num_slots * (state.now - (state.now if saved is None else saved)) / US
