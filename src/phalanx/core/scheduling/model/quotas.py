"""Limits beside those of whole projects: on slots of one type, and on what one user holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from phalanx.core.gang.placement import RoleShape
from phalanx.core.scheduling.model.entitlement import QuotaLimit, lineage
from phalanx.core.scheduling.model.planning_input import Project, QueuedJob, RunningJob, UserQuota


@dataclass(frozen=True, slots=True)
class NarrowLimit:
    """A limit on a part of what a project or the platform holds: of one slot type, or of one user.

    `key` is the name under which a ledger counts what the limit covers.
    """

    key: str
    project: str  # empty: the whole platform
    user: str = ""  # empty: all users
    slot_type: str = ""  # empty: slots of every type
    max_slots: int | None = None
    max_running: int | None = None

    def exceeded(self, holds: int, most: int, unit: str = "slots") -> QuotaLimit:
        """Return the limit as one that a request would exceed."""
        return QuotaLimit(
            self.project,
            "jobs" if unit == "jobs" else "slots",
            holds,
            most,
            user=self.user,
            slot_type=self.slot_type,
        )


@dataclass(frozen=True, slots=True)
class RaisedLimit:
    """A limit with other numbers, as a change of the user quotas or the project that it comes from."""

    limit: NarrowLimit
    max_slots: int | None = None
    max_running: int | None = None

    def of_project(self, project: Project) -> Project:
        """Return the project with the limit raised."""
        if self.limit.user:
            return replace(project, users=self.of_users(project.users))
        types = dict(project.max_slots_by_type)
        types[self.limit.slot_type] = self.max_slots or 0
        return replace(project, max_slots_by_type=tuple(types.items()))

    def of_users(self, users: tuple[UserQuota, ...]) -> tuple[UserQuota, ...]:
        """Return the quotas with one of the user of the limit that raises it."""
        name = self.limit.user
        own = next((one for one in users if one.user == name), UserQuota(name))
        if self.limit.slot_type:
            types = {**dict(own.max_slots_by_type), self.limit.slot_type: self.max_slots or 0}
            own = replace(own, max_slots_by_type=tuple(types.items()))
        else:
            slots = own.max_slots if self.max_slots is None else self.max_slots
            running = own.max_running if self.max_running is None else self.max_running
            own = replace(own, max_slots=slots, max_running=running)
        return (*(one for one in users if one.user != name), own)


class NarrowLimits:
    """All limits of slot types and users, by the project and the user of a job."""

    def __init__(self, projects: Mapping[str, Project], users: Iterable[UserQuota]) -> None:
        self._projects = projects
        self._users = {one.user: one for one in users}
        self._known: dict[tuple[str, str], tuple[NarrowLimit, ...]] = {}

    @classmethod
    def of(
        cls, projects: Mapping[str, Project], users: Collection[UserQuota]
    ) -> NarrowLimits | None:
        """Return the limits; None where there are none, which is what most clusters have."""
        if users or any(one.users or one.max_slots_by_type for one in projects.values()):
            return cls(projects, users)
        return None

    def on(self, job: QueuedJob | RunningJob) -> tuple[NarrowLimit, ...]:
        """Return the limits that a job counts against: its project, those above, then the platform."""
        key = (job.project, job.user)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(self._collected(*key))
        return found

    def _collected(self, project: str, user: str) -> Iterable[NarrowLimit]:
        for one in lineage(self._projects, project):
            yield from _by_type(one.name, "", one.max_slots_by_type)
            if user:
                yield from _of_user(one.name, user, {quota.user: quota for quota in one.users})
        if user:
            yield from _of_user("", user, self._users)

    def never_allowed(self, job: QueuedJob, slot_types: Collection[str]) -> list[QuotaLimit]:
        """Return the limits that a job exceeds by itself. `slot_types` are those that it could use."""
        pinned, loose = slots_by_type(job, job.least_slots)
        found = []
        for one in self.on(job):
            if one.max_slots is None:
                continue
            wanted = job.least_slots
            if one.slot_type:
                only = loose if set(slot_types) == {one.slot_type} else 0
                wanted = pinned.get(one.slot_type, 0) + only
            if wanted > one.max_slots:
                found.append(one.exceeded(0, one.max_slots))
        return found


def _by_type(project: str, user: str, limits: Iterable[tuple[str, int]]) -> Iterable[NarrowLimit]:
    for slot_type, most in limits:
        key = "\n".join((project, user, slot_type))
        yield NarrowLimit(key, project, user, slot_type, most)


def quota_of(user: str, quotas: Mapping[str, UserQuota]) -> UserQuota:
    """Return the limits of one user: its own, and those of every user that its entry leaves out."""
    own, every = quotas.get(user, UserQuota()), quotas.get("", UserQuota())
    return UserQuota(
        user,
        every.max_slots if own.max_slots is None else own.max_slots,
        every.max_running if own.max_running is None else own.max_running,
        tuple({**dict(every.max_slots_by_type), **dict(own.max_slots_by_type)}.items()),
        every.max_submitted if own.max_submitted is None else own.max_submitted,
    )


def _of_user(project: str, user: str, quotas: Mapping[str, UserQuota]) -> Iterable[NarrowLimit]:
    own = quota_of(user, quotas)
    if own.max_slots is not None or own.max_running is not None:
        key = "\n".join((project, user, ""))
        yield NarrowLimit(key, project, user, "", own.max_slots, own.max_running)
    yield from _by_type(project, user, own.max_slots_by_type)


def slots_by_type(job: QueuedJob, wanted: int) -> tuple[dict[str, int], int]:
    """Return the slots that a job of `wanted` slots needs of a type that it names, and of any type."""
    pinned: dict[str, int] = {}
    loose = 0
    first = wanted - sum(role.num_slots for role in job.roles)
    parts = [(job.slot_type, first)]
    parts += [
        (role.slot_type if isinstance(role, RoleShape) else "", role.num_slots)
        for role in job.roles
    ]
    for slot_type, slots in parts:
        if slot_type:
            pinned[slot_type] = pinned.get(slot_type, 0) + slots
        else:
            loose += slots
    return pinned, loose
