"""Handlers for stalls, and for requests of stacks, profiles and saves.

Events: RanksStalled, StacksRequested, StacksCaptured, StacksOverdue, ProfileRequested, SaveRequested.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.jobs import events as e
from phalanx.core.jobs.handlers.steps import US, live, record_failure
from phalanx.core.jobs.model import Attempt, Decision, Job, JobState, NodePhase
from phalanx.core.telemetry.profiles import RequestedProfile

STACKS_WAIT_S = 10.0
"""Time limit for the stacks of a stalled generation, after which it is ended."""
_SHOWN = 8


def stacks_requested(job: Job, event: e.StacksRequested, now: int) -> Decision:
    """Have every node write its ranks' stacks."""
    attempt = live(job)
    if not _has_running_ranks(attempt):
        return Decision(job, ignored="no rank runs")
    return Decision(replace(job, attempt=replace(attempt, stacks=attempt.stacks + 1)))


def profile_requested(job: Job, event: e.ProfileRequested, now: int) -> Decision:
    """Have the ranks profile their next steps."""
    attempt = live(job)
    if not _has_running_ranks(attempt):
        return Decision(job, ignored="no rank runs")
    number = 1 if attempt.profile is None else attempt.profile.request + 1
    profile = RequestedProfile(number, event.steps, event.traced, event.extras)
    return Decision(replace(job, attempt=replace(attempt, profile=profile)))


def save_requested(job: Job, event: e.SaveRequested, now: int) -> Decision:
    """Have the ranks save a checkpoint at the end of their step."""
    attempt = live(job)
    if not _has_running_ranks(attempt):
        return Decision(job, ignored="no rank runs")
    return Decision(replace(job, attempt=replace(attempt, saves=attempt.saves + 1)))


def tunnel_requested(job: Job, event: e.TunnelRequested, now: int) -> Decision:
    """Have the supervisor of the rank ask for the tunnel that waits."""
    attempt, node = live(job), event.node_rank
    known = node < len(attempt.nodes)
    if attempt.failures or not known or attempt.nodes[node].phase is not NodePhase.UP:
        return Decision(job, ignored="the rank does not run")
    asked = dict(attempt.tunnels)
    asked[node] = asked.get(node, 0) + 1
    return Decision(replace(job, attempt=replace(attempt, tunnels=tuple(sorted(asked.items())))))


def _has_running_ranks(attempt: Attempt) -> bool:
    return not attempt.failures and any(node.phase is NodePhase.UP for node in attempt.nodes)


def ranks_stalled(job: Job, event: e.RanksStalled, now: int) -> Decision:
    """Collect every node's stacks before the stalled generation is ended."""
    attempt = live(job)
    if attempt.failures or attempt.stall is not None:
        return Decision(job, ignored="that generation has failed already")
    if attempt.nodes[event.node_rank].phase is not NodePhase.UP or job.state is JobState.STOPPING:
        return Decision(job, ignored="the ranks of that node do not run, or are stopping")
    attempt = replace(
        attempt,
        stacks=attempt.stacks + 1,
        stall=event.failure,
        stall_until=now + round(STACKS_WAIT_S * US),
        stacks_of=(event.node_rank,),
    )
    return Decision(_end_if_complete(replace(job, attempt=attempt)))


def stacks_captured(job: Job, event: e.StacksCaptured, now: int) -> Decision:
    """Record one node's stacks; only those that a stall waits for change anything."""
    attempt = live(job)
    if attempt.stall is None or attempt.failures:
        return Decision(job, ignored="no stall waits for stacks")
    if event.request < attempt.stacks or event.node_rank in attempt.stacks_of:
        return Decision(job, ignored="those stacks are outdated or recorded already")
    if event.excuse:
        # The node that suspects a stall suspects it again when the pause goes on.
        attempt = replace(attempt, stall=None, stall_until=None, stacks_of=())
        return Decision(replace(job, attempt=attempt))
    attempt = replace(
        attempt,
        stall=event.failure or attempt.stall,
        stacks_of=(*attempt.stacks_of, event.node_rank),
    )
    return Decision(_end_if_complete(replace(job, attempt=attempt)))


def _end_if_complete(job: Job) -> Job:
    """End a stalled generation once every node that runs ranks has sent its stacks."""
    attempt = live(job)
    waiting = any(
        node.phase is NodePhase.UP and rank not in attempt.stacks_of
        for rank, node in enumerate(attempt.nodes)
    )
    return job if waiting or attempt.stall is None else record_failure(job, attempt.stall)


def stacks_overdue(job: Job, event: e.StacksOverdue, now: int) -> Decision:
    """End a stalled generation because not all nodes sent their stacks in time."""
    attempt = live(job)
    if attempt.stall is None or attempt.failures or now < (attempt.stall_until or 0):
        return Decision(job, ignored="no wait for stacks has ended")
    silent = [
        rank
        for rank, node in enumerate(attempt.nodes)
        if node.phase is NodePhase.UP and rank not in attempt.stacks_of
    ]
    said = f"{attempt.stall.message}; nodes that have sent no stacks: "
    said += ", ".join(map(str, silent[:_SHOWN])) + (" …" if len(silent) > _SHOWN else "")
    return Decision(record_failure(job, replace(attempt.stall, message=said)))
