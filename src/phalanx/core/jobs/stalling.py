"""What running ranks are asked for: stacks, also before a gang that hangs is ended, and profiles."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.gang.failures import Failure
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import Attempt, Job, JobState, NodePhase
from phalanx.core.telemetry.profiles import RequestedProfile

_US = 1_000_000
STACKS_WAIT_S = 10.0
"""How long a gang that hangs is left alone for the sake of its other nodes' stacks."""


def ask(attempt: Attempt, event: e.StacksRequested | e.ProfileRequested) -> Attempt | str:
    """One more request for stacks or a profile, or why there is nobody to ask."""
    if attempt.failures or not any(node.phase is NodePhase.UP for node in attempt.nodes):
        return "no rank runs"
    if isinstance(event, e.StacksRequested):
        return replace(attempt, stacks=attempt.stacks + 1)
    request = 1 if attempt.profile is None else attempt.profile.request + 1
    wish = RequestedProfile(request, event.steps, event.traced, event.extras)
    return replace(attempt, profile=wish)


def stalled(job: Job, attempt: Attempt, event: e.RanksStalled, now: int) -> Attempt | str:
    """A node's ranks make no step: have every node's stacks before anything is ended."""
    if attempt.failures or attempt.stall is not None:
        return "that generation has failed already"
    if attempt.nodes[event.node_rank].phase is not NodePhase.UP or job.state is JobState.STOPPING:
        return "the ranks of that node do not run, or are stopping"
    return replace(
        attempt,
        stacks=attempt.stacks + 1,
        stall=event.failure,
        stall_until=now + round(STACKS_WAIT_S * _US),
        stacks_of=(event.node_rank,),
    )


def captured(attempt: Attempt, event: e.StacksCaptured) -> Attempt | str:
    """One node's answer; only one that a stall waits for changes anything."""
    if attempt.stall is None or attempt.failures:
        return "nothing waits for them"
    if event.request < attempt.stacks or event.node_rank in attempt.stacks_of:
        return "that answer is known"
    return replace(attempt, stacks_of=(*attempt.stacks_of, event.node_rank))


def verdict(attempt: Attempt) -> Failure | None:
    """The stall, once every node that runs ranks has answered."""
    waiting = [
        rank
        for rank, node in enumerate(attempt.nodes)
        if node.phase is NodePhase.UP and rank not in attempt.stacks_of
    ]
    return None if waiting else attempt.stall
