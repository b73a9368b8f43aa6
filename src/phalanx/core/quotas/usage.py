"""What counts against each quota: of projects, of slot types, and of users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phalanx.core.scheduling import Project
from phalanx.core.scheduling.model.entitlement import lineage
from phalanx.core.scheduling.model.planning_input import UserQuota
from phalanx.core.scheduling.model.quotas import quota_of


class QuotaUnit(StrEnum):
    """What a quota counts."""

    SLOTS = "slots"
    RUNNING = "running"  # jobs that hold slots
    SUBMITTED = "submitted"  # jobs that have not ended


@dataclass(frozen=True, slots=True, order=True)
class QuotaKey:
    """One quota: of a project or the whole platform, of all users or one, of all slot types or one."""

    project: str  # empty: the whole platform
    user: str  # empty: all users
    slot_type: str  # empty: all slot types
    unit: QuotaUnit

    @property
    def label(self) -> str:
        """The quota for users, such as `H100 slots of user ada in project vision`."""
        kind = {QuotaUnit.RUNNING: "running jobs", QuotaUnit.SUBMITTED: "submitted jobs"}
        what = kind.get(self.unit, "slots")
        what = f"{self.slot_type} {what}" if self.slot_type else what
        project = f"project {self.project}" if self.project else ""
        user = f"user {self.user}" if self.user else ""
        return f"{what} of {' in '.join(one for one in (user, project) if one)}"


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A quota with what counts against it now."""

    key: QuotaKey
    used: int
    most: int

    @property
    def percent(self) -> int:
        """The share that is used, in whole percent."""
        return 100 if self.most == 0 else 100 * self.used // self.most


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """The slots that one job holds, by slot type."""

    project: str
    user: str
    slots: Mapping[str, int]


@dataclass(slots=True)
class _Counts:
    """What projects and users hold, by quota; everything counts for projects above and the platform."""

    projects: Mapping[str, Project]
    found: dict[QuotaKey, int] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)  # by project; empty: the platform

    def add(self, project: str, user: str, amounts: Iterable[tuple[str, QuotaUnit, int]]) -> None:
        """Count amounts of (slot type, unit) for a job's project, those above it, and its user."""
        places = [one.name for one in lineage(self.projects, project)] or [project]
        for place in (*places, ""):
            self.users.setdefault(place, set()).add(user)
            for slot_type, unit, amount in amounts:
                for name in {user, ""}:
                    key = QuotaKey(place, name, slot_type, unit)
                    self.found[key] = self.found.get(key, 0) + amount


def quota_uses(
    projects: Mapping[str, Project],
    users: Iterable[UserQuota],
    held: Iterable[HeldSlots],
    submitted: Mapping[tuple[str, str], int],
) -> list[QuotaUse]:
    """Every quota with its use: of users, those with a quota of their own and those with live jobs.

    `users` are the quotas of the whole platform; `submitted` counts live jobs by (project, user).
    """
    counts = _Counts(projects)
    for one in held:
        types = [(slot_type, QuotaUnit.SLOTS, num) for slot_type, num in one.slots.items()]
        whole = ("", QuotaUnit.SLOTS, sum(one.slots.values()))
        # Slots without a known type are among the whole alone.
        typed = [amount for amount in types if amount[0]]
        counts.add(one.project, one.user, [*typed, whole, ("", QuotaUnit.RUNNING, 1)])
    for (project, user), num in submitted.items():
        counts.add(project, user, [("", QuotaUnit.SUBMITTED, num)])
    return [
        QuotaUse(key, counts.found.get(key, 0), most)
        for key, most in sorted(_limits(projects, tuple(users), counts.users))
    ]


def _limits(
    projects: Mapping[str, Project], users: tuple[UserQuota, ...], seen: Mapping[str, set[str]]
) -> Iterator[tuple[QuotaKey, int]]:
    for one in projects.values():
        whole = UserQuota("", one.max_slots, one.max_running, one.max_slots_by_type)
        yield from _of(one.name, whole)
        yield from _of_users(one.name, one.users, seen.get(one.name, set()))
    yield from _of_users("", users, seen.get("", set()))


def _of_users(
    project: str, quotas: tuple[UserQuota, ...], seen: set[str]
) -> Iterator[tuple[QuotaKey, int]]:
    by_user = {one.user: one for one in quotas}
    for user in sorted((by_user.keys() | seen) - {""}) if by_user else ():
        yield from _of(project, quota_of(user, by_user))


def _of(project: str, quota: UserQuota) -> Iterator[tuple[QuotaKey, int]]:
    for unit, most in (
        (QuotaUnit.SLOTS, quota.max_slots),
        (QuotaUnit.RUNNING, quota.max_running),
        (QuotaUnit.SUBMITTED, quota.max_submitted),
    ):
        if most is not None:
            yield QuotaKey(project, quota.user, "", unit), most
    for slot_type, most in quota.max_slots_by_type:
        yield QuotaKey(project, quota.user, slot_type, QuotaUnit.SLOTS), most
