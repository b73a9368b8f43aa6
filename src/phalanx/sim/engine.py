"""The discrete-event cluster: events in time order, a planning pass when something changed.

Passes happen on a grid (`pass_s`), as a control loop's ticks do, and at once when a victim has left a
hole. Policies see the world that the production planner sees; nothing else decides.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from phalanx.core.placement import Node, Placement
from phalanx.core.scheduling import Held, Plan, Project, Terms, World
from phalanx.core.scheduling.estimates import History, KindKey, size_class
from phalanx.sim import audit
from phalanx.sim.costs import Costs, num_domains, slow_down
from phalanx.sim.jobs import US, TraceJob


class Truth(Protocol):
    """What only an oracle may ask: the ideal seconds that a job still needs."""

    def remaining_s(self, num: int) -> float:
        """Seconds of undisturbed run left."""
        ...


class Policy(Protocol):
    """The seam behind which the production planner and its peers sit."""

    name: str

    def plan(self, world: World, now: int, truth: Truth) -> Plan:
        """One pass."""
        ...


@dataclass(slots=True)
class Run:
    """A job's life so far, in seconds of virtual time."""

    job: TraceJob
    left_s: float
    first_start_s: float | None = None
    end_s: float | None = None
    at_s: float = 0.0
    overhead_left_s: float = 0.0
    factor: float = 1.0
    version: int = 0
    starts: int = 0
    preemptions: int = 0
    failures: int = 0
    resizes: int = 0
    attained_slot_s: float = 0.0
    slots: int = 0
    scattered: bool = False
    saved_left_s: float = 0.0
    saved_at_s: float = 0.0
    stopping: bool = False
    waited_s: float = 0.0
    queued_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """Slot-seconds by what they were spent on, and what the passes cost."""

    useful: float = 0.0
    lost: float = 0.0
    overhead: float = 0.0
    slowed: float = 0.0
    scattered: float = 0.0
    gang: float = 0.0
    avoidable: float = 0.0
    lost_to_failures: float = 0.0
    pass_s: list[float] = field(default_factory=list)
    needless: int = 0
    by_project: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node goes away at `at_s` for `for_s`; `notice_s` is the warning given before."""

    at_s: float
    node: str
    for_s: float
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a run depends on besides the jobs and the policy."""

    nodes: Sequence[Node]
    projects: Sequence[Project] = ()
    terms: Terms = field(default_factory=Terms)
    costs: Costs = field(default_factory=Costs)
    outages: Sequence[Outage] = ()
    pass_s: float = 60.0
    recheck_s: float = 300.0
    audit_every: int = 0
    until_s: float | None = None


@dataclass(slots=True)
class Result:
    """A finished run."""

    policy: str
    runs: dict[int, Run]
    tally: Tally
    setup: Setup
    end_s: float
    num_passes: int
    wall_s: float


def simulate(jobs: Sequence[TraceJob], setup: Setup, policy: Policy) -> Result:
    """Run the jobs through a policy until all have ended (or `until_s`)."""
    return _Cluster(jobs, setup, policy).run()


class _Cluster:
    def __init__(self, jobs: Sequence[TraceJob], setup: Setup, policy: Policy) -> None:
        self.setup = setup
        self.costs = setup.costs
        self.policy = policy
        self.world = World(setup.nodes, setup.projects, History(), setup.terms)
        self.runs = {job.num: Run(job, max(job.duration_s, 1.0)) for job in jobs}
        self.tally = Tally()
        self.largest_leaf = max((g.largest_leaf for g in self.world.index.groups), default=0)
        self.events: list[tuple[float, int, str, int, int]] = []
        self.seq = 0
        self.now_s = 0.0
        self.num_passes = 0
        self.next_pass: float | None = None
        self.watch = audit.Watch()
        for job in jobs:
            self._at(job.submit_s, "submit", job.num)
        for i, outage in enumerate(setup.outages):
            self._at(outage.at_s - outage.notice_s, "notice", i)
            self._at(outage.at_s, "down", i)
            self._at(outage.at_s + outage.for_s, "up", i)

    # -- truth for oracles -------------------------------------------------------------------------

    def remaining_s(self, num: int) -> float:
        """Ideal seconds left, were it brought up to date now."""
        run = self.runs[num]
        if num not in self.world.held or run.stopping:
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
            if not self.world.waiting and not self.world.held and not self._to_come():
                break
        for num in list(self.world.held):
            self._advance(self.runs[num])
        wall_s = time.perf_counter() - began
        return Result(
            self.policy.name, self.runs, self.tally, self.setup, self.now_s, self.num_passes, wall_s
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
        began = time.perf_counter()
        plan = self.policy.plan(self.world, now, self)
        self.tally.pass_s.append(time.perf_counter() - began)
        self.num_passes += 1
        every = self.setup.audit_every
        if every and self.num_passes % every == 0:
            audit.check_rebuild(self.world)
        if every:
            self.watch.check_plan(self.world, plan, now)
        self._apply(plan)
        again = self.setup.recheck_s
        if self.world.waiting and self.world.held:
            at_s = self.now_s + again
            self.next_pass = at_s if self.next_pass is None else min(self.next_pass, at_s)

    def _report_saves(self) -> None:
        for num, held in list(self.world.held.items()):
            run = self.runs[num]
            every = run.job.checkpoint_s
            if every > 0 and not run.stopping:
                last_s = run.saved_at_s + (self.now_s - run.saved_at_s) // every * every
                if int(last_s * US) != held.saved_at:
                    self.world.saved(num, int(last_s * US))

    def _apply(self, plan: Plan) -> None:
        self.world.holes = {hole.job: hole for hole in plan.holes if hole.victims}
        for preemption in plan.preemptions:
            self._ask_to_leave(preemption.job)
        for resize in plan.resizes:
            self._resize(resize.job, resize.placement)
        for start in plan.starts:
            self._start(start.job, start.placement)

    # -- what happens --------------------------------------------------------------------------------

    def _on_submit(self, num: int, _: int) -> None:
        run = self.runs[num]
        run.queued_s = self.now_s
        self.world.submit(run.job.waiting())
        self._ask_pass()

    def _on_finish(self, num: int, version: int) -> None:
        run = self.runs[num]
        if run.version != version:
            return
        self._advance(run)
        run.end_s = self.now_s
        held = self.world.release(num)
        if held is not None:
            key = KindKey(held.project, held.kind, size_class(run.job.num_slots))
            self.world.history.observe(key, run.attained_slot_s)
        self._ask_pass()

    def _on_left(self, num: int, version: int) -> None:
        run = self.runs[num]
        if run.version != version:
            return
        self._advance(run)
        self._requeue(num)
        hole = any(num in hole.victims for hole in self.world.holes.values())
        if hole:
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
                self._ask_to_leave(num)
        self._ask_pass()

    def _on_down(self, i: int, _: int) -> None:
        node = self.setup.outages[i].node
        for num in self._on_node(node):
            run = self.runs[num]
            self._advance(run)
            lost = min(run.saved_left_s - run.left_s, run.job.duration_s)
            self._lose(run, max(lost, 0.0))
            self.tally.lost_to_failures += max(lost, 0.0) * run.slots * run.factor
            run.failures += 1
            run.preemptions -= 1
            self._requeue(num)
        self._close(node, "lost")
        self._ask_pass()

    def _on_up(self, i: int, _: int) -> None:
        self._close(self.setup.outages[i].node, "")
        self._ask_pass()

    def _on_node(self, node: str) -> list[int]:
        return list(self.world.on_node[self.world.index.num_of[node]])

    def _close(self, name: str, why: str) -> None:
        node = self.world.index.nodes[self.world.index.num_of[name]]
        self.world.replace_node(replace(node, closed=why))

    # -- a job's life ----------------------------------------------------------------------------------

    def _start(self, num: int, placement: Placement) -> None:
        run, job = self.runs[num], self.runs[num].job
        again = run.starts > 0
        waited_s = self.now_s - run.queued_s
        guard = self.setup.terms
        protected = waited_s > guard.guard_after_s
        held = Held(
            num,
            placement,
            project=job.project,
            priority=job.priority,
            kind=job.kind,
            started_at=int(self.now_s * US),
            attained_slot_s=run.attained_slot_s,
            max_duration_s=job.limit_s,
            saved_at=int(self.now_s * US),
            save_s=self.costs.save_s if self.costs.graceful else None,
            restart_s=self.costs.restart_s,
            protected_until=int((self.now_s + guard.guard_quantum_s) * US) if protected else 0,
            min_nodes=job.min_nodes,
            max_nodes=None if job.min_nodes is None else job.shape.nodes,
        )
        self.world.start(num, placement, held)
        self.world.history.observe_wait(job.num_slots, waited_s)
        run.waited_s += waited_s
        run.first_start_s = self.now_s if run.first_start_s is None else run.first_start_s
        run.starts += 1
        run.stopping = False
        self._place(run, placement, self.costs.restart_s if again else self.costs.start_s)

    def _place(self, run: Run, placement: Placement, overhead_s: float) -> None:
        index, job = self.world.index, run.job
        run.at_s = self.now_s
        run.overhead_left_s = overhead_s
        run.saved_left_s, run.saved_at_s = run.left_s, self.now_s
        run.slots = sum(len(share.slots) for share in placement.shares)
        factor = slow_down(index, job, placement) if self.costs.slowdown else 1.0
        run.factor = factor * job.num_slots / max(run.slots, 1)
        run.scattered = num_domains(index, placement) > 1
        run.version += 1
        self._at(self.now_s + overhead_s + run.left_s * run.factor, "finish", job.num, run.version)

    def _advance(self, run: Run) -> None:
        gone = self.now_s - run.at_s
        run.at_s = self.now_s
        run.attained_slot_s += gone * run.slots
        projects = self.tally.by_project
        projects[run.job.project] = projects.get(run.job.project, 0.0) + gone * run.slots
        if run.stopping:
            self.tally.overhead += gone * run.slots
            return
        overhead = min(gone, run.overhead_left_s)
        run.overhead_left_s -= overhead
        work = (gone - overhead) / run.factor
        run.left_s -= work
        ideal = run.job.num_slots * work
        self.tally.overhead += overhead * run.slots
        self.tally.useful += ideal
        self.tally.slowed += (gone - overhead) * run.slots - ideal
        if run.job.shape.nodes > 1:
            self.tally.gang += gone * run.slots
            self.tally.scattered += gone * run.slots if run.scattered else 0.0
            fits = run.job.shape.nodes <= self.largest_leaf
            self.tally.avoidable += gone * run.slots if run.scattered and fits else 0.0
        every = run.job.checkpoint_s
        if every > 0 and self.now_s - run.saved_at_s >= every:
            num = (self.now_s - run.saved_at_s) // every
            run.saved_at_s += num * every
            run.saved_left_s = run.left_s + (self.now_s - run.saved_at_s) / run.factor

    def _ask_to_leave(self, num: int) -> None:
        run = self.runs[num]
        held = self.world.held.get(num)
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
        self.world.update(replace(held, stopping=True))
        self._at(self.now_s + self.costs.stop_s(), "left", num, run.version)

    def _lose(self, run: Run, lost_s: float) -> None:
        run.left_s += lost_s
        self.tally.lost += lost_s * run.job.num_slots
        self.tally.useful -= lost_s * run.job.num_slots

    def _requeue(self, num: int) -> None:
        run = self.runs[num]
        self.world.release(num)
        run.version += 1
        run.stopping = False
        run.queued_s = self.now_s
        waiting = run.job.waiting()
        self.world.submit(
            replace(
                waiting,
                queued_at=int(self.now_s * US),
                attained_slot_s=run.attained_slot_s,
            )
        )

    def _resize(self, num: int, placement: Placement) -> None:
        run, held = self.runs[num], self.world.held[num]
        self._advance(run)
        run.resizes += 1
        now = int(self.now_s * US)
        self.world.release(num)
        self.world.hold(
            replace(
                held,
                placement=placement,
                started_at=now,
                attained_slot_s=run.attained_slot_s,
                resized_at=now,
            )
        )
        self._place(run, placement, self.costs.resize_s)
