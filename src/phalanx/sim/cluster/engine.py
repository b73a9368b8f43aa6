"""The discrete-event cluster: events in time order, a planning pass when something changed.

Passes run on a grid (`pass_s`), as the ticks of a control loop do, and at once when a victim has
left. Policies read the index that the production planner reads, and only they decide. The
production job machine (`lifecycles`) holds every job's state and decides whether it restarts after
a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.jobs.model import JobState, NodeOutcome
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import ClusterIndex, Plan
from phalanx.core.scheduling.model.durations import History, KindKey, size_class
from phalanx.core.scheduling.model.planner_state import Usage, changed_usage, past_slots
from phalanx.errors import InvariantBroken
from phalanx.sim.audit.auditor import ALL, SAFETY, Auditor
from phalanx.sim.cluster.accounting import Accounting
from phalanx.sim.cluster.attempts import Attempts
from phalanx.sim.cluster.events import EventQueue
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.cluster.timeline import Timeline
from phalanx.sim.jobs import US, TraceJob
from phalanx.sim.model import SchedulingPolicy, SimulatedJob, SimulationSetup, SlotTimes

PLANNER = "phalanx"


@dataclass(slots=True)
class Result:
    """A finished simulation."""

    policy: str  # name of the policy
    runs: dict[int, SimulatedJob]  # jobs by number
    slot_times: SlotTimes  # slot-seconds by use
    setup: SimulationSetup  # the inputs besides jobs and policy
    end_s: float  # end of the simulation, virtual time
    num_passes: int  # planning passes
    wall_s: float  # wall time of the simulation
    lifecycles: JobLifecycles = field(default_factory=JobLifecycles)  # states of the job machine
    timeline: Timeline = field(default_factory=Timeline)  # samples over time
    auditor: Auditor = field(default_factory=Auditor)  # checks of the promises


def simulate(jobs: Sequence[TraceJob], setup: SimulationSetup, policy: SchedulingPolicy) -> Result:
    """Run the jobs through a policy until all have ended (or `until_s`)."""
    return _Cluster(jobs, setup, policy).run()


class _Cluster:
    def __init__(
        self, jobs: Sequence[TraceJob], setup: SimulationSetup, policy: SchedulingPolicy
    ) -> None:
        plans = policy.name == PLANNER
        self.setup = setup
        self.costs = setup.costs
        self.policy = policy
        self.cluster = ClusterIndex(setup.nodes, setup.projects, History(), setup.config)
        self.cluster.users = tuple(setup.users)
        self.events = EventQueue(setup.pass_s)
        self.lifecycles = JobLifecycles(self.costs.stop_s(), deliveries=setup.deliveries)
        self.accounting = Accounting(jobs, self.costs, self.cluster, self.events, self.lifecycles)
        self.runs = self.accounting.runs
        self.attempts = Attempts(
            setup, self.cluster, self.events, self.lifecycles, self.accounting, prefers=plans
        )
        self.num_passes = 0
        self.auditor = Auditor(ALL if plans else SAFETY)
        self.timeline = Timeline(setup.sample_s)
        self.usage: dict[str, Usage] = {}
        for job in jobs:
            self.events.at(job.submit_s, "submit", job.num)
        for i, outage in enumerate(setup.outages):
            self.events.at(outage.at_s - outage.notice_s, "notice", i)
            self.events.at(outage.at_s, "down", i)
            self.events.at(outage.at_s + outage.for_s, "up", i)
        for i, crash in enumerate(setup.crashes):
            self.events.at(crash.at_s, "crash", i)

    def run(self) -> Result:
        """Handle every event until all jobs have ended (or `until_s`)."""
        began = time.perf_counter()
        handlers: Mapping[str, Callable[[int, int], None]] = {
            "submit": self._on_submit,
            "patience_over": self.attempts.patience_over,
            "finish": self._on_finish,
            "left": self._on_left,
            "freed": self._on_freed,
            "retry": self._on_retry,
            "notice": self._on_notice,
            "down": self._on_down,
            "up": self._on_up,
            "crash": self._on_crash,
            "pass": self._on_pass,
        }
        while (event := self.events.next(self.setup.until_s)) is not None:
            kind, num, version = event
            handlers[kind](num, version)
            if not (self.cluster.waiting or self.cluster.held or self.events.num_submissions):
                break
        for num in list(self.cluster.held):
            self.accounting.advance(self.runs[num])
        if self.setup.audit_every:
            times = self.accounting.slot_times
            self.auditor.check_end(self.cluster, times, self.runs.values())
        return Result(
            self.policy.name,
            self.runs,
            self.accounting.slot_times,
            self.setup,
            self.events.now_s,
            self.num_passes,
            time.perf_counter() - began,
            self.lifecycles,
            self.timeline,
            self.auditor,
        )

    # -- planning ------------------------------------------------------------------------------------

    def _on_pass(self, _: int, __: int) -> None:
        now = int(self.events.now_s * US)
        self.cluster.advance(now)
        if not self.costs.graceful:
            self.accounting.report_saves()
        if self.cluster.projects:
            self._age_use(now)
        if self.timeline.is_due(self.events.now_s):
            useful = self.accounting.useful_so_far()
            self.timeline.note(self.events.now_s, self.cluster, useful)
        began = time.process_time()
        plan = self.policy.plan(self.cluster, now, self.accounting)
        self.accounting.slot_times.pass_s.append(time.process_time() - began)
        self.num_passes += 1
        every = self.setup.audit_every
        if every:
            self.auditor.check_plan(self.cluster, plan, now)
        if every and self.num_passes % every == 0:
            self.auditor.check_deeply(
                self.cluster,
                plan,
                now,
                lambda cluster: self.policy.plan(cluster, now, self.accounting),
            )
        self._apply(plan)
        if self.cluster.waiting and self.cluster.held:
            self.events.pass_at(self.events.now_s + self.setup.recheck_s)

    def _age_use(self, now: int) -> None:
        """Bring the past use of every project up to date."""
        half_life_s, projects = self.setup.half_life_s, self.cluster.projects
        for name, project in projects.items():
            past = past_slots(self.usage.get(name), half_life_s, now)
            projects[name] = replace(project, past_slots=past)
        self.usage |= changed_usage(self.usage, self.cluster.used, half_life_s, now)

    def _apply(self, plan: Plan) -> None:
        self.cluster.reservations = {
            reservation.job: reservation for reservation in plan.reservations if reservation.victims
        }
        for preemption in plan.preemptions:
            self.attempts.ask_to_leave(preemption.job, preemption.reason)
        for resize in plan.resizes:
            self.attempts.resize(resize.job, resize.placement, resize.reason)
        for start in plan.starts:
            self.attempts.start(start.job, start.placement)
        if plan.resizes and self.cluster.reservations:
            # The beneficiary of the resizes starts as soon as the nodes are free.
            self.events.at(self.events.now_s + self.costs.stop_s(), "freed", 0)

    # -- events of jobs ------------------------------------------------------------------------------

    def _on_submit(self, num: int, _: int) -> None:
        run = self.runs[num]
        run.queued_s = self.events.now_s
        self.lifecycles.submitted(run.job, self.events.now_s)
        self.attempts.enqueue(run, run.job.waiting())
        self.events.pass_on_grid()

    def _on_freed(self, _: int, __: int) -> None:
        self.events.pass_at(self.events.now_s)

    def _on_retry(self, _: int, __: int) -> None:
        self.events.pass_on_grid()

    def _on_finish(self, num: int, version: int) -> None:
        run = self.runs[num]
        if run.version != version:
            return
        self.accounting.advance(run)
        job = self.lifecycles.left(num, NodeOutcome.SUCCEEDED, run.step, self.events.now_s)
        if job.state is not JobState.SUCCEEDED:
            raise InvariantBroken(f"j-{num} ended and is {job.state}")
        run.end_s = self.events.now_s
        held = self.cluster.release(num)
        if held is not None:
            key = KindKey(held.project, held.kind, size_class(run.job.num_slots))
            self.cluster.history.observe(key, run.attained_slot_s)
        self.events.pass_on_grid()

    def _on_left(self, num: int, version: int) -> None:
        run = self.runs[num]
        if run.version != version:
            return
        self.attempts.left(run)
        if any(num in reserved.victims for reserved in self.cluster.reservations.values()):
            self.events.pass_at(self.events.now_s)
        else:
            self.events.pass_on_grid()

    # -- events of nodes and ranks -------------------------------------------------------------------

    def _on_notice(self, i: int, _: int) -> None:
        outage = self.setup.outages[i]
        if outage.notice_s <= 0:
            return
        self._close(outage.node, "spot node is about to be reclaimed")
        if outage.notice_s >= self.costs.stop_s():
            for num in self._on_node(outage.node):
                reason = Reason(ReasonCode.NODE_LOST, f"{outage.node} is about to be reclaimed")
                self.attempts.ask_to_leave(num, reason)
        self.events.pass_on_grid()

    def _on_down(self, i: int, _: int) -> None:
        node = self.setup.outages[i].node
        for num in self._on_node(node):
            self.attempts.lost(self.runs[num], node)
        self._close(node, "lost")
        self.events.pass_on_grid()

    def _on_up(self, i: int, _: int) -> None:
        self._close(self.setup.outages[i].node, "")
        self.events.pass_on_grid()

    def _on_crash(self, i: int, _: int) -> None:
        """A rank dies: the next generation starts in place, or the job has used up its budget."""
        crash = self.setup.crashes[i]
        index = self.cluster.index
        num = next(
            (
                num
                for num in self.cluster.on_node[index.num_of[crash.node]]
                for share in self.cluster.held[num].placement.shares
                if share.node == crash.node and crash.slot in share.slots
            ),
            None,
        )
        if num is None or self.runs[num].stopping:
            return
        run = self.runs[num]
        self.accounting.advance(run)
        if self.lifecycles.jobs[num].state is not JobState.RUNNING:
            return
        step = run.step
        self.accounting.fail(run)
        job = self.lifecycles.crashed(num, crash.cause, step, self.events.now_s)
        if job.attempt is None:
            self.attempts.requeue(run, job)
            self.events.pass_on_grid()
            return
        wait_s = 0.0 if job.not_before is None else job.not_before / US - self.events.now_s
        if job.not_before is not None:
            self.lifecycles.back_off_over(num, job.not_before / US)
        placement = self.cluster.held[num].placement
        self.accounting.place(run, placement, wait_s + self.costs.restart_s)

    def _on_node(self, node: str) -> list[int]:
        return list(self.cluster.on_node[self.cluster.index.num_of[node]])

    def _close(self, name: str, why: str) -> None:
        node = self.cluster.index.nodes[self.cluster.index.num_of[name]]
        self.cluster.replace_node(replace(node, closed=why))
