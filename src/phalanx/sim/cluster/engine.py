"""The discrete-event cluster: events in time order, a planning pass when something changed.

Passes run on a grid (`pass_s`), as the ticks of a control loop do, and at once when a victim has
left. Policies read the index that the production planner reads, and only they decide. The
production job machine (`lifecycles`) holds every job's state and decides whether it restarts after
a failure.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import replace

from phalanx.core.gang.placement import Placement
from phalanx.core.jobs import Job, JobState
from phalanx.core.jobs.model import NodeOutcome
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import ClusterIndex, Plan, QueuedJob, RunningJob
from phalanx.core.scheduling.index.empty_cluster import EmptyCluster
from phalanx.core.scheduling.model.durations import History, KindKey, size_class
from phalanx.core.scheduling.model.past_use import decayed_average
from phalanx.core.scheduling.stages.preference import insistence, narrowest_levels
from phalanx.errors import InvariantBroken
from phalanx.sim.audit.auditor import ALL, SAFETY, Auditor
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.cluster.run import Result
from phalanx.sim.cluster.timeline import Timeline
from phalanx.sim.costs import num_domains, slow_down
from phalanx.sim.jobs import US, TraceJob
from phalanx.sim.model import (
    Crash,
    Oracle,
    Outage,
    SchedulingPolicy,
    SimulatedJob,
    SimulationSetup,
    SlotTimes,
)

PLANNER = "phalanx"


def simulate(jobs: Sequence[TraceJob], setup: SimulationSetup, policy: SchedulingPolicy) -> Result:
    """Run the jobs through a policy until all have ended (or `until_s`)."""
    return _Cluster(jobs, setup, policy).run()


class _Cluster:
    def __init__(
        self, jobs: Sequence[TraceJob], setup: SimulationSetup, policy: SchedulingPolicy
    ) -> None:
        self.setup = setup
        self.costs = setup.costs
        self.policy = policy
        self.cluster = ClusterIndex(setup.nodes, setup.projects, History(), setup.config)
        self.runs = {job.num: SimulatedJob(job, max(job.duration_s, 1.0)) for job in jobs}
        self.slot_times = SlotTimes()
        self.narrowest = narrowest_levels(setup.nodes) if policy.name == PLANNER else {}
        self.empty = EmptyCluster(setup.nodes)
        self.largest_leaf = max((g.largest_leaf for g in self.cluster.index.groups), default=0)
        self.events: list[tuple[float, int, str, int, int]] = []
        self.seq = 0
        self.now_s = 0.0
        self.num_passes = 0
        self.next_pass: float | None = None
        self.auditor = Auditor(ALL if policy.name == PLANNER else SAFETY)
        self.lifecycles = JobLifecycles(self.costs.stop_s(), deliveries=setup.deliveries)
        self.timeline = Timeline(setup.sample_s)
        self.past_s = 0.0
        for job in jobs:
            self._at(job.submit_s, "submit", job.num)
        for i, outage in enumerate(setup.outages):
            self._at(outage.at_s - outage.notice_s, "notice", i)
            self._at(outage.at_s, "down", i)
            self._at(outage.at_s + outage.for_s, "up", i)
        for i, crash in enumerate(setup.crashes):
            self._at(crash.at_s, "crash", i)

    # -- oracle ------------------------------------------------------------------------------------

    def remaining_s(self, num: int) -> float:
        """Return the undisturbed seconds left at this moment."""
        run = self.runs[num]
        if num not in self.cluster.held or run.stopping:
            return run.left_s
        gone = self.now_s - run.at_s
        return max(run.left_s - max(gone - run.overhead_left_s, 0.0) / run.factor, 0.0)

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> Result:
        began = time.perf_counter()
        until = self.setup.until_s
        while self.events or self.next_pass is not None:
            event_s = self.events[0][0] if self.events else float("inf")
            pass_s = self.next_pass if self.next_pass is not None else float("inf")
            if until is not None and min(event_s, pass_s) > until:
                self.now_s = until
                break
            if event_s <= pass_s:
                at_s, _, kind, num, version = heapq.heappop(self.events)
                self.now_s = at_s
                getattr(self, "_on_" + kind)(num, version)
            else:
                self.now_s = pass_s
                self.next_pass = None
                self._pass()
            if not self.cluster.waiting and not self.cluster.held and not self._to_come():
                break
        for num in list(self.cluster.held):
            self._advance(self.runs[num])
        if self.setup.audit_every:
            self.auditor.check_end(self.cluster, self.slot_times, self.runs.values())
        wall_s = time.perf_counter() - began
        return Result(
            self.policy.name,
            self.runs,
            self.slot_times,
            self.setup,
            self.now_s,
            self.num_passes,
            wall_s,
            self.lifecycles,
            self.timeline,
            self.auditor,
        )

    def _to_come(self) -> bool:
        return any(kind == "submit" for _, _, kind, _, _ in self.events)

    def _at(self, at_s: float, kind: str, num: int, version: int = 0) -> None:
        self.seq += 1
        heapq.heappush(self.events, (at_s, self.seq, kind, num, version))

    def _ask_pass(self) -> None:
        grid = self.setup.pass_s
        at_s = -(-self.now_s // grid) * grid if grid else self.now_s
        self.next_pass = at_s if self.next_pass is None else min(self.next_pass, at_s)

    def _pass(self) -> None:
        now = int(self.now_s * US)
        if not self.costs.graceful:
            self._report_saves()
        if self.cluster.projects:
            self._age_use()
        if self.timeline.is_due(self.now_s):
            self.timeline.note(self.now_s, self.cluster, self._useful_so_far())
        began = time.process_time()
        plan = self.policy.plan(self.cluster, now, self)
        self.slot_times.pass_s.append(time.process_time() - began)
        self.num_passes += 1
        every = self.setup.audit_every
        if every:
            self.auditor.check_plan(self.cluster, plan, now)
        if every and self.num_passes % every == 0:
            self.auditor.check_deeply(
                self.cluster, plan, now, lambda cluster: self.policy.plan(cluster, now, self)
            )
        self._apply(plan)
        again = self.setup.recheck_s
        if self.cluster.waiting and self.cluster.held:
            at_s = self.now_s + again
            self.next_pass = at_s if self.next_pass is None else min(self.next_pass, at_s)

    def _age_use(self) -> None:
        """Bring the past use of every project up to date, as the control plane does."""
        elapsed_s, half_life_s = self.now_s - self.past_s, self.setup.half_life_s
        self.past_s = self.now_s
        for name, project in self.cluster.projects.items():
            used = self.cluster.used.get(name, 0)
            past = decayed_average(project.past_slots, used, elapsed_s, half_life_s)
            self.cluster.projects[name] = replace(project, past_slots=past)

    def _report_saves(self) -> None:
        for num, held in list(self.cluster.held.items()):
            run = self.runs[num]
            every = run.job.checkpoint_s
            if every > 0 and not run.stopping:
                last_s = run.saved_at_s + (self.now_s - run.saved_at_s) // every * every
                if int(last_s * US) != held.saved_at:
                    self.cluster.saved(num, int(last_s * US))

    def _apply(self, plan: Plan) -> None:
        self.cluster.reservations = {
            reservation.job: reservation for reservation in plan.reservations if reservation.victims
        }
        for preemption in plan.preemptions:
            self._ask_to_leave(preemption.job, preemption.reason)
        for resize in plan.resizes:
            self._resize(resize.job, resize.placement, resize.reason)
        for start in plan.starts:
            self._start(start.job, start.placement)
        if plan.resizes and self.cluster.reservations:
            # The beneficiary of the resizes starts as soon as the nodes are free.
            self._at(self.now_s + self.costs.stop_s(), "given", 0)

    def _on_given(self, _: int, __: int) -> None:
        self.next_pass = self.now_s

    # -- events --------------------------------------------------------------------------------------

    def _on_submit(self, num: int, _: int) -> None:
        run = self.runs[num]
        run.queued_s = self.now_s
        self.lifecycles.submitted(run.job, self.now_s)
        self._enqueue(run, run.job.waiting())
        self._ask_pass()

    def _enqueue(self, run: SimulatedJob, waiting: QueuedJob) -> None:
        """Queue a job, which insists on its preferred level for a while if that can hold it."""
        wish, wish_s = run.job.preferred, run.job.patience_s
        found = insistence(waiting, wish, wish_s, self.narrowest, self.cluster.history)
        if found is None or not self.empty.can_hold(found[0]):
            self.cluster.submit(waiting)
            return
        insisting, wait_s = found
        self.cluster.submit(insisting)
        run.insisted += 1
        self._at(self.now_s + wait_s, "relent", run.job.num, run.insisted)

    def _on_relent(self, num: int, insisted: int) -> None:
        job = self.cluster.waiting.get(num)
        if job is None or self.runs[num].insisted != insisted:
            return
        if num in self.cluster.reservations:
            # Its reservation meets the preference; should that fail, the preference ends later.
            self._at(self.now_s + self.setup.recheck_s, "relent", num, insisted)
            return
        self.cluster.withdraw(num)
        self.cluster.submit(replace(job, required=None))
        self._ask_pass()

    def _on_finish(self, num: int, version: int) -> None:
        run = self.runs[num]
        if run.version != version:
            return
        self._advance(run)
        job = self.lifecycles.left(num, NodeOutcome.SUCCEEDED, self._step(run), self.now_s)
        if job.state is not JobState.SUCCEEDED:
            raise InvariantBroken(f"j-{num} ended and is {job.state}")
        run.end_s = self.now_s
        held = self.cluster.release(num)
        if held is not None:
            key = KindKey(held.project, held.kind, size_class(run.job.num_slots))
            self.cluster.history.observe(key, run.attained_slot_s)
        self._ask_pass()

    def _on_left(self, num: int, version: int) -> None:
        run = self.runs[num]
        if run.version != version:
            return
        self._advance(run)
        self._requeue(
            num, self.lifecycles.left(num, NodeOutcome.STOPPED, self._step(run), self.now_s)
        )
        reservation = any(
            num in reservation.victims for reservation in self.cluster.reservations.values()
        )
        if reservation:
            self.next_pass = self.now_s
        else:
            self._ask_pass()

    def _on_notice(self, i: int, _: int) -> None:
        outage = self.setup.outages[i]
        if outage.notice_s <= 0:
            return
        self._close(outage.node, "spot node is about to be reclaimed")
        if outage.notice_s >= self.costs.stop_s():
            for num in self._on_node(outage.node):
                reason = Reason(ReasonCode.NODE_LOST, f"{outage.node} is about to be reclaimed")
                self._ask_to_leave(num, reason)
        self._ask_pass()

    def _on_down(self, i: int, _: int) -> None:
        node = self.setup.outages[i].node
        for num in self._on_node(node):
            run = self.runs[num]
            self._advance(run)
            step = self._step(run)
            shares = self.cluster.held[num].placement.shares
            ranks = [rank for rank, share in enumerate(shares) if share.node == node]
            self._fall_back(run)
            run.preemptions -= run.stopping
            most = len(self.lifecycles.jobs[num].attempt.nodes)  # type: ignore[union-attr]
            gone = [rank for rank in ranks if rank < most] or [0]
            self._requeue(num, self.lifecycles.lost(num, gone, step, self.now_s))
        self._close(node, "lost")
        self._ask_pass()

    def _on_up(self, i: int, _: int) -> None:
        self._close(self.setup.outages[i].node, "")
        self._ask_pass()

    def _on_crash(self, i: int, _: int) -> None:
        """A rank dies: the next generation starts in place, or the job has used up its budget."""
        crash = self.setup.crashes[i]
        index = self.cluster.index
        node = index.num_of[crash.node]
        holders = self.cluster.on_node[node].items()
        num = next((num for num, mask in holders if mask >> crash.slot & 1), None)
        if num is None or self.runs[num].stopping:
            return
        run = self.runs[num]
        self._advance(run)
        if self.lifecycles.jobs[num].state is not JobState.RUNNING:
            return
        step = self._step(run)
        self._fall_back(run)
        job = self.lifecycles.crashed(num, crash.cause, step, self.now_s)
        if job.attempt is None:
            self._requeue(num, job)
            self._ask_pass()
            return
        wait_s = 0.0 if job.not_before is None else job.not_before / US - self.now_s
        if job.not_before is not None:
            self.lifecycles.back_off_over(num, job.not_before / US)
        self._place(run, self.cluster.held[num].placement, wait_s + self.costs.restart_s)

    def _fall_back(self, run: SimulatedJob) -> None:
        """Lose the work since the last checkpoint."""
        lost_s = min(max(run.saved_left_s - run.left_s, 0.0), run.job.duration_s)
        self._lose(run, lost_s)
        self.slot_times.lost_to_failures += lost_s * run.job.num_slots
        run.failures += 1

    def _step(self, run: SimulatedJob) -> int:
        """Steps are seconds of undisturbed work."""
        return int(run.job.duration_s - run.left_s)

    def _useful_so_far(self) -> float:
        """Useful slot-seconds up to now, those of running jobs among them."""
        total = self.slot_times.useful
        for num in self.cluster.held:
            run = self.runs[num]
            if not run.stopping:
                gone = max(self.now_s - run.at_s - run.overhead_left_s, 0.0)
                total += run.job.num_slots * gone / run.factor
        return total

    def _on_node(self, node: str) -> list[int]:
        return list(self.cluster.on_node[self.cluster.index.num_of[node]])

    def _close(self, name: str, why: str) -> None:
        node = self.cluster.index.nodes[self.cluster.index.num_of[name]]
        self.cluster.replace_node(replace(node, closed=why))

    # -- job states -----------------------------------------------------------------------------------

    def _start(self, num: int, placement: Placement) -> None:
        run, job = self.runs[num], self.runs[num].job
        again = run.starts > 0
        waited_s = self.now_s - run.queued_s
        guard = self.setup.config
        delayed_s = run.waited_s + waited_s
        protected = delayed_s > guard.guard_after_s
        held = RunningJob(
            num,
            placement,
            project=job.project,
            priority=job.priority,
            kind=job.kind,
            started_at=int(self.now_s * US),
            attained_slot_s=run.attained_slot_s,
            max_duration_s=job.limit_s,
            saved_at=int(self.now_s * US),
            save_s=self.costs.stop_of(job) if self.costs.graceful else None,
            restart_s=self.costs.restart_s,
            protected_until=int((self.now_s + guard.guard_quantum_s) * US) if protected else 0,
            min_nodes=job.min_nodes,
            max_nodes=None if job.min_nodes is None else job.shape.nodes,
            delayed_s=delayed_s,
            roles=job.roles,
        )
        self.cluster.start(num, placement, held)
        self.lifecycles.placed(num, placement, self.now_s)
        self.cluster.history.observe_wait(job.num_slots, waited_s)
        run.waited_s += waited_s
        run.first_start_s = self.now_s if run.first_start_s is None else run.first_start_s
        run.starts += 1
        run.stopping = False
        self._place(run, placement, self.costs.restart_s if again else self.costs.start_s)

    def _place(self, run: SimulatedJob, placement: Placement, overhead_s: float) -> None:
        index, job = self.cluster.index, run.job
        run.at_s = self.now_s
        run.overhead_left_s = overhead_s
        run.up_s = self.now_s + overhead_s
        run.saved_left_s, run.saved_at_s = run.left_s, self.now_s
        run.slots = sum(len(share.slots) for share in placement.shares)
        factor = slow_down(index, job, placement) if self.costs.slowdown else 1.0
        run.factor = factor / job.speed(len(placement.shares), run.slots)
        run.scattered = num_domains(index, placement) > 1
        run.version += 1
        self._at(self.now_s + overhead_s + run.left_s * run.factor, "finish", job.num, run.version)

    def _advance(self, run: SimulatedJob) -> None:
        gone = self.now_s - run.at_s
        run.at_s = self.now_s
        run.attained_slot_s += gone * run.slots
        self.slot_times.held += gone * run.slots
        if run.up_s is not None and self.now_s >= run.up_s:
            self.lifecycles.up(run.job.num, run.up_s)
            run.up_s = None
        projects = self.slot_times.by_project
        projects[run.job.project] = projects.get(run.job.project, 0.0) + gone * run.slots
        if run.stopping:
            self.slot_times.overhead += gone * run.slots
            return
        overhead = min(gone, run.overhead_left_s)
        run.overhead_left_s -= overhead
        work = (gone - overhead) / run.factor
        run.left_s -= work
        ideal = run.job.num_slots * work
        self.slot_times.overhead += overhead * run.slots
        self.slot_times.useful += ideal
        self.slot_times.slowed += (gone - overhead) * run.slots - ideal
        if run.job.shape.nodes > 1:
            self.slot_times.gang += gone * run.slots
            self.slot_times.scattered += gone * run.slots if run.scattered else 0.0
            fits = run.job.shape.nodes <= self.largest_leaf
            self.slot_times.avoidable += gone * run.slots if run.scattered and fits else 0.0
        every = run.job.checkpoint_s
        if every > 0 and self.now_s - run.saved_at_s >= every:
            num = (self.now_s - run.saved_at_s) // every
            run.saved_at_s += num * every
            run.saved_left_s = run.left_s + (self.now_s - run.saved_at_s) / run.factor
            step = int(run.job.duration_s - run.saved_left_s)
            self.lifecycles.saved(run.job.num, step, run.saved_at_s)

    def _ask_to_leave(self, num: int, reason: Reason) -> None:
        run = self.runs[num]
        held = self.cluster.held.get(num)
        if held is None or run.stopping:
            return
        self._advance(run)
        run.preemptions += 1
        run.stopping = True
        run.version += 1
        if self.costs.graceful:
            run.saved_left_s = run.left_s
        else:
            self._lose(run, max(run.saved_left_s - run.left_s, 0.0))
        stop_s = self.costs.stop_of(run.job)
        self.lifecycles.asked_to_stop(num, reason, stop_s, self.now_s)
        self.cluster.update(replace(held, stopping=True))
        self._at(self.now_s + stop_s, "left", num, run.version)

    def _lose(self, run: SimulatedJob, lost_s: float) -> None:
        run.left_s += lost_s
        self.slot_times.lost += lost_s * run.job.num_slots
        self.slot_times.useful -= lost_s * run.job.num_slots

    def _requeue(self, num: int, job: Job) -> None:
        """Free its slots; the job machine decides whether it queues again."""
        run = self.runs[num]
        self.cluster.release(num)
        run.version += 1
        run.stopping = False
        run.up_s = None
        if job.is_terminal:
            run.failed_s = self.now_s
            return
        run.queued_s = self.now_s
        back = replace(
            run.job.waiting(),
            queued_at=int(self.now_s * US),
            attained_slot_s=run.attained_slot_s,
            not_before=job.not_before,
            delayed_s=run.waited_s,
        )
        self._enqueue(run, back)
        if job.not_before is not None:
            self._at(job.not_before / US, "ripe", num)

    def _on_ripe(self, num: int, _: int) -> None:
        self._ask_pass()

    def _resize(self, num: int, placement: Placement, reason: Reason) -> None:
        run, held = self.runs[num], self.cluster.held[num]
        self._advance(run)
        run.resizes += 1
        self.lifecycles.resized(num, placement, reason, self._step(run), self.now_s)
        now = int(self.now_s * US)
        self.cluster.release(num)
        self.cluster.hold(
            replace(
                held,
                placement=placement,
                started_at=now,
                attained_slot_s=run.attained_slot_s,
                resized_at=now,
            )
        )
        self._place(run, placement, self.costs.resize_s)


__all__ = [
    "Crash",
    "Oracle",
    "Outage",
    "Result",
    "SchedulingPolicy",
    "SimulatedJob",
    "SimulationSetup",
    "SlotTimes",
    "simulate",
]
