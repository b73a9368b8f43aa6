"""Start-time forecasts: the production planner simulated forward with sampled run times.

An undeclared run time is sampled from the learned distribution of the job's kind, given the service
attained so far. Each scenario assigns every job a quantile of that distribution; the quantiles are
spread evenly over the scenarios and depend only on the job's number, so equal snapshots give equal
forecasts. Future submissions are not modeled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.core.gang.placement import GangShape, Placement
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.model.durations import KindKey, size_class
from phalanx.core.scheduling.model.outcome import Plan
from phalanx.core.scheduling.model.planning_input import US, PlanningInput, QueuedJob, RunningJob
from phalanx.core.scheduling.model.urgency import expected_end, expected_s
from phalanx.core.scheduling.planner import plan_pass

NUM_SCENARIOS = 9
_MAX_PASSES = 150
_MIN_STEP_S = 30.0
# Events closer together than this part of the time looked ahead are one pass.
_GRAIN = 0.05
# No pass is further from the one before than this, or than this part of the time looked ahead.
_LOOK_S = 1200.0
_LOOK = 0.1
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Eta:
    """Start times at two quantiles, microseconds UTC; None where unknown."""

    p50_at: int | None
    p90_at: int | None


def eta(snapshot: PlanningInput, num: int, now: int, num_scenarios: int = NUM_SCENARIOS) -> Eta:
    """Quantiles of the start over `num_scenarios` runs of the planner. `num` must be waiting."""
    starts = []
    for scenario in range(num_scenarios):
        at = _start_in(snapshot, num, now, scenario)
        starts.append(float("inf") if at is None else float(at))
    starts.sort()
    return Eta(_at(starts, 0.5), _at(starts, 0.9))


def _at(ordered: list[float], quantile: float) -> int | None:
    found = ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]
    return None if found == float("inf") else int(found)


def _place(num: int, scenario: int) -> float:
    """Return the quantile of a job's run time in one scenario, within (0, 1)."""
    seed = (num * 2654435761 & 0xFFFFFFFF) / 2**32
    return 0.02 + 0.96 * ((seed + scenario * _GOLDEN) % 1.0)


def _start_in(snapshot: PlanningInput, num: int, now: int, scenario: int) -> int | None:
    run = _Scenario(ClusterIndex.of(snapshot), now, scenario)
    for _ in range(_MAX_PASSES):
        if run.advance(num):
            return run.at
        if not run.skip():
            return None
    return None


class _Scenario:
    """One simulated future: passes at the sampled end times of the running jobs."""

    def __init__(self, cluster: ClusterIndex, now: int, scenario: int) -> None:
        self.cluster = cluster
        self.scenario = scenario
        self.began = self.at = now
        self.ends: dict[int, int] = {}
        self.jobs: dict[int, QueuedJob] = dict(cluster.waiting)
        self.wake_at: int | None = None
        for held in cluster.held.values():
            quantile = _place(held.job, scenario)
            end = expected_end(held, cluster.history, now, quantile)
            if end is not None:
                self.ends[held.job] = end

    def advance(self, num: int) -> bool:
        """Run one pass and return whether it starts the job."""
        decided = plan_pass(self.cluster, self.at)
        self.wake_at = decided.wake_at
        if any(start.job == num for start in decided.starts):
            return True
        self._evict(decided)
        for start in decided.starts:
            self._start(self.cluster.waiting[start.job], start.placement)
        return False

    def skip(self) -> bool:
        """Advance to the next time that may change the outcome; return False if there is none."""
        # An elastic job that shrinks has no end: its nodes are free when the reservation is ready.
        ready = [one.ready_at or 0 for one in self.cluster.reservations.values()]
        later = [at for at in (*self.ends.values(), *ready) if at > self.at]
        if self.wake_at is not None and self.wake_at > self.at:
            later.append(self.wake_at)
        if not later:
            return False
        ahead_s = (self.at - self.began) / US
        grain_s = max(_MIN_STEP_S, _GRAIN * ahead_s)
        # Elapsed waiting time may change the outcome without the end of any other job.
        later.append(self.at + int(max(_LOOK_S, _LOOK * ahead_s) * US))
        due = min(later) + int(grain_s * US)
        self.at = max((end for end in later if end <= due), default=due)
        for gone in [job for job, end in self.ends.items() if end <= self.at]:
            self._end(gone)
        return True

    def _evict(self, decided: Plan) -> None:
        cluster = self.cluster
        for preemption in decided.preemptions:
            held = cluster.held[preemption.job]
            self.ends[held.job] = self.at + int((held.save_s or 0.0) * US)
            cluster.update(replace(held, stopping=True))
        for resize in decided.resizes:
            before = cluster.release(resize.job)
            if before is not None:
                cluster.hold(replace(before, placement=resize.placement, resized_at=self.at))
        cluster.reservations = {
            reservation.job: reservation
            for reservation in decided.reservations
            if reservation.victims
        }

    def _start(self, job: QueuedJob, placement: Placement) -> None:
        kind = KindKey(job.project, job.kind, size_class(job.num_slots))
        quantile = _place(job.num, self.scenario)
        lasts_s = expected_s(job, kind, self.cluster.history, quantile)
        self.cluster.start(job.num, placement, _as_held(job, self.at))
        if lasts_s is not None:
            held = self.cluster.held[job.num]
            wide = job.num_slots / max(held.num_slots, 1)
            self.ends[job.num] = self.at + int(lasts_s * wide * US) + 1

    def _end(self, num: int) -> None:
        """End a job: it is removed if done, and queued again if evicted."""
        del self.ends[num]
        held = self.cluster.release(num)
        if held is None or not held.stopping:
            return
        back = self.jobs.get(num) or _as_waiting(held)
        attained = held.attained(self.at)
        self.cluster.submit(
            replace(back, queued_at=self.at, attained_slot_s=attained, delayed_s=held.delayed_s)
        )


def _as_held(job: QueuedJob, now: int) -> RunningJob:
    return RunningJob(
        job.num,
        Placement("", ()),
        project=job.project,
        priority=job.priority,
        kind=job.kind,
        started_at=now,
        attained_slot_s=job.attained_slot_s,
        remaining_s=job.remaining_s,
        max_duration_s=job.max_duration_s,
        saved_at=now,
        min_nodes=job.min_nodes,
        max_nodes=None if job.min_nodes is None else job.shape.nodes,
        cpus_per_node=job.cpus_per_node,
        memory_per_node_bytes=job.memory_per_node_bytes,
        speeds=job.speeds,
        roles=job.roles,
        user=job.user,
        delayed_s=(now - job.owed_since) / US,
    )


def _as_waiting(held: RunningJob) -> QueuedJob:
    """Return a running job as a queued one, with the shape that its placement implies."""
    others = sum(role.nodes for role in held.roles)
    shares = held.placement.shares[: len(held.placement.shares) - others]
    per_node = max((len(share.slots) for share in shares), default=0)
    return QueuedJob(
        held.job,
        GangShape(len(shares), per_node, per_node),
        held.priority,
        held.started_at or 0,
        pools=(held.placement.pool,),
        project=held.project,
        kind=held.kind,
        max_duration_s=held.max_duration_s,
        cpus_per_node=held.cpus_per_node,
        memory_per_node_bytes=held.memory_per_node_bytes,
        roles=held.roles,
        user=held.user,
    )
