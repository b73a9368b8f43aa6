"""Conditions of an object's status, and how a new one changes those that are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class ConditionKind(StrEnum):
    """Conditions of a PyTorchJob."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ObjectCondition:
    """One condition. Times are seconds since the epoch."""

    kind: str
    holds: bool
    reason: str
    message: str
    updated_s: int
    changed_s: int  # when `holds` became what it is


Conditions = tuple[ObjectCondition, ...]
_EXCLUSIVE = {
    ConditionKind.RUNNING: ConditionKind.RESTARTING,
    ConditionKind.RESTARTING: ConditionKind.RUNNING,
}
_ENDS = frozenset({ConditionKind.SUCCEEDED, ConditionKind.FAILED})


def find(known: Iterable[ObjectCondition], kind: str) -> ObjectCondition | None:
    """The condition of this kind, or None."""
    return next((one for one in known if one.kind == kind), None)


def holds(known: Iterable[ObjectCondition], kind: str) -> bool:
    """Whether there is such a condition, and it is true."""
    found = find(known, kind)
    return found is not None and found.holds


def put(known: Conditions, new: ObjectCondition) -> Conditions:
    """The conditions with a new one at the end, unless the known one says the same.

    Status and reason decide whether two say the same; the time of the change stays while the status does.
    """
    before = find(known, new.kind)
    if before is not None and before.holds == new.holds:
        if before.reason == new.reason:
            return known
        new = replace(new, changed_s=before.changed_s)
    return (*(one for one in known if one.kind != new.kind), new)


def put_exclusive(known: Conditions, new: ObjectCondition) -> Conditions:
    """The same by the rules of a PyTorchJob.

    After Failed nothing changes. Running and Restarting remove each other. Running becomes false with the
    end; Restarting is left as it was only where the job failed while it restarted.
    """
    if holds(known, ConditionKind.FAILED):
        return known
    found = put(known, new)
    if found is known:
        return known
    kind = ConditionKind(new.kind)
    if (other := _EXCLUSIVE.get(kind)) is not None:
        found = tuple(one for one in found if one.kind != other)
    if kind in _ENDS:
        found = tuple(_ended(one) for one in found)
    return found


def _ended(one: ObjectCondition) -> ObjectCondition:
    return replace(one, holds=False) if one.kind == ConditionKind.RUNNING else one
