"""A pool with virtual time: the production planner starts gangs, and a small autoscaler adds nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from phalanx.core.cost.prices import NANO
from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scaling.demand import demand_for
from phalanx.core.scaling.future import future_nodes
from phalanx.core.scaling.model import (
    NodeFacts,
    PoolFacts,
    PoolFindings,
    PoolScaling,
    ScalingPolicy,
    ScalingStep,
)
from phalanx.core.scaling.step import begin, finish
from phalanx.core.scheduling import PlanningInput, Project, QueuedJob, RunningJob, plan

US = 1_000_000
PATTERN = Node("", "gpu", "", 4, 16, 1 << 36, slot_type="H100", price_per_slot_hour=1.0)


def policy(**changes: object) -> ScalingPolicy:
    """A policy with short times."""
    base = ScalingPolicy(
        max_nodes=8,
        cool_down_up_us=10 * US,
        cool_down_down_us=20 * US,
        idle_after_us=60 * US,
        grow_within_us=120 * US,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@dataclass
class ScaledPool:
    """`gives`: part of the requested nodes that the autoscaler adds, `delay_s` after the request."""

    policy: ScalingPolicy = field(default_factory=policy)
    gives: float = 1.0
    delay_s: int = 30
    projects: tuple[Project, ...] = ()
    removes_idle: bool = True
    price_nano: int = 4 * NANO  # of a node, for an hour
    now: int = US
    nodes: list[Node] = field(default_factory=list)
    waiting: dict[int, QueuedJob] = field(default_factory=dict)
    running: dict[int, RunningJob] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    state: PoolScaling = field(default_factory=PoolScaling)
    drained: set[str] = field(default_factory=set)
    steps: list[ScalingStep] = field(default_factory=list)
    lasts_s: dict[int, int] = field(default_factory=dict)
    given: dict[tuple[int, int], int] = field(default_factory=dict)
    boots_s: int = 0  # time in which a new node is there and takes no jobs
    boots_until: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def add_nodes(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            name = f"n{self.number}"
            self.nodes.append(replace(PATTERN, id=name, address=name))
            self.boots_until[name] = self.now + self.boots_s * US

    def submit(
        self, num: int, nodes: int, slots: int = 4, *, lasts_s: int = 300, **rest: object
    ) -> None:
        job = QueuedJob(num, GangShape(nodes, slots, slots), 50, self.now, **rest)  # type: ignore[arg-type]
        self.waiting[num] = job
        self.lasts_s[num] = lasts_s

    def cancel(self, num: int) -> None:
        self.waiting.pop(num, None)

    def snapshot(self, *, future: bool) -> PlanningInput:
        nodes = [
            node if self.is_usable(node.id) else replace(node, closed="drained or not ready")
            for node in self.nodes
        ]
        if future:
            nodes += future_nodes(self.policy, PATTERN, self.nodes, ())
        return PlanningInput(
            nodes=tuple(nodes),
            held=tuple(self.running.values()),
            waiting=tuple(self.waiting.values()),
            projects=self.projects,
        )

    def is_usable(self, name: str) -> bool:
        return name not in self.drained and self.now >= self.boots_until[name]

    def facts(self) -> PoolFacts:
        on: dict[str, list[RunningJob]] = {}
        for job in self.running.values():
            for share in job.placement.shares:
                on.setdefault(share.node, []).append(job)
        return PoolFacts(
            nodes=tuple(
                NodeFacts(
                    node.id,
                    node.num_slots,
                    self.price_nano,
                    usable=self.is_usable(node.id),
                    jobs=tuple(job.job for job in on.get(node.id, [])),
                    may_drain=all(
                        job.preemptible and job.save_s is not None for job in on.get(node.id, [])
                    ),
                    drain_cost=sum(job.eviction_cost(self.now) for job in on.get(node.id, [])),
                )
                for node in self.nodes
            ),
            new_slots=PATTERN.num_slots,
            new_nano=self.price_nano,
            waiting=frozenset(self.waiting),
            held=frozenset(self.running),
        )

    def turn(self, seconds: int = 5) -> ScalingStep:
        """End jobs, add and remove nodes, start gangs, then one step of the scaling."""
        self.now += seconds * US
        for num, at in list(self.ends.items()):
            if self.now >= at:
                self.ends.pop(num)
                self.running.pop(num, None)
        self._autoscale()
        for start in plan(self.snapshot(future=False), self.now).starts:
            job = self.waiting.pop(start.job)
            self.running[start.job] = RunningJob(
                start.job, start.placement, project=job.project, started_at=self.now
            )
            self.ends[start.job] = self.now + self.lasts_s[start.job] * US
        step = self.scale()
        for name in step.drain:
            self.drained.add(name)
            for num, job in list(self.running.items()):
                if any(share.node == name for share in job.placement.shares):
                    self.running.pop(num)
                    self.ends.pop(num)
                    shape = GangShape(
                        len(job.placement.shares), len(job.placement.shares[0].slots), 1
                    )
                    self.waiting[num] = QueuedJob(num, shape, 50, self.now, project=job.project)
        self.drained -= set(step.undrain)
        return step

    def scale(self) -> ScalingStep:
        facts = self.facts()
        asked = begin(self.policy, self.state, facts, self.now)
        snapshot = self.snapshot(future=True)
        found, most = (
            demand_for(
                snapshot,
                {"gpu": number},
                self.now,
                joining=asked.joining,
                leave_out=asked.leave_out,
            )
            for number in (asked.offer, asked.most)
        )
        findings = PoolFindings(found.of("gpu"), most.of("gpu"), found.fit_now)
        step = finish(self.policy, asked, facts, findings, self.now)
        self.state = step.state
        self.steps.append(step)
        return step

    def _autoscale(self) -> None:
        for claim in self.state.claims:
            key = (claim.gang.job, claim.asked_at)
            if self.now < claim.asked_at + self.delay_s * US or key in self.given:
                continue
            number = int(claim.gang.num_new * self.gives)
            self.given[key] = number
            self.add_nodes(number)
        if self.removes_idle:
            busy = {share.node for job in self.running.values() for share in job.placement.shares}
            gone = {*self.state.released, *self.state.leaving} - busy
            self.nodes = [node for node in self.nodes if node.id not in gone]
            self.drained -= gone

    def decisions(self) -> list[str]:
        return [one.kind.value for step in self.steps for one in step.decisions]
