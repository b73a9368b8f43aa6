"""The cost of stopping a running job, in slot-seconds."""

from __future__ import annotations

from phalanx.core.scheduling.model.planning_input import US, RunningJob


def eviction_cost(held: RunningJob, now: int) -> float:
    """Return the slot-seconds that stopping this job is expected to cost."""
    pause_s = held.restart_s + (held.save_s or 0.0)
    return held.num_slots * pause_s + lost_work(held, now)


def lost_work(held: RunningJob, now: int) -> float:
    """Return the slot-seconds of work that a stop throws away; 0 where the job saves on request."""
    if held.save_s is not None:
        return 0.0
    saved = held.saved_at if held.saved_at is not None else held.started_at
    return held.num_slots * (now - (now if saved is None else saved)) / US
