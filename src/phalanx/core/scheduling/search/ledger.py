"""The ledger of a pass: slots used by each project, and the order of queued jobs that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.scheduling.index.cluster_index import ClusterIndex, EquivalenceClass
from phalanx.core.scheduling.model.entitlement import (
    EntitlementTier,
    ProjectShare,
    QuotaLimit,
)
from phalanx.core.scheduling.model.planning_input import US, PlannerConfig, QueuedJob
from phalanx.core.scheduling.model.urgency import aged, base_urgency, is_guarded

_JUST_BEFORE = 1.0 + 1e-9

FairShareKey = tuple[int, tuple[int, ...]]
Rank = tuple[int, tuple[int, ...], int, int, float, int, int]


@dataclass(slots=True)
class Ledger:
    """Used slots, jobs that hold them, and shares of the projects during one pass.

    A slot or job counts for its project and for every project above it. `version` changes with every use,
    so that a search can tell when what it has derived from `used` is outdated.
    """

    cluster: ClusterIndex  # nodes, queue and running jobs
    now: int  # time of the pass, microseconds UTC
    used: dict[str, int]  # slots by project
    num_jobs: dict[str, int] = field(default_factory=dict)  # jobs that hold slots, by project
    shares: dict[str, ProjectShare] = field(default_factory=dict)  # by project
    version: int = 0  # number of changes of `used`
    config: PlannerConfig = field(init=False)  # that of `cluster`
    _small: float = 0.0  # slots beyond which a queued job is large; 0: not yet computed
    _first_large_jobs: dict[int, float] | None = None  # highest urgency of large jobs, by priority

    def __post_init__(self) -> None:
        self.config = self.cluster.config

    def tier(self, job: QueuedJob) -> EntitlementTier:
        """Return the entitlement tier of a queued job at this point of the pass."""
        urgent = self.config.urgent_priority
        if urgent is not None and job.priority >= urgent:
            return EntitlementTier.URGENT
        share = self.shares.get(job.project)
        if share is None:
            return EntitlementTier.SHARED
        return share.tier(self.used, job.num_slots)

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
        base = max([self._base(one) for one in eq_class.line])
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

    def rank(self, eq_class: EquivalenceClass, position: int) -> Rank:
        """Return the sort key of the job at `position` of a class; lower goes first."""
        since, num = eq_class.jobs[position]
        job = eq_class.sample
        tier, level = self.fair_share_key(job)
        if self.config.by_arrival or is_guarded(since, self.now, self.config):
            return (tier, level, -job.priority, 0, 0.0, since, num)
        return (tier, level, -job.priority, 1, -self._turn(eq_class, since), since, num)

    def over_limit(self, job: QueuedJob) -> QuotaLimit | None:
        """Return the limit that a start of this job would exceed at this point of the pass."""
        share = self.shares.get(job.project)
        if share is None:
            return None
        return share.over_limit(self.used, self.num_jobs, job.num_slots)

    def use(self, project: str, slots: int, num_jobs: int) -> None:
        """Count slots and jobs for a project and those above it; negative slots take slots back."""
        share = self.shares.get(project)
        names = [project] if share is None else [one.name for one in share.lineage]
        for name in names:
            self.used[name] = self.used.get(name, 0) + slots
            self.num_jobs[name] = self.num_jobs.get(name, 0) + num_jobs
        self.version += 1
