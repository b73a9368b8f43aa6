"""The progress of simulated jobs: remaining work, slot-seconds by use, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.gang.placement import Placement
from phalanx.core.scheduling import ClusterIndex
from phalanx.sim.cluster.events import EventQueue
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.costs import Costs, num_domains, slow_down
from phalanx.sim.jobs import US, TraceJob
from phalanx.sim.model import SimulatedJob, SlotTimes


class Accounting:
    """The state of every simulated job and the sums over all of them. It is also the `Oracle`."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        costs: Costs,
        cluster: ClusterIndex,
        events: EventQueue,
        lifecycles: JobLifecycles,
    ) -> None:
        self.runs = {job.num: SimulatedJob(job, max(job.duration_s, 1.0)) for job in jobs}
        self.slot_times = SlotTimes()
        self._costs = costs
        self._cluster = cluster
        self._events = events
        self._lifecycles = lifecycles
        self._largest_leaf = max((g.largest_leaf for g in cluster.index.groups), default=0)

    def remaining_s(self, num: int) -> float:
        """Return the undisturbed seconds left at this moment."""
        run = self.runs[num]
        if num not in self._cluster.held or run.stopping:
            return run.left_s
        gone = self._events.now_s - run.at_s
        return max(run.left_s - max(gone - run.overhead_left_s, 0.0) / run.factor, 0.0)

    def useful_so_far(self) -> float:
        """Useful slot-seconds up to now, those of running jobs among them."""
        total = self.slot_times.useful
        for num in self._cluster.held:
            run = self.runs[num]
            if not run.stopping:
                gone = max(self._events.now_s - run.at_s - run.overhead_left_s, 0.0)
                total += run.job.num_slots * gone / run.factor
        return total

    def place(self, run: SimulatedJob, placement: Placement, overhead_s: float) -> None:
        """Let the job run on this placement from now on, after a start-up of `overhead_s`."""
        index, job, now_s = self._cluster.index, run.job, self._events.now_s
        run.at_s = now_s
        run.overhead_left_s = overhead_s
        run.up_s = now_s + overhead_s
        run.saved_left_s, run.saved_at_s = run.left_s, now_s
        run.slots = sum(len(share.slots) for share in placement.shares)
        factor = slow_down(index, job, placement) if self._costs.slowdown else 1.0
        run.factor = factor / job.speed(len(placement.shares), run.slots)
        run.scattered = num_domains(index, placement) > 1
        run.version += 1
        end_s = now_s + overhead_s + run.left_s * run.factor
        self._events.at(end_s, "finish", job.num, run.version)

    def advance(self, run: SimulatedJob) -> None:
        """Account the time since the last update of a job that holds slots."""
        now_s, times = self._events.now_s, self.slot_times
        gone = now_s - run.at_s
        held = gone * run.slots
        run.at_s = now_s
        run.attained_slot_s += held
        times.held += held
        if run.up_s is not None and now_s >= run.up_s:
            self._lifecycles.up(run.job.num, run.up_s)
            run.up_s = None
        times.by_project[run.job.project] = times.by_project.get(run.job.project, 0.0) + held
        if run.stopping:
            times.overhead += held
            return
        overhead = min(gone, run.overhead_left_s)
        run.overhead_left_s -= overhead
        work = (gone - overhead) / run.factor
        run.left_s -= work
        ideal = run.job.num_slots * work
        times.overhead += overhead * run.slots
        times.useful += ideal
        times.slowed += (gone - overhead) * run.slots - ideal
        if run.job.shape.nodes > 1:
            times.gang += held
            if run.scattered:
                times.scattered += held
                times.avoidable += held if run.job.shape.nodes <= self._largest_leaf else 0.0
        every = run.job.checkpoint_s
        if every > 0 and now_s - run.saved_at_s >= every:
            run.saved_at_s += (now_s - run.saved_at_s) // every * every
            run.saved_left_s = run.left_s + (now_s - run.saved_at_s) / run.factor
            saved_step = int(run.job.duration_s - run.saved_left_s)
            self._lifecycles.saved(run.job.num, saved_step, run.saved_at_s)

    def report_saves(self) -> None:
        """Tell the cluster the times of checkpoints that running jobs have saved since."""
        for num, held in list(self._cluster.held.items()):
            run = self.runs[num]
            every = run.job.checkpoint_s
            if every > 0 and not run.stopping:
                last_s = run.saved_at_s + (self._events.now_s - run.saved_at_s) // every * every
                is_new = int(last_s * US) > (held.saved_at or held.started_at or 0)
                if is_new:
                    self._cluster.saved(num, int(last_s * US))

    def lose(self, run: SimulatedJob, lost_s: float) -> None:
        """Take back so many seconds of work that was counted as useful."""
        run.left_s += lost_s
        self.slot_times.lost += lost_s * run.job.num_slots
        self.slot_times.useful -= lost_s * run.job.num_slots

    def fail(self, run: SimulatedJob) -> None:
        """Count a failure, which loses the work since the last checkpoint."""
        lost_s = min(max(run.saved_left_s - run.left_s, 0.0), run.job.duration_s)
        self.lose(run, lost_s)
        self.slot_times.lost_to_failures += lost_s * run.job.num_slots
        run.failures += 1
