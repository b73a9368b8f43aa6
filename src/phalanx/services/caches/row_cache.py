"""Rows of the store as the planner reads them, decoded only where they changed.

Nothing here is authoritative: a control plane that starts builds the same rows from the store.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from phalanx.core.gang.devices import shared_out
from phalanx.core.gang.placement import Node
from phalanx.core.jobs.model import HOLDING, JobState
from phalanx.core.reasons import Reason
from phalanx.core.residency import LABEL
from phalanx.core.scheduling import (
    DEFAULT_POLICY,
    NAMED_POLICIES,
    PlannerConfig,
    PlanningInput,
    QueuedJob,
)
from phalanx.core.scheduling.index.empty_cluster import with_labels
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.planner_state import Usage, changed_usage, past_slots
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.core.scheduling.stages.preference import Preferences
from phalanx.errors import InvariantBroken
from phalanx.schemas.pools.pool_file import HostDefaults, PoolSpec
from phalanx.schemas.pools.project_file import ProjectSpec
from phalanx.services.caches import planner_input
from phalanx.services.caches.project_cache import ProjectCache
from phalanx.store import events, jobs, lineage, outbox, planning, resources, supervisors
from phalanx.store.cost import budgets
from phalanx.store.database import Touched, Tx
from phalanx.store.jobs import Finished, StoredJob
from phalanx.store.planning import StoredReservation

_PAGE = 5000
# Number of finished jobs read at startup for the duration history.
LEARNED_AT_START = 20_000
# Limit per pass on writes of pending reasons of which only the message has changed.
REWORDED_AT_ONCE = 200
_NEVER: tuple[None, None, int] = (None, None, 0)
# The executor's name for this machine; the stored pools divide its slots.
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class PlanningPolicy:
    """Planning configuration. `half_life_s`: half-life of past usage in fair-share accounting.

    `constants` are settings of the start; they replace those of any named policy.
    """

    config: PlannerConfig = PlannerConfig()
    half_life_s: float = 7 * 86_400.0
    name: str = DEFAULT_POLICY
    constants: Mapping[str, Any] = field(default_factory=dict)

    def under(self, name: str) -> PlanningPolicy:
        """The configuration under a named policy, with the constants of the start."""
        config = replace(NAMED_POLICIES[name], **self.constants)
        return replace(self, config=config, name=name)


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """The planner input at one moment, and the facts that the services add to it.

    `deferred` are queued jobs that the planner does not see, each with its reason; `usage` is the
    project usage to store because the number of slots held has changed.
    """

    nodes: tuple[Node, ...]
    snapshot: PlanningInput
    deferred: Mapping[int, Reason]
    reservations: Mapping[int, StoredReservation]
    attempts: Mapping[int, int]
    versions: Mapping[int, int]
    usage: Mapping[str, Usage]
    #: The cached projects; a different object after a change.
    projects_stamp: object = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request of a queued job at one version, with its preferred level."""

    version: int
    reservation: StoredReservation | None
    job: QueuedJob


@dataclass
class WrittenReasons:
    """The pending reason of each queued job that was last written to the store."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _written: dict[int, tuple[int | None, Reason, int]] = field(default_factory=dict)
    _turn: int = 0

    def unwritten(
        self, pending: Sequence[tuple[int, Reason]], versions: Mapping[int, int]
    ) -> list[tuple[int, Reason]]:
        """Reasons to write: those with a new code, and some of those with only a new message.

        In a long queue every start changes a number in the message of every job; writing all at
        every pass would dominate the work. The messages written longest ago come first.
        """
        fresh: list[tuple[int, Reason]] = []
        reworded: list[tuple[int, int, Reason]] = []
        with self._lock:
            for num, reason in pending:
                version, said, turn = self._written.get(num, _NEVER)
                if said is None or said.code is not reason.code or version != versions.get(num):
                    fresh.append((num, reason))
                elif said.message != reason.message:
                    reworded.append((turn, num, reason))
        few = heapq.nsmallest(REWORDED_AT_ONCE, reworded, key=lambda one: one[:2])
        return fresh + [(num, reason) for _, num, reason in few]

    def start_fresh(self) -> None:
        """Forget what was written: another process has written since."""
        with self._lock:
            self._written.clear()

    def said(self, num: int) -> Reason | None:
        """The reason that was written last for a queued job."""
        with self._lock:
            return self._written.get(num, _NEVER)[1]

    def mark_written(
        self, pending: Sequence[tuple[int, Reason]], versions: Mapping[int, int]
    ) -> None:
        """Record that these reasons have been written."""
        with self._lock:
            self._turn += 1
            for num, reason in pending:
                self._written[num] = (versions.get(num), reason, self._turn)
            for num in self._written.keys() - versions.keys():
                del self._written[num]


@dataclass
class RowCache:
    """Decoded rows, valid for a job version or a pool stamp, behind one lock."""

    _lock: threading.RLock = field(default_factory=threading.RLock)  # guards every field
    _jobs: dict[int, StoredJob] = field(default_factory=dict)  # queued and holding jobs, by number
    # The jobs of `_jobs` by state: queued, and holding slots.
    _queued: dict[int, StoredJob] = field(default_factory=dict)
    _held: dict[int, StoredJob] = field(default_factory=dict)  # those that hold slots
    _queue: list[StoredJob] | None = None  # values of `_queued`, sorted; None: stale
    _holding: list[StoredJob] | None = None  # values of `_held`, sorted; None: stale
    _launched: set[tuple[int, int]] = field(default_factory=set)  # (job, attempt) known as launched
    _feed_seq: int | None = None  # last feed number included; None: empty cache
    _learned: tuple[int, int] | None = None  # (ended_at, num) of the last finished job read
    _pools: tuple[object, tuple[PoolSpec, ...]] = ((), ())  # (stamps, pools)
    _projects: ProjectCache = field(default_factory=ProjectCache)  # what project files have applied
    _nodes: tuple[object, tuple[Node, ...]] = ((), ())  # (key, nodes with marks)
    _preferences: Preferences = field(default_factory=lambda: Preferences(()))  # on the nodes
    _layout: tuple[Node, ...] = ()  # the nodes of `_preferences`, none of them closed
    _asked: dict[int, _Asked] = field(default_factory=dict)  # requests by job number
    _blocked: dict[int, tuple[int, Reason]] = field(default_factory=dict)  # (until, reason) by job

    def start_fresh(self) -> None:
        """Forget everything; the next look reads it again."""
        fresh = RowCache()
        with self._lock:
            for one in fields(self):
                if one.name != "_lock":
                    setattr(self, one.name, getattr(fresh, one.name))

    def view(
        self,
        tx: Tx,
        real: Sequence[Node],
        policy: PlanningPolicy,
        history: History,
        now: int,
    ) -> SchedulerView:
        """Return everything a plan may depend on. `real` are the executor's own nodes."""
        with self._lock:
            nodes = self.nodes(tx, real)
            projects = self._projects_now(tx)
            waiting, holding = self.jobs(tx)
            reservations = planning.reservations_now(tx)
            known = planning.usage_now(tx)
            facts = _facts(tx, (*holding, *waiting))
            deferred = self._blocked_now(waiting, now) | _held_by_budgets(tx, waiting)
            deferred |= self._projects.outside_residency(waiting)
            shown = [one for one in waiting if one.job.num not in deferred]
            snapshot = PlanningInput(
                nodes=_with_selected_labels(nodes, shown),
                held=tuple(
                    planner_input.held(
                        one,
                        facts,
                        reservations.get(one.job.num),
                        policy.config,
                        now,
                        self._projects.allowed(one),
                    )
                    for one in holding
                ),
                waiting=tuple(
                    self._waiting(one, reservations.get(one.job.num), history, facts.speeds)
                    for one in shown
                ),
                projects=tuple(
                    one.to_core(past_slots(known.get(name), policy.half_life_s, now))
                    for name, one in projects.items()
                ),
                reservations=tuple(one.reservation for one in reservations.values()),
                history=history,
                config=policy.config,
                users=self._projects.users,
            )
            held = planner_input.slots_held(holding)
            return SchedulerView(
                nodes,
                snapshot,
                deferred,
                reservations,
                attempts={
                    one.job.num: one.job.attempt.num
                    for one in holding
                    if one.job.attempt is not None
                },
                versions={one.job.num: one.version for one in waiting},
                usage=changed_usage(known, held, policy.half_life_s, now),
                projects_stamp=self._projects.stamp,
            )

    def jobs(self, tx: Tx) -> tuple[list[StoredJob], list[StoredJob]]:
        """Queued jobs and those that hold slots, by number; only those that changed are decoded."""
        with self._lock:
            holding = self.holding(tx)
            if self._queue is None:
                self._queue = [self._queued[num] for num in sorted(self._queued)]
            return list(self._queue), holding

    def quotas(self, tx: Tx) -> tuple[dict[str, ProjectSpec], tuple[UserQuota, ...]]:
        """Projects with limits by name, and the quotas of users on the whole platform."""
        with self._lock:
            return self._projects_now(tx), self._projects.users

    def holding(self, tx: Tx) -> list[StoredJob]:
        """Jobs that hold slots, by number, at a cost independent of the queue length."""
        with self._lock:
            self._look(tx)
            if self._holding is None:
                self._holding = [self._held[num] for num in sorted(self._held)]
            return list(self._holding)

    def some(self, tx: Tx, nums: Sequence[int]) -> dict[int, StoredJob]:
        """These jobs by number, if they exist; ended jobs are read from the store."""
        with self._lock:
            self._look(tx)
            found = {num: self._jobs[num] for num in nums if num in self._jobs}
        over = jobs.load_many(tx, [num for num in nums if num not in found])
        return found | {one.job.num: one for one in over}

    def one(self, tx: Tx, num: int, *, lock: bool = True) -> StoredJob:
        """One job as the transaction sees it, decoded only if it has changed. Raises NotFound.

        A write transaction of PostgreSQL locks the row, unless `lock` is False.
        """
        version = jobs.version(tx, num, lock=lock)
        with self._lock:
            known = self._jobs.get(num)
        if known is not None and known.version == version:
            return known
        return jobs.load(tx, num, lock=lock)

    def many(self, tx: Tx, nums: Sequence[int], *, lock: bool = True) -> dict[int, StoredJob]:
        """`one` for many jobs at once; those that do not exist are left out."""
        versions = jobs.versions_of(tx, nums, lock=lock)
        with self._lock:
            known = {num: self._jobs[num] for num in versions if num in self._jobs}
        found = {num: one for num, one in known.items() if one.version == versions[num]}
        left = [num for num in versions if num not in found]
        return found | {one.job.num: one for one in jobs.load_many(tx, left)}

    def launched(self, tx: Tx, live: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which of these (job, attempt), all that are live, have been launched; a read only.

        Launched attempts are cached permanently.
        """
        with self._lock:
            known = self._launched.intersection(live)
            known |= outbox.launched(tx, [one for one in live if one not in known])
            self._launched = known
            return known

    def _look(self, tx: Tx) -> None:
        """Update the cache to the transaction's view of the store."""
        if tx.touched.feed is not None:
            raise InvariantBroken("the cache was read in a transaction with uncommitted events")
        feed = events.last_feed(tx)
        if self._feed_seq is None or feed > self._feed_seq:
            self._catch_up(tx, self._feed_seq)
            self._feed_seq = feed

    def _catch_up(self, tx: Tx, since: int | None) -> None:
        """Read the jobs with events after `since`, unless their current versions are cached."""
        if since is None:
            live = jobs.versions(tx, (JobState.QUEUED, *HOLDING))
            told = live.keys() | self._jobs.keys()
        else:
            told = set(events.jobs_behind(tx, since))
            live = jobs.versions(tx, (JobState.QUEUED, *HOLDING), sorted(told))
        for num in told - live.keys():
            self._forget(num)
        stale = [
            num
            for num, version in live.items()
            if num not in self._jobs or self._jobs[num].version != version
        ]
        for one in jobs.load_many(tx, stale):
            self._keep(one)

    def _keep(self, one: StoredJob) -> None:
        num = one.job.num
        self._part(num)
        self._jobs[num] = one
        if one.job.state is JobState.QUEUED:
            self._queued[num], self._queue = one, None
        else:
            self._held[num], self._holding = one, None

    def _forget(self, num: int) -> None:
        self._part(num)
        self._jobs.pop(num, None)
        self._asked.pop(num, None)
        self._projects.forget(num)

    def _part(self, num: int) -> None:
        if self._queued.pop(num, None) is not None:
            self._queue = None
        if self._held.pop(num, None) is not None:
            self._holding = None

    def remember(self, touched: Touched) -> None:
        """Cache the jobs that this process has just stored. A row of another version is read again.

        Threads may report their commits out of order: a commit that the cache already includes is
        ignored, and jobs of a commit after a gap are checked again at the next look.
        """
        with self._lock:
            if self._feed_seq is None or touched.feed is None or touched.feed[1] <= self._feed_seq:
                return
            if touched.feed[0] == self._feed_seq + 1:
                self._feed_seq = touched.feed[1]
            for num, row in touched.rows.items():
                if not isinstance(row, StoredJob):
                    continue
                if row.job.state is JobState.QUEUED or row.job.holds_slots:
                    self._keep(row)
                else:
                    self._forget(num)

    def nodes(self, tx: Tx, real: Sequence[Node]) -> tuple[Node, ...]:
        """The executor's nodes, or the pool file's nodes that emulate them; marks set `closed`."""
        with self._lock:
            stamps = resources.pools.stamps(tx)
            if self._pools[0] != stamps:
                found = tuple(PoolSpec(**one.body) for one in resources.pools.now(tx))
                self._pools = (stamps, found)
            marks = resources.marks(tx)
            key = (stamps, tuple(real), tuple(marks.items()))
            if self._nodes[0] != key:
                self._nodes = (key, _laid_out(self._pools[1], real, marks))
                layout = tuple(replace(node, closed="", closed_slots=()) for node in self._nodes[1])
                if layout != self._layout:
                    self._layout, self._preferences = layout, Preferences(layout)
                    self._asked.clear()
            return self._nodes[1]

    def newly_finished(self, tx: Tx) -> list[Finished]:
        """Return the jobs that ended since the last call, the oldest first."""
        with self._lock:
            found: list[Finished] = []
            if self._learned is None:
                self._learned = (0, 0)
                found += jobs.last_finished(tx, limit=LEARNED_AT_START)
            while True:
                if found:
                    self._learned = (found[-1].ended_at, found[-1].num)
                page = jobs.finished_after(tx, *self._learned, limit=_PAGE)
                if not page:
                    return found
                found += page

    def keep_back(self, num: int, reason: Reason, until: int) -> None:
        """Defer a queued job until a time; `reason` becomes its pending reason."""
        with self._lock:
            self._blocked[num] = (until, reason)

    # -- inside ------------------------------------------------------------------------------------

    def _blocked_now(self, waiting: Sequence[StoredJob], now: int) -> dict[int, Reason]:
        if not self._blocked:
            return {}
        nums = {one.job.num for one in waiting}
        self._blocked = {
            num: (until, reason)
            for num, (until, reason) in self._blocked.items()
            if num in nums and now < until
        }
        return {num: reason for num, (_, reason) in self._blocked.items()}

    def _projects_now(self, tx: Tx) -> dict[str, ProjectSpec]:
        if self._projects.refresh(tx):
            self._asked.clear()
        return self._projects.projects

    def _waiting(
        self,
        stored: StoredJob,
        reservation: StoredReservation | None,
        history: History,
        speeds: Mapping[int, tuple[float, ...]],
    ) -> QueuedJob:
        """Return the request of a queued job: the same object until it changes, for the indexes."""
        known = self._asked.get(stored.job.num)
        if known is None or known.version != stored.version or known.reservation != reservation:
            demand = stored.facts.demand
            job = self._preferences.apply(
                planner_input.waiting(
                    stored,
                    reservation,
                    speeds.get(stored.job.num, ()),
                    self._projects.allowed(stored),
                ),
                demand.preferred,
                demand.patience_s,
                history,
            )
            known = _Asked(stored.version, reservation, job)
            self._asked[stored.job.num] = known
        return known.job


def _held_by_budgets(tx: Tx, waiting: Sequence[StoredJob]) -> dict[int, Reason]:
    """The queued jobs that may not start because a budget is used up, with the reason."""
    held = budgets.holding(tx)
    if not held:
        return {}
    found = {
        one.job.num: budgets.hold_reason(held, one.job.num, one.facts.project, one.facts.owner)
        for one in waiting
    }
    return {num: reason for num, reason in found.items() if reason is not None}


def _facts(tx: Tx, live: Sequence[StoredJob]) -> planner_input.RunningFacts:
    """What the planner must know of live jobs that their rows do not contain."""
    elastic = [one for one in live if one.job.policy.min_nodes is not None and one.job.attempts]
    counts = lineage.step_counts(tx, [one.job.num for one in elastic]) if elastic else []
    return planner_input.RunningFacts(
        lineage.last_saves(tx),
        lineage.restoring(tx),
        supervisors.epochs_now(tx),
        planner_input.measured_speeds(elastic, counts),
    )


def _with_selected_labels(nodes: tuple[Node, ...], shown: Sequence[StoredJob]) -> tuple[Node, ...]:
    """Return the nodes without labels that no job selects by: they would divide kinds of nodes.

    The residency stays: running jobs grow on nodes of their own kind alone.
    """
    if not any(node.labels for node in nodes):
        return nodes
    wanted = {key for one in shown for key, _ in one.facts.demand.selector} | {LABEL}
    return with_labels(nodes, wanted)


def _laid_out(
    pools: Sequence[PoolSpec], real: Sequence[Node], marks: Mapping[str, resources.NodeMark]
) -> tuple[Node, ...]:
    nodes = tuple(real)
    here = [node for node in real if node.pool == LOCAL]
    if pools and here:
        machine = HostDefaults(here[0].address, here[0].num_cpus, here[0].memory_bytes)
        elsewhere = (node for node in real if node.pool != LOCAL)
        declared = [node for pool in pools for node in pool.to_core(machine)]
        nodes = (*shared_out(declared, here), *elsewhere)
    return tuple(
        replace(node, closed=f"{marks[node.id].state}: {marks[node.id].reason}")
        if node.id in marks
        else node
        for node in nodes
    )
