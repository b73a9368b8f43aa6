"""How simulated jobs enter the queue, start, are resized, are preempted and queue again."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.gang.placement import Placement
from phalanx.core.jobs.model import Job, NodeOutcome
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import ClusterIndex, QueuedJob, RunningJob
from phalanx.core.scheduling.model.urgency import protected_until
from phalanx.core.scheduling.stages.preference import NOTHING, Preferences
from phalanx.sim.cluster.accounting import Accounting
from phalanx.sim.cluster.events import EventQueue
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.jobs import US
from phalanx.sim.model import SimulatedJob, SimulationSetup


class Attempts:
    """Applies each change of a job to the index, the job machine and the accounting together."""

    def __init__(
        self,
        setup: SimulationSetup,
        cluster: ClusterIndex,
        events: EventQueue,
        lifecycles: JobLifecycles,
        accounting: Accounting,
        *,
        prefers: bool,
    ) -> None:
        """With `prefers`, gangs without a level of their own prefer the narrowest, as in a spec."""
        self._setup = setup
        self._costs = setup.costs
        self._cluster = cluster
        self._events = events
        self._lifecycles = lifecycles
        self._accounting = accounting
        self._preferences = Preferences(setup.nodes)
        self._prefers = prefers

    def enqueue(self, run: SimulatedJob, waiting: QueuedJob) -> None:
        """Queue a job, which insists on its preferred level for a while if that can hold it."""
        level = run.job.preferred
        if level is None and not self._prefers:
            level = NOTHING
        patience_s, history = run.job.patience_s, self._cluster.history
        job = self._preferences.apply(waiting, level, patience_s, history)
        self._cluster.submit(job)
        if job.required_until is not None:
            self._events.at(job.required_until / US, "patience_over", job.num)

    def patience_over(self, num: int, _: int) -> None:
        """Request a pass if the wait of a queued job for its preferred level has ended."""
        job = self._cluster.waiting.get(num)
        if job is not None and job.as_of(round(self._events.now_s * US)) is not job:
            self._events.pass_on_grid()

    def start(self, num: int, placement: Placement) -> None:
        """Start a queued job."""
        run, costs, now_s = self._accounting.runs[num], self._costs, self._events.now_s
        job, config, now = run.job, self._setup.config, int(now_s * US)
        waited_s = now_s - run.queued_s
        delayed_s = run.waited_s + waited_s
        preempted_at = self._lifecycles.jobs[num].preempted_at
        held = RunningJob(
            num,
            placement,
            project=job.project,
            user=job.user,
            priority=job.priority,
            kind=job.kind,
            started_at=now,
            attained_slot_s=run.attained_slot_s,
            max_duration_s=job.limit_s,
            # A job that has saved nothing yet has no checkpoint to continue from.
            saved_at=now if run.left_s < job.duration_s else None,
            save_s=costs.stop_of(job) if costs.graceful else None,
            restart_s=costs.restart_s,
            protected_until=protected_until(now, delayed_s, preempted_at, config),
            min_nodes=job.min_nodes,
            max_nodes=None if job.min_nodes is None else job.shape.nodes,
            delayed_s=delayed_s,
            roles=job.roles,
        )
        self._cluster.start(num, placement, held)
        self._lifecycles.placed(num, placement, now_s)
        self._cluster.history.observe_wait(job.num_slots, waited_s)
        overhead_s = costs.restart_s if run.starts else costs.start_s
        run.waited_s += waited_s
        run.first_start_s = now_s if run.first_start_s is None else run.first_start_s
        run.starts += 1
        run.stopping = False
        self._accounting.place(run, placement, overhead_s)

    def resize(self, num: int, placement: Placement, reason: Reason) -> None:
        """Restart a running job on another number of nodes."""
        run, held = self._accounting.runs[num], self._cluster.held[num]
        self._accounting.advance(run)
        run.resizes += 1
        resized = Reason(ReasonCode.RESIZED, reason.message)
        self._lifecycles.resized(num, placement, resized, run.step, self._events.now_s)
        now = int(self._events.now_s * US)
        self._cluster.release(num)
        changed = replace(
            held,
            placement=placement,
            started_at=now,
            attained_slot_s=run.attained_slot_s,
            resized_at=now,
        )
        self._cluster.hold(changed)
        self._accounting.place(run, placement, self._costs.resize_s)

    def ask_to_leave(self, num: int, reason: Reason) -> None:
        """Ask a running job to save and stop."""
        run = self._accounting.runs[num]
        held = self._cluster.held.get(num)
        if held is None or run.stopping:
            return
        self._accounting.advance(run)
        run.preemptions += 1
        run.stopping = True
        run.version += 1
        if self._costs.graceful:
            run.saved_left_s = run.left_s
        else:
            self._accounting.lose(run, max(run.saved_left_s - run.left_s, 0.0))
        stop_s = self._costs.stop_of(run.job)
        self._lifecycles.asked_to_stop(num, reason, stop_s, self._events.now_s)
        self._cluster.update(replace(held, stopping=True))
        self._events.at(self._events.now_s + stop_s, "left", num, run.version)

    def left(self, run: SimulatedJob) -> None:
        """Queue a stopped job again."""
        self._accounting.advance(run)
        outcome, now_s = NodeOutcome.STOPPED, self._events.now_s
        self.requeue(run, self._lifecycles.left(run.job.num, outcome, run.step, now_s))

    def lost(self, run: SimulatedJob, node: str) -> None:
        """Fail a job that held slots on a lost node."""
        num = run.job.num
        self._accounting.advance(run)
        step = run.step
        shares = self._cluster.held[num].placement.shares
        ranks = [rank for rank, share in enumerate(shares) if share.node == node]
        self._accounting.fail(run)
        run.preemptions -= run.stopping
        most = len(self._lifecycles.jobs[num].attempt.nodes)  # type: ignore[union-attr]
        gone = [rank for rank in ranks if rank < most] or [0]
        self.requeue(run, self._lifecycles.lost(num, gone, step, self._events.now_s))

    def requeue(self, run: SimulatedJob, job: Job) -> None:
        """Free the slots of a job. The job machine has decided whether it queues again."""
        self._cluster.release(job.num)
        run.version += 1
        run.stopping = False
        run.up_s = None
        if job.is_terminal:
            run.failed_s = self._events.now_s
            return
        run.queued_s = self._events.now_s
        back = replace(
            run.job.waiting(),
            queued_at=int(self._events.now_s * US),
            attained_slot_s=run.attained_slot_s,
            not_before=job.not_before,
            delayed_s=run.waited_s,
        )
        self.enqueue(run, back)
        if job.not_before is not None:
            self._events.at(job.not_before / US, "retry", job.num)
