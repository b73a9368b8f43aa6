"""What counts against the limits of slot types and users during one pass.

It is kept beside the ledger of the projects only where there are such limits. A gang that names no slot
type is kept from the types on which all of it would exceed a limit, and may start on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.gang.placement import Placement
from phalanx.core.scheduling.index.cluster_index import ClusterIndex
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.index.topology import hosts, request_of
from phalanx.core.scheduling.model.entitlement import QuotaLimit
from phalanx.core.scheduling.model.planning_input import US, QueuedJob, RunningJob
from phalanx.core.scheduling.model.quotas import NarrowLimit, NarrowLimits, slots_by_type
from phalanx.core.scheduling.model.urgency import expected_s, kind_key

SLOTS, JOBS = range(2)


@dataclass(slots=True)
class QuotaReservation:
    """Room below a limit that is kept for one job: other jobs end by `ready_at` or fit `extra` slots."""

    job: int
    ready_at: int
    extra: int

    def is_closed_to(self, job: QueuedJob, slots: int, cluster: ClusterIndex, now: int) -> bool:
        """Return whether this job would use the room that is kept for another one."""
        if self.job == job.num or slots <= self.extra:
            return False
        lasts_s = expected_s(job, kind_key(job), cluster.history)
        return lasts_s is None or now + lasts_s * US > self.ready_at


@dataclass(slots=True)
class NarrowLedger:
    """Slots and running jobs by narrow limit; what leaves and what is promised as in the `Ledger`."""

    limits: NarrowLimits  # of slot types and users
    cluster: ClusterIndex  # nodes, queue and running jobs
    now: int  # time of the pass, microseconds UTC
    used: dict[str, int] = field(default_factory=dict)  # slots by limit
    num_jobs: dict[str, int] = field(default_factory=dict)  # jobs that hold slots, by limit
    stopping: dict[str, list[int]] = field(default_factory=dict)  # of victims of earlier passes
    leaving: dict[str, list[int]] = field(default_factory=dict)  # of victims of this pass
    promised: dict[str, list[int]] = field(default_factory=dict)  # of reservations
    kept: dict[str, QuotaReservation] = field(default_factory=dict)  # room kept for blocked jobs

    def count_held(self) -> None:
        """Count the running jobs."""
        for held in self.cluster.held.values():
            types = self.types_in(held.placement)
            self.use(held, held.num_slots, 1, types)
            if held.stopping:
                self.note(self.stopping, held, held.num_slots, 1, types)

    # -- slot types --------------------------------------------------------------------------------

    def types_in(self, placement: Placement) -> dict[str, int]:
        """Return the slots of a placement by slot type."""
        return self.types_on([(share.node, len(share.slots)) for share in placement.shares])

    def types_on(self, parts: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Return slots on named nodes by slot type; those on removed nodes have none."""
        index, found = self.cluster.index, dict[str, int]()
        for name, slots in parts:
            node = index.num_of.get(name)
            if node is not None:
                slot_type = index.nodes[node].slot_type
                found[slot_type] = found.get(slot_type, 0) + slots
        return found

    def types_of(self, allocations: Sequence[Allocation]) -> dict[str, int]:
        """Return the slots of allocations by slot type."""
        nodes = self.cluster.index.nodes
        return self.types_on([(nodes[one.node].id, one.mask.bit_count()) for one in allocations])

    def usable_types(self, job: QueuedJob) -> set[str]:
        """Return the types of the slots that could host a part of a job."""
        request = request_of(job)
        return {
            group.key.slot_type
            for group in self.cluster.groups_for(request)
            for shape in (request.shape, *request.roles)
            if hosts(group, request, shape)
        }

    def closed_types(self, job: QueuedJob, slots: int) -> tuple[str, ...]:
        """Return the slot types on which the parts of a job that name none would exceed a limit."""
        pinned, loose = slots_by_type(job, slots)
        found = {
            one.slot_type
            for one in (self.limits.on(job) if loose else ())
            if one.slot_type
            and one.max_slots is not None
            and self._count(one.key, SLOTS) + pinned.get(one.slot_type, 0) + loose > one.max_slots
        }
        return tuple(sorted(found))

    # -- counting ----------------------------------------------------------------------------------

    def charges(
        self, job: QueuedJob | RunningJob, slots: int, types: Mapping[str, int]
    ) -> Iterator[tuple[str, int]]:
        """The limits that slots of a job count against, with the slots that count."""
        for one in self.limits.on(job):
            if not one.slot_type:
                yield one.key, slots
            elif one.slot_type in types:
                yield one.key, types[one.slot_type]

    def use(
        self, job: QueuedJob | RunningJob, slots: int, num_jobs: int, types: Mapping[str, int]
    ) -> None:
        """Count slots and jobs; with a negative number of jobs or slots take them back."""
        sign = -1 if slots < 0 else 1
        for key, num in self.charges(job, abs(slots), types):
            self.used[key] = self.used.get(key, 0) + sign * num
            self.num_jobs[key] = self.num_jobs.get(key, 0) + num_jobs
            if key in self.kept and sign > 0:
                self.kept[key].extra -= num

    def note(
        self,
        where: dict[str, list[int]],
        job: QueuedJob | RunningJob,
        slots: int,
        num_jobs: int,
        types: Mapping[str, int],
    ) -> None:
        """Note slots and jobs that leave or are promised."""
        sign = -1 if slots < 0 else 1
        for key, num in self.charges(job, abs(slots), types):
            found = where.setdefault(key, [0, 0])
            found[SLOTS] += sign * num
            found[JOBS] += num_jobs

    def _count(self, key: str, unit: int) -> int:
        """Return what counts against a limit: the larger of the use now and that after jobs have left."""
        used = self.used if unit == SLOTS else self.num_jobs
        before = self.stopping.get(key, (0, 0))[unit]
        leaving = self.leaving.get(key, (0, 0))[unit]
        promised = self.promised.get(key, (0, 0))[unit]
        return used.get(key, 0) + max(leaving - promised, -before)

    # -- limits ------------------------------------------------------------------------------------

    def over_limit(self, job: QueuedJob, slots: int) -> QuotaLimit | None:
        """Return the limit that a start of this job with so many slots would exceed."""
        for one in self.limits.on(job):
            if one.slot_type:
                continue
            holds, running = self._count(one.key, SLOTS), self._count(one.key, JOBS)
            if one.max_slots is not None and holds + slots > one.max_slots:
                return one.exceeded(holds, one.max_slots)
            if one.max_running is not None and running >= one.max_running:
                return one.exceeded(running, one.max_running, "jobs")
            if self._is_kept_from(one, job, slots):
                return self._kept_limit(one, holds)
        return self._over_type(job, slots)

    def _over_type(self, job: QueuedJob, slots: int) -> QuotaLimit | None:
        """Return the limit that keeps a job from a type that it names, or from all that it could use."""
        pinned, loose = slots_by_type(job, slots)
        full: list[QuotaLimit] = []
        for one in self.limits.on(job):
            named = pinned.get(one.slot_type, 0)
            if one.max_slots is None or not one.slot_type or not (named or loose):
                continue
            holds = self._count(one.key, SLOTS)
            if named and holds + named > one.max_slots:
                return one.exceeded(holds, one.max_slots)
            if named and not loose and self._is_kept_from(one, job, named):
                return self._kept_limit(one, holds)
            if loose and holds + named + loose > one.max_slots:
                full.append(one.exceeded(holds, one.max_slots))
        if not full or not self.usable_types(job) <= {one.slot_type for one in full}:
            return None
        return max(full, key=lambda one: one.most - one.holds)

    def _is_kept_from(self, one: NarrowLimit, job: QueuedJob, slots: int) -> bool:
        kept = self.kept.get(one.key)
        return kept is not None and kept.is_closed_to(job, slots, self.cluster, self.now)

    def _kept_limit(self, one: NarrowLimit, holds: int) -> QuotaLimit:
        return replace(one.exceeded(holds, one.max_slots or 0), kept_for=self.kept[one.key].job)

    def left(self, job: QueuedJob | RunningJob, left: int) -> int:
        """Return the slots that the limits still allow, at most `left`.

        Limits of slot types count for a running job alone: a queued one may use another type.
        """
        grows = isinstance(job, RunningJob)
        types = self.types_in(job.placement) if isinstance(job, RunningJob) else {}
        for one in self.limits.on(job):
            if one.max_slots is None or (one.slot_type and one.slot_type not in types):
                continue
            left = min(left, one.max_slots - self._count(one.key, SLOTS))
            if grows and one.key in self.kept:
                left = min(left, self.kept[one.key].extra)
        return max(left, 0)

    def claim(self, job: QueuedJob, excess: dict[str, tuple[int, int]]) -> tuple[str, ...]:
        """Add what must leave for a job to `excess`; return the slot types that it does not use.

        A job that could use several types, all of them at a limit, gets the one with the most room.
        """
        over = self._over_type(job, job.least_slots)
        chosen = "" if over is None or over.kept_for is not None else over.slot_type
        for one in self.limits.on(job):
            gone, wanted = self.stopping.get(one.key, (0, 0)), self.counted_slots(one, job, chosen)
            slots = self.used.get(one.key, 0) - gone[SLOTS] + wanted
            jobs = self.num_jobs.get(one.key, 0) - gone[JOBS] + 1
            slots = 0 if one.max_slots is None or not wanted else max(0, slots - one.max_slots)
            jobs = 0 if one.max_running is None else max(0, jobs - one.max_running)
            if slots or jobs:
                excess[one.key] = (slots, jobs)
        closed = self.closed_types(job, job.least_slots)
        return tuple(one for one in closed if one != chosen)

    def counted_slots(self, one: NarrowLimit, job: QueuedJob, slot_type: str) -> int:
        """Return the slots of a job that count against a limit, if it uses `slot_type` where it may."""
        if not one.slot_type:
            return job.least_slots
        pinned, loose = slots_by_type(job, job.least_slots)
        return pinned.get(one.slot_type, 0) + (loose if one.slot_type == slot_type else 0)

    def room_below(self, job: QueuedJob) -> dict[str, int]:
        """Return the most slots that others may hold beside a blocked job, by limit without a kept room.

        A limit of a slot type counts where the job can use this type alone.
        """
        usable = self.usable_types(job)
        alone = next(iter(usable)) if len(usable) == 1 else ""
        return {
            one.key: one.max_slots - wanted
            for one in self.limits.on(job)
            if one.max_slots is not None and one.key not in self.kept
            if (wanted := self.counted_slots(one, job, alone))
        }

    def exceeds(self, job: QueuedJob, types: Mapping[str, int]) -> bool:
        """Return whether a start of a job on slots of these types would exceed a limit of one."""
        return any(
            self._count(one.key, SLOTS) + types.get(one.slot_type, 0) > one.max_slots
            for one in self.limits.on(job)
            if one.slot_type in types and one.max_slots is not None
        )
