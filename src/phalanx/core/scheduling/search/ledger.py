"""The ledger of a pass: slots used by each project, and the order of queued jobs that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import ClusterIndex, EquivalenceClass
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.model.entitlement import (
    EntitlementTier,
    ProjectShare,
    QuotaLimit,
)
from phalanx.core.scheduling.model.planning_input import (
    US,
    PlannerConfig,
    QueuedJob,
    RunningJob,
)
from phalanx.core.scheduling.model.urgency import (
    aged,
    base_urgency,
    expected_s,
    is_guarded,
)
from phalanx.core.scheduling.search.narrow_ledger import (
    JOBS,
    SLOTS,
    NarrowLedger,
    QuotaReservation,
)

_JUST_BEFORE = 1.0 + 1e-9

# Of one tier, share and priority, guarded jobs go first, then overdue gangs, then the others by urgency.
GUARDED, OVERDUE, BY_URGENCY = range(3)

FairShareKey = tuple[int, tuple[int, ...]]
Rank = tuple[int, tuple[int, ...], int, int, float, int, int]


@dataclass(frozen=True, slots=True)
class QuotaClaim:
    """A job at a limit: by limit, the slots and jobs that must leave before it may start.

    `without` are slot types that the job does not use, because it would exceed a limit there too.
    """

    excess: dict[str, tuple[int, int]]
    without: tuple[str, ...] = ()

    def is_covered(self, freed: Mapping[str, Sequence[int]]) -> bool:
        """Return whether so many slots and jobs, by project, suffice."""
        return all(
            got[SLOTS] >= slots and got[JOBS] >= jobs
            for name, (slots, jobs) in self.excess.items()
            for got in (freed.get(name, (0, 0)),)
        )

    def concerns(self, charges: Sequence[tuple[str, int]]) -> bool:
        """Return whether slots that count so count against one of the limits."""
        return any(name in self.excess for name, _ in charges)


@dataclass(slots=True)
class Ledger:
    """Used slots, jobs that hold them, and shares of the projects during one pass.

    A slot or job counts for its project and for every project above it. `version` changes with every use,
    so that a search can tell when what it has derived from `used` is outdated. Jobs that are leaving count
    until they are gone, and reserved slots as soon as their owner may start: a limit holds both before and
    after they leave.
    """

    cluster: ClusterIndex  # nodes, queue and running jobs
    now: int  # time of the pass, microseconds UTC
    used: dict[str, int]  # slots by project
    num_jobs: dict[str, int] = field(default_factory=dict)  # jobs that hold slots, by project
    shares: dict[str, ProjectShare] = field(default_factory=dict)  # by project
    narrow: NarrowLedger | None = None  # limits of slot types and users; None: there are none
    version: int = 0  # number of changes of `used`
    #: By project: slots and jobs of victims of earlier passes.
    stopping: dict[str, list[int]] = field(default_factory=dict)
    #: The same for victims of this pass.
    leaving: dict[str, list[int]] = field(default_factory=dict)
    #: The same for reservations.
    promised: dict[str, list[int]] = field(default_factory=dict)
    #: By project: the room below its limit that is kept for a blocked job.
    kept: dict[str, QuotaReservation] = field(default_factory=dict)
    config: PlannerConfig = field(init=False)  # that of `cluster`
    _small: float = 0.0  # slots beyond which a queued job is large; 0: not yet computed
    _first_large_jobs: dict[int, float] | None = None  # highest urgency of large jobs, by priority
    _line_bases: dict[int, float] = field(default_factory=dict)  # urgency before waits, by line

    def __post_init__(self) -> None:
        self.config = self.cluster.config

    def tier(self, job: QueuedJob) -> EntitlementTier:
        """Return the entitlement tier of a queued job at this point of the pass.

        A job at a limit asks for what the limit leaves: smaller jobs of its project have no better tier.
        """
        urgent = self.config.urgent_priority
        if urgent is not None and job.priority >= urgent:
            return EntitlementTier.URGENT
        share = self.shares.get(job.project)
        if share is None:
            return EntitlementTier.SHARED
        wanted, left = job.num_slots, share.left(self.used)
        if left is not None and wanted > left and job.least_slots <= share.most_slots:
            wanted = left
        return share.tier(self.used, wanted)

    def urgency(self, eq_class: EquivalenceClass, since: int) -> float:
        """Return the learned urgency of a job of this class, raised by its wait."""
        return aged(self._base(eq_class), (self.now - since) / US, self.config)

    def _base(self, eq_class: EquivalenceClass) -> float:
        """Return the urgency of a class before waits."""
        history = self.cluster.history
        if eq_class.base_seen != history.num_observed:
            eq_class.base_seen, version = history.num_observed, history.version(eq_class.kind)
            if eq_class.base_version != version:
                eq_class.base_version = version
                eq_class.base = base_urgency(
                    eq_class.sample, eq_class.kind, eq_class.attained_bin, history, self.config
                )
        return eq_class.base

    def _in_line(self, eq_class: EquivalenceClass, since: int) -> float:
        """Return the urgency that orders a job of this class among all jobs.

        Size alone must not decide: of jobs that differ in nothing else the first submitted goes first, so
        all of them have the urgency of the most urgent size.
        """
        if len(eq_class.line) == 1:
            return self.urgency(eq_class, since)
        # Estimates do not change within a pass: the base of a line is computed once.
        base = self._line_bases.get(id(eq_class.line))
        if base is None:
            base = max([self._base(one) for one in eq_class.line])
            self._line_bases[id(eq_class.line)] = base
        return aged(base, (self.now - since) / US, self.config)

    def _turn(self, eq_class: EquivalenceClass, since: int) -> float:
        """Return the urgency that orders a job of this class.

        A large job that was preempted goes before the large jobs of its priority that have not run: it
        made room for small jobs, and no other large job may profit from that.
        """
        urgency = self._in_line(eq_class, since)
        if not eq_class.attained_bin or eq_class.sample.num_slots <= self.largest_small():
            return urgency
        return max(urgency, self._first_large(eq_class.sample.priority) * _JUST_BEFORE)

    def _first_large(self, priority: int) -> float:
        """Return the highest urgency of queued large jobs of this priority that have not run, else 0."""
        if self._first_large_jobs is None:
            self._first_large_jobs = {}
            for eq_class in self.cluster.classes.values():
                if not eq_class.attained_bin and eq_class.sample.num_slots > self.largest_small():
                    urgent, known = eq_class.sample.priority, self._first_large_jobs
                    found = self.urgency(eq_class, eq_class.jobs[0][0])
                    known[urgent] = max(found, known.get(urgent, 0.0))
        return self._first_large_jobs.get(priority, 0.0)

    def largest_small(self) -> float:
        """Return the slots beyond which a queued job counts as large, by the largest pool."""
        if self._small == 0.0:
            pool = max(
                (group.num_nodes * group.size for group in self.cluster.index.groups), default=0
            )
            self._small = max(self.config.large_job_slots, self.config.large_job_fraction * pool)
        return self._small

    def fair_share_key(self, job: QueuedJob) -> FairShareKey:
        """Return what changes of a rank within a pass: the tier, and the use above guarantees."""
        tier = self.tier(job)
        share = self.shares.get(job.project)
        if share is None or tier is EntitlementTier.GUARANTEED:
            return (tier, ())
        return (tier, share.over_guarantee(self.used))

    def rank(self, eq_class: EquivalenceClass, position: int, overdue: bool = True) -> Rank:
        """Return the sort key of the job at `position` of a class; lower goes first.

        Without `overdue` a gang gets the rank that it has by its urgency.
        """
        since, num = eq_class.jobs[position]
        job = eq_class.sample
        tier, level = self.fair_share_key(job)
        if self.config.by_arrival or is_guarded(since, self.now, self.config):
            return (tier, level, -job.priority, GUARDED, 0.0, since, num)
        if overdue and self.is_overdue(eq_class, num):
            return (tier, level, -job.priority, OVERDUE, 0.0, since, num)
        return (tier, level, -job.priority, BY_URGENCY, -self._turn(eq_class, since), since, num)

    def is_overdue(self, eq_class: EquivalenceClass, num: int) -> bool:
        """Return whether a gang has waited long enough to go before more urgent jobs of its priority.

        Waits before earlier starts do not count: a gang that was preempted is not overdue at once.
        """
        if not 1 < eq_class.sample.num_slots <= self.largest_small() or not self.config.num_overdue:
            return False
        waited_s = (self.now - self.cluster.waiting[num].since) / US
        if waited_s < self.config.overdue_after_s:
            return False
        return waited_s >= self.overdue_after_s(eq_class)

    def overdue_after_s(self, eq_class: EquivalenceClass) -> float:
        """Return the wait after which a gang of this class is overdue, seconds."""
        self._base(eq_class)
        if eq_class.overdue_version != eq_class.base_version:
            eq_class.overdue_version = eq_class.base_version
            lasts_s = expected_s(eq_class.sample, eq_class.kind, self.cluster.history, 0.5)
            least_s, part = self.config.overdue_after_s, self.config.overdue_part
            eq_class.overdue_s = max(least_s, part * (lasts_s or 0.0))
        return eq_class.overdue_s

    def lineage(self, project: str) -> list[str]:
        """Return the names of a project and those above it."""
        share = self.shares.get(project)
        return [project] if share is None else [one.name for one in share.lineage]

    def over_limit(self, job: QueuedJob, wanted: int | None = None) -> QuotaLimit | None:
        """Return the limit that a start of this job would exceed at this point of the pass.

        An elastic job asks for its least size unless `wanted` names the slots.
        """
        share = self.shares.get(job.project)
        slots = job.least_slots if wanted is None else wanted
        found = None
        if share is not None:
            found = share.over_limit(self._counted(SLOTS), self._counted(JOBS), slots)
            found = self._kept_from(share, job, slots) if found is None else found
        if found is None and self.narrow is not None:
            found = self.narrow.over_limit(job, slots)
        return found

    def left(self, job: QueuedJob | RunningJob) -> int:
        """Return the slots that the limits of its project still allow."""
        share = self.shares.get(job.project)
        left = None if share is None else share.left(self._counted(SLOTS))
        if share is None or left is None:
            left = 1 << 30
        elif isinstance(job, RunningJob):
            extra = [self.kept[one.name].extra for one in share.lineage if one.name in self.kept]
            left = max(0, min([left, *extra]))
        return left if self.narrow is None else self.narrow.left(job, left)

    def _counted(self, unit: int) -> Mapping[str, int]:
        """Return what counts against limits: the larger of the use now and that after jobs have left."""
        used = self.used if unit == SLOTS else self.num_jobs
        if not (self.stopping or self.leaving or self.promised):
            return used
        found = dict(used)
        for name in {*self.stopping, *self.leaving, *self.promised}:
            before = self.stopping.get(name, (0, 0))[unit]
            leaving = self.leaving.get(name, (0, 0))[unit]
            promised = self.promised.get(name, (0, 0))[unit]
            found[name] = used.get(name, 0) + max(leaving - promised, -before)
        return found

    def _kept_from(self, share: ProjectShare, job: QueuedJob, slots: int) -> QuotaLimit | None:
        """Return the limit below which the room that this job would use is kept for another one."""
        for one in share.lineage if self.kept else ():
            kept = self.kept.get(one.name)
            if kept is not None and kept.is_closed_to(job, slots, self.cluster, self.now):
                used = self._counted(SLOTS).get(one.name, 0)
                return QuotaLimit(one.name, "slots", used, one.max_slots or 0, kept.job)
        return None

    def claim(self, job: QueuedJob) -> QuotaClaim | None:
        """Return what must leave for this job beside what leaves already; None where no limit binds."""
        share = self.shares.get(job.project)
        excess: dict[str, tuple[int, int]] = {}
        for one in () if share is None else share.lineage:
            gone = self.stopping.get(one.name, (0, 0))
            slots = self.used.get(one.name, 0) - gone[SLOTS] + job.least_slots
            jobs = self.num_jobs.get(one.name, 0) - gone[JOBS] + 1
            slots = 0 if one.max_slots is None else max(0, slots - one.max_slots)
            jobs = 0 if one.max_running is None else max(0, jobs - one.max_running)
            if slots or jobs:
                excess[one.name] = (slots, jobs)
        without = () if self.narrow is None else self.narrow.claim(job, excess)
        return QuotaClaim(excess, without) if excess else None

    def charges(
        self, held: RunningJob, slots: int, shares: Sequence[Allocation] | None = None
    ) -> list[tuple[str, int]]:
        """Return the projects and narrow limits that slots of a running job count for, with the slots.

        `shares` are these slots; None: all that it holds.
        """
        found = [(name, slots) for name in self.lineage(held.project)]
        narrow = self.narrow
        if narrow is not None:
            types = narrow.types_in(held.placement) if shares is None else narrow.types_of(shares)
            found += narrow.charges(held, slots, types)
        return found

    def leave(
        self,
        held: RunningJob,
        slots: int,
        num_jobs: int,
        shares: Sequence[Allocation] | None = None,
    ) -> None:
        """Count slots of a running job as those of a victim of this pass; `shares` as in `charges`."""
        self.use(held.project, -slots, -num_jobs)
        self._note(self.leaving, held.project, slots, num_jobs)
        narrow = self.narrow
        if narrow is not None:
            types = narrow.types_in(held.placement) if shares is None else narrow.types_of(shares)
            narrow.use(held, -slots, -num_jobs, types)
            narrow.note(narrow.leaving, held, slots, num_jobs, types)

    def promise(self, job: QueuedJob, nodes: Sequence[str], sign: int = 1) -> None:
        """Count the slots of a reservation of these nodes, or with `sign` -1 no longer."""
        widths = job.widths(len(nodes))
        slots = sum(widths)
        self.use(job.project, sign * slots, sign)
        self._note(self.promised, job.project, sign * slots, sign)
        narrow = self.narrow
        if narrow is not None:
            types = narrow.types_on(list(zip(nodes, widths, strict=True)))
            narrow.use(job, sign * slots, sign, types)
            narrow.note(narrow.promised, job, sign * slots, sign, types)

    def start(self, job: QueuedJob, allocations: Sequence[Allocation]) -> None:
        """Count a job that starts on these slots."""
        slots = sum(one.mask.bit_count() for one in allocations)
        self.use(job.project, slots, 1)
        if self.narrow is not None:
            self.narrow.use(job, slots, 1, self.narrow.types_of(allocations))

    def grow(self, held: RunningJob, allocations: Sequence[Allocation]) -> None:
        """Count further slots of a running job."""
        slots = sum(one.mask.bit_count() for one in allocations)
        self.use(held.project, slots, 0)
        if self.narrow is not None:
            self.narrow.use(held, slots, 0, self.narrow.types_of(allocations))

    def note_stopping(self, held: RunningJob) -> None:
        """Count a running job as a victim of an earlier pass."""
        self._note(self.stopping, held.project, held.num_slots, 1)

    def _note(self, where: dict[str, list[int]], project: str, slots: int, num_jobs: int) -> None:
        if not self.shares:
            return
        for name in self.lineage(project):
            found = where.setdefault(name, [0, 0])
            found[SLOTS] += slots
            found[JOBS] += num_jobs

    def use(self, project: str, slots: int, num_jobs: int) -> None:
        """Count slots and jobs for a project and those above it; negative slots take slots back."""
        for name in self.lineage(project):
            self.used[name] = self.used.get(name, 0) + slots
            self.num_jobs[name] = self.num_jobs.get(name, 0) + num_jobs
            if name in self.kept and slots > 0:
                self.kept[name].extra -= slots
        self.version += 1
