"""The cluster index: nodes, queue and running jobs as the planner reads them, updated per event.

A `ClusterIndex` always equals one rebuilt from its own snapshot. Its owner (the simulator, a
control loop) applies events to it; `plan_pass` only reads it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import GangShape, Node, Placement
from phalanx.core.scheduling.index.running import RunningIndex
from phalanx.core.scheduling.index.slots import NodeGroup, SlotIndex
from phalanx.core.scheduling.index.topology import NodeRequest, request_of, suitable
from phalanx.core.scheduling.model.durations import EDGES, History, KindKey, bin_of
from phalanx.core.scheduling.model.planner_state import Reservation
from phalanx.core.scheduling.model.planning_input import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    RunningJob,
    UserQuota,
)
from phalanx.core.scheduling.model.urgency import kind_key
from phalanx.errors import InvariantBroken

_NO_SHAPE = GangShape(0, 0, 0)


class EquivalenceClass:
    """Queued jobs that only their time of arrival tells apart: if the first cannot start, none can."""

    __slots__ = (
        "attained_bin",
        "base",
        "base_seen",
        "base_version",
        "groups",
        "jobs",
        "key",
        "kind",
        "line",
        "overdue_s",
        "overdue_version",
        "request",
        "request_num",
        "sample",
    )

    def __init__(
        self,
        key: tuple[object, ...],
        sample: QueuedJob,
        request_num: int,
        groups: list[NodeGroup],
        lines: Lines,
    ) -> None:
        self.key = key
        self.request_num = request_num
        # The properties of a class must not depend on which job joined it first.
        self.sample = sample = _typical(sample)
        self.request: NodeRequest = request_of(sample)
        self.kind: KindKey = kind_key(sample)
        self.attained_bin = bin_of(sample.attained_slot_s)
        self.groups = groups
        # The classes that differ from this one in the size of the gang alone, itself included.
        self.line: list[EquivalenceClass] = lines.setdefault(line_key(sample), [])
        self.line.append(self)
        self.jobs: list[tuple[int, int]] = []
        self.base = 0.0
        self.base_version = -1
        self.base_seen = -1
        self.overdue_s = 0.0
        self.overdue_version = -2

    def narrowed(
        self, request: NodeRequest, request_num: int, groups: list[NodeGroup]
    ) -> EquivalenceClass:
        """Return the same jobs with another request of nodes, for the rest of a pass."""
        found = EquivalenceClass(self.key, self.sample, request_num, groups, {})
        found.sample, found.request, found.jobs = self.sample, request, self.jobs
        found.attained_bin, found.line = self.attained_bin, self.line
        return found

    def leave(self, lines: Lines) -> None:
        """Leave the line; an empty one is dropped."""
        self.line.remove(self)
        if not self.line:
            del lines[line_key(self.sample)]


Lines = dict[tuple[object, ...], list[EquivalenceClass]]
"""Queued classes by what they have in common beside the size of their gangs."""


def _typical(job: QueuedJob) -> QueuedJob:
    """Return a job reduced to what all jobs of its class have in common."""

    def upper(value: float | None) -> float | None:
        return None if value is None else EDGES[bin_of(value) + 1]

    return replace(
        job,
        num=0,
        submitted_at=0,
        queued_at=None,
        not_before=None,
        attained_slot_s=EDGES[bin_of(job.attained_slot_s)],
        remaining_s=upper(job.remaining_s),
        max_duration_s=upper(job.max_duration_s),
        delayed_s=0.0,
        required_until=None,
    )


def class_key(job: QueuedJob) -> tuple[object, ...]:
    """Return the key that is equal for two jobs of one equivalence class."""
    return (
        job.project,
        job.priority,
        request_of(job),
        job.kind,
        job.user,
        job.min_nodes,
        bin_of(job.attained_slot_s),
        None if job.remaining_s is None else bin_of(job.remaining_s),
        None if job.max_duration_s is None else bin_of(job.max_duration_s),
    )


def line_key(job: QueuedJob) -> tuple[object, ...]:
    """Return the key that is equal for two jobs that differ in the size of their gang alone."""
    request = replace(request_of(job), shape=_NO_SHAPE)
    attained = bin_of(job.attained_slot_s / max(job.num_slots, 1))
    left = None if job.remaining_s is None else bin_of(job.remaining_s)
    limit = None if job.max_duration_s is None else bin_of(job.max_duration_s)
    elastic = job.min_nodes is not None
    return (job.project, job.priority, request, job.kind, elastic, attained, left, limit)


@dataclass(slots=True)
class QueueCount:
    """How many queued jobs of one project, priority and size there are, and the sum of their `since`."""

    num: int = 0
    since: int = 0


class ClusterIndex:
    """Nodes, allocations, queue, projects and reservations, indexed for the stages."""

    def __init__(
        self,
        nodes: Iterable[Node],
        projects: Iterable[Project] = (),
        history: History | None = None,
        config: PlannerConfig | None = None,
    ) -> None:
        self.now = 0  # time of the last `advance`
        self.users: tuple[UserQuota, ...] = ()  # limits of each user on the whole platform
        self._begin(nodes, projects, history, config)

    def _begin(
        self,
        nodes: Iterable[Node],
        projects: Iterable[Project],
        history: History | None,
        config: PlannerConfig | None,
    ) -> None:
        """Build the index of an empty cluster."""
        self.index = SlotIndex(nodes)
        self.projects: dict[str, Project] = {p.name: p for p in projects}
        self.history = History() if history is None else history
        self.config = PlannerConfig() if config is None else config
        self.held: dict[int, RunningJob] = {}
        self.on_node: list[dict[int, int]] = [{} for _ in self.index.nodes]  # slots by job
        self.used: dict[str, int] = {}
        self.waiting: dict[int, QueuedJob] = {}
        self._submitted: dict[int, QueuedJob] = {}  # jobs that wait on other terms than at first
        self.patience: list[tuple[int, int]] = []  # (end, job): waits for a preferred level
        self.classes: dict[tuple[object, ...], EquivalenceClass] = {}
        self._lines: Lines = {}
        self.class_of: dict[int, EquivalenceClass] = {}
        self.deferred: dict[int, int] = {}
        self.demand: dict[str, int] = {}
        self.queued: dict[tuple[str, int, int], QueueCount] = {}
        self.elastic: set[int] = set()
        self.stopping: set[int] = set()
        self.reservations: dict[int, Reservation] = {}
        self.running = RunningIndex(self.history, self.config)
        self.nodes_of: dict[int, tuple[int, ...]] = {}
        self._groups: dict[NodeRequest, list[NodeGroup]] = {}
        self._requests: dict[NodeRequest, int] = {}

    @classmethod
    def of(cls, snapshot: PlanningInput) -> ClusterIndex:
        """Build the index from a snapshot."""
        cluster = cls(snapshot.nodes, snapshot.projects, snapshot.history, snapshot.config)
        cluster.users = snapshot.users
        cluster._fill(snapshot)
        return cluster

    def _fill(self, snapshot: PlanningInput) -> None:
        for held in snapshot.held:
            self.hold(held)
        for job in snapshot.waiting:
            self.submit(job)
        for reservation in snapshot.reservations:
            self.reservations[reservation.job] = reservation

    def snapshot(self) -> PlanningInput:
        """Return the state as an immutable planning input."""
        return PlanningInput(
            self.index.nodes,
            tuple(self.held[job] for job in sorted(self.held)),
            tuple(self._submitted.get(num, self.waiting[num]) for num in sorted(self.waiting)),
            tuple(self.projects.values()),
            tuple(self.reservations[job] for job in sorted(self.reservations)),
            self.history,
            self.config,
            self.users,
        )

    def submit(self, job: QueuedJob) -> None:
        """Add a job to the queue; a repeated call changes nothing."""
        if job.num in self.waiting or job.num in self.held:
            return
        submitted, job = job, job.as_of(self.now)
        if job is not submitted:
            self._submitted[job.num] = submitted
        if job.required_until is not None:
            heapq.heappush(self.patience, (job.required_until, job.num))
        self.waiting[job.num] = job
        self.demand[job.project] = self.demand.get(job.project, 0) + job.num_slots
        self._add_queued_demand(job, 1)
        self._count(job, 1)
        if job.not_before is not None and job.not_before > self.now:
            self.deferred[job.num] = job.not_before
        else:
            self._enqueue(job)

    def submitted(self, num: int) -> QueuedJob | None:
        """Return a queued job as it was submitted."""
        return self._submitted.get(num) or self.waiting.get(num)

    def advance(self, now: int) -> None:
        """Bring the queue up to `now`: end the back-offs and the waits for preferred levels that are over.

        A reservation changes nothing about the end of a wait for a preferred level.
        """
        self.now = now
        while self.patience and self.patience[0][0] <= now:
            num = heapq.heappop(self.patience)[1]
            job = self.waiting.get(num)
            if job is not None and job.as_of(now) is not job:
                reservation = self.reservations.get(num)
                self.withdraw(num)
                self.submit(job)
                if reservation is not None:
                    self.reservations[num] = reservation
        for num in [n for n, at in self.deferred.items() if at <= now]:
            del self.deferred[num]
            self._enqueue(self.waiting[num])

    def withdraw(self, num: int) -> None:
        """Remove a job from the queue: started, cancelled, or paused."""
        job = self.waiting.pop(num, None)
        if job is None:
            return
        self._submitted.pop(num, None)
        self._add_queued_demand(job, -1)
        self._count(job, -1)
        left = self.demand[job.project] - job.num_slots
        if left:
            self.demand[job.project] = left
        else:
            del self.demand[job.project]
        self.reservations.pop(num, None)
        if self.deferred.pop(num, None) is not None:
            return
        eq_class = self.class_of.pop(num)
        del eq_class.jobs[bisect_left(eq_class.jobs, (job.owed_since, num))]
        if not eq_class.jobs:
            del self.classes[eq_class.key]
            eq_class.leave(self._lines)

    def groups_for(self, request: NodeRequest) -> list[NodeGroup]:
        """Node groups that may host such a job, best first."""
        found = self._groups.get(request)
        if found is None:
            found = self._groups[request] = suitable(self.index, request)
        return found

    def number_of(self, request: NodeRequest) -> int:
        """Return the number of a request."""
        return self._requests.setdefault(request, len(self._requests))

    def _enqueue(self, job: QueuedJob) -> None:
        key = class_key(job)
        eq_class = self.classes.get(key)
        if eq_class is None:
            request = request_of(job)
            number = self.number_of(request)
            eq_class = self.classes[key] = EquivalenceClass(
                key, job, number, self.groups_for(request), self._lines
            )
        insort(eq_class.jobs, (job.owed_since, job.num))
        self.class_of[job.num] = eq_class

    def _add_queued_demand(self, job: QueuedJob, sign: int) -> None:
        shapes = (job.shape, *job.roles)
        self.index.demand_profile.add(shapes, job.cpus_per_node, job.memory_per_node_bytes, sign)

    def _count(self, job: QueuedJob, sign: int) -> None:
        key = (job.project, job.priority, job.num_slots)
        queued = self.queued.get(key)
        if queued is None:
            queued = self.queued[key] = QueueCount()
        queued.num += sign
        queued.since += sign * job.since
        if not queued.num:
            del self.queued[key]

    def _add_held_demand(self, held: RunningJob, sign: int) -> None:
        shapes = [GangShape(1, len(share.slots), 1) for share in held.placement.shares]
        self.index.demand_profile.add(shapes, held.cpus_per_node, held.memory_per_node_bytes, sign)

    def hold(self, held: RunningJob) -> None:
        """Allocate these slots to an attempt and remove its job from the queue."""
        if held.job in self.held:
            return
        self.withdraw(held.job)
        nodes = []
        for allocation in self.index.allocations(
            held.placement, held.cpus_per_node, held.memory_per_node_bytes, held.roles
        ):
            self.index.take(allocation)
            if not allocation.mask:
                continue  # a share without slots is never preempted for its CPUs
            at = self.on_node[allocation.node]
            at[held.job] = at.get(held.job, 0) + allocation.mask.bit_count()
            nodes.append(allocation.node)
        self.index.settle()
        self._add_held_demand(held, 1)
        self.nodes_of[held.job] = tuple(dict.fromkeys(nodes))
        self.held[held.job] = held
        self.running.add(held)
        self._note_stopping(held)
        if held.min_nodes is not None and held.max_nodes is not None:
            self.elastic.add(held.job)
        self.used[held.project] = self.used.get(held.project, 0) + held.num_slots

    def start(self, num: int, placement: Placement, held: RunningJob) -> None:
        """Apply a planned start."""
        if num not in self.waiting:
            raise InvariantBroken(f"j-{num} starts but does not wait")
        self.hold(replace(held, job=num, placement=placement))

    def release(self, num: int) -> RunningJob | None:
        """Free the slots of an ended attempt; a repeated call changes nothing."""
        held = self.held.get(num)
        if held is None:
            return None
        del self.held[num]
        self.running.remove(num)
        self.elastic.discard(num)
        self.stopping.discard(num)
        for allocation in self.index.allocations(
            held.placement, held.cpus_per_node, held.memory_per_node_bytes, held.roles
        ):
            self.on_node[allocation.node].pop(num, None)
            self.index.give(allocation)
        self.index.settle()
        self._add_held_demand(held, -1)
        del self.nodes_of[num]
        left = self.used[held.project] - held.num_slots
        if left:
            self.used[held.project] = left
        else:
            del self.used[held.project]
        return held

    def update(self, held: RunningJob) -> None:
        """Update a running attempt on the same placement: a save, progress, a stop."""
        if held.job in self.held:
            self.running.remove(held.job)
            self.held[held.job] = held
            self.running.add(held)
            self._note_stopping(held)

    def _note_stopping(self, held: RunningJob) -> None:
        if held.stopping:
            self.stopping.add(held.job)
        else:
            self.stopping.discard(held.job)

    def saved(self, num: int, at: int) -> None:
        """Record a checkpoint that a running attempt committed."""
        if num in self.held:
            self.held[num] = replace(self.held[num], saved_at=at)

    def replace_node(self, node: Node) -> None:
        """Add or change a node (closed, opened, relabeled), which rebuilds the index."""
        known, nodes = self.index.num_of.get(node.id), list(self.index.nodes)
        if known is None:
            nodes.append(node)
        else:
            nodes[known] = node
        self._rebuild(nodes)

    def remove_node(self, node_id: str) -> None:
        """Remove a node; the loss of its attempts is reported separately."""
        self._rebuild([node for node in self.index.nodes if node.id != node_id])

    def _rebuild(self, nodes: list[Node]) -> None:
        before = self.snapshot()
        self._begin(nodes, before.projects, before.history, before.config)
        self._fill(before)

    def preemptible(self, now: int) -> dict[int, list[tuple[float, int]]]:
        """Return preemptible running jobs by priority, the least urgent first."""
        self.running.settle(now)
        return self.running.ranked

    def end_of(self, num: int, now: int) -> int | None:
        """Return the expected end of a running job; constant within a service bin."""
        return self.running.end_of(num, now)

    def score_of(self, held: RunningJob, now: int) -> float:
        """Return the learned urgency of a running job."""
        return self.running.score_of(held, now)

    def state(self) -> tuple[object, ...]:
        """Return all state that must equal a rebuild."""
        classes = {key: eq_class.jobs for key, eq_class in self.classes.items()}
        return (
            self.index.state(),
            self.index.demand_profile,
            self.held,
            self.on_node,
            self.used,
            self.demand,
            self.queued,
            self.stopping,
            classes,
            self.deferred,
            self.reservations,
        )


def next_patience_end(cluster: ClusterIndex) -> int | None:
    """Return when the next queued job stops insisting on its preferred level; None if none does."""
    while cluster.patience:
        at, num = cluster.patience[0]
        job = cluster.waiting.get(num)
        if job is not None and job.required_until == at:
            return at
        heapq.heappop(cluster.patience)
    return None


def without_types(
    cluster: ClusterIndex, eq_class: EquivalenceClass, slot_types: tuple[str, ...]
) -> EquivalenceClass:
    """Return a class that does not use these slot types, except where a part of it names one."""
    if eq_class.request.without == slot_types:
        return eq_class
    request = replace(eq_class.request, without=slot_types)
    return eq_class.narrowed(request, cluster.number_of(request), cluster.groups_for(request))
