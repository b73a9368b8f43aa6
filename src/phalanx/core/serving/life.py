"""The life of a PyTorchJob that is served: what is done with its job, and what its status says.

`demand` tells what to do now; after it was done, `reflect` gives the new status and the events. Both are
level-triggered: they compare what should be with what is, so that a crash in between repeats at most
requests that have no further effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from phalanx.core.serving.conditions import (
    ConditionKind,
    Conditions,
    ObjectCondition,
    holds,
    put_exclusive,
)

NodeRange = tuple[int, int]
"""The least and the most nodes of a job."""
_MASTER = "Master"


class JobPhase(StrEnum):
    """The state of a job, as far as its object shows it."""

    WAITING = "waiting"  # in the queue, or its pods start
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER = frozenset({JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED})


class ObjectDemand(StrEnum):
    """What the control plane or the API server is asked for."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    PAUSE = "pause"
    RESUME = "resume"
    RESIZE = "resize"  # the job: the object has another number of nodes
    CANCEL = "cancel"
    DELETE = "delete"  # the object: its time to live is over


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """How many replicas of a role run, and how many have ended."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedObject:
    """What an object asks for, beside the job itself."""

    kind: str  # as in the object, such as PyTorchJob
    namespace: str  # of the object
    name: str  # of the object
    replicas: Mapping[str, int]  # by role; the first one decides about the end
    suspended: bool = False  # it waits, or its job is paused
    deadline_s: int | None = None  # from its start
    ttl_s: int | None = None  # from its end
    backoff_limit: int | None = None  # restarts
    nodes: NodeRange | None = None  # where it may change while the object lives
    by_exit_code: frozenset[str] = frozenset()  # roles that restart after some exit codes only

    @property
    def has_master(self) -> bool:
        """Whether one replica stands for the whole job."""
        return _MASTER in self.replicas

    def role_of(self, node_rank: int) -> str:
        """The role of a node rank: roles have theirs in order; later ones belong to the last role."""
        for role, count in self.replicas.items():
            if node_rank < count:
                return role
            node_rank -= count
        return list(self.replicas)[-1] if self.replicas else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """The job of an object, as the control plane tells it."""

    phase: JobPhase
    replicas: Mapping[str, ReplicaCounts] = field(default_factory=dict)
    began: bool = False  # its ranks have run
    restarts: int = 0
    failed_role: str = ""  # of the last failure; empty: not known
    no_more_restarts: bool = False  # it failed because its restarts are used up
    nodes: NodeRange | None = None  # as it was submitted, or changed; None: not known
    message: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class LifeStatus:
    """The status of an object. Times are seconds since the epoch."""

    conditions: Conditions = ()
    replicas: Mapping[str, ReplicaCounts] = field(default_factory=dict)
    start_s: int | None = None
    completed_s: int | None = None

    def holds(self, kind: ConditionKind) -> bool:
        """Whether a condition is true."""
        return holds(self.conditions, kind)

    @property
    def finished(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.holds(ConditionKind.SUCCEEDED) or self.holds(ConditionKind.FAILED)


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """One event about an object. Two with the same `about` and reason are one."""

    reason: str
    message: str
    warning: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class Reflection:
    """A new status, and the events that tell of it."""

    status: LifeStatus
    events: tuple[ObjectEvent, ...] = ()


# -- what to do --------------------------------------------------------------------------------------------


def demand(
    status: LifeStatus, wanted: ServedObject, seen: SeenJob | None, now_s: int
) -> ObjectDemand:
    """What to do for an object with this status; `seen` None: there is no job."""
    lives = seen is not None and seen.phase not in OVER and seen.phase != JobPhase.STOPPING
    if status.finished:
        if lives:
            return ObjectDemand.CANCEL
        return ObjectDemand.DELETE if _is_expired(status, wanted, now_s) else ObjectDemand.NOTHING
    if wanted.suspended and lives and not _is(seen, JobPhase.PAUSED):
        return ObjectDemand.PAUSE
    if not wanted.suspended and is_past_deadline(status, wanted, now_s):
        return ObjectDemand.CANCEL if lives else ObjectDemand.NOTHING
    if seen is not None and seen.phase not in OVER and _has_other_nodes(wanted, seen):
        return ObjectDemand.RESIZE
    if wanted.suspended:
        return ObjectDemand.NOTHING
    if seen is None:
        # An object with a start had a job: it was deleted, and is not submitted again.
        return ObjectDemand.SUBMIT if status.start_s is None else ObjectDemand.NOTHING
    if _is(seen, JobPhase.PAUSED) and status.holds(ConditionKind.SUSPENDED):
        # The object had paused it; a pause that was asked for elsewhere is left alone.
        return ObjectDemand.RESUME
    return ObjectDemand.NOTHING


def is_past_deadline(status: LifeStatus, wanted: ServedObject, now_s: int) -> bool:
    """Whether an object that is not suspended has been active for as long as it may."""
    if wanted.deadline_s is None or status.start_s is None or _suspension_ends(status, wanted):
        return False
    return now_s - status.start_s >= wanted.deadline_s


def _has_other_nodes(wanted: ServedObject, seen: SeenJob) -> bool:
    return wanted.nodes is not None and seen.nodes is not None and wanted.nodes != seen.nodes


def next_look_s(status: LifeStatus, wanted: ServedObject) -> int | None:
    """When time alone changes something; None: never."""
    if status.finished:
        if wanted.ttl_s is None or status.completed_s is None or wanted.suspended:
            return None
        return status.completed_s + wanted.ttl_s + 1
    if wanted.deadline_s is None or status.start_s is None:
        return None
    if wanted.suspended or _suspension_ends(status, wanted):
        return None  # it begins anew with the resumption
    return status.start_s + wanted.deadline_s


def _is_expired(status: LifeStatus, wanted: ServedObject, now_s: int) -> bool:
    if wanted.ttl_s is None or status.completed_s is None or wanted.suspended:
        return False
    return now_s > status.completed_s + wanted.ttl_s


def _is(seen: SeenJob | None, phase: JobPhase) -> bool:
    return seen is not None and seen.phase == phase


def _suspension_ends(status: LifeStatus, wanted: ServedObject) -> bool:
    return status.holds(ConditionKind.SUSPENDED) and not wanted.suspended


# -- what the status says ----------------------------------------------------------------------------------


def reflect(
    status: LifeStatus, wanted: ServedObject, seen: SeenJob | None, now_s: int
) -> Reflection:
    """The status after what `demand` asked for was done, and the events."""
    change = _Change(status, wanted, now_s)
    change.put(ConditionKind.CREATED, f"{wanted.kind} {wanted.name} is created.")
    if status.finished:
        return Reflection(status)
    over = seen is not None and seen.phase in OVER
    if wanted.suspended and not over:
        _suspend(change)
        return change.done()
    if seen is None and status.start_s is None:
        return change.done()  # it has not been submitted yet
    if status.holds(ConditionKind.SUSPENDED) and not over:
        if seen is not None and seen.phase in (JobPhase.STOPPING, JobPhase.PAUSED):
            return change.done()  # it is resumed as soon as it has stopped
        _resume(change)
    ended = over and not _is(seen, JobPhase.CANCELLED)  # by itself
    if is_past_deadline(status, wanted, now_s) and not ended:
        change.stop_replicas()
        _fail(change, "has failed because it was active longer than specified deadline", job=True)
    elif seen is None:
        if status.start_s is not None:
            change.stop_replicas()
            _fail(change, "is failed because its job was deleted.")
    else:
        start_s = now_s if change.status.start_s is None else change.status.start_s
        replicas = {role: seen.replicas.get(role, ReplicaCounts()) for role in wanted.replicas}
        change.status = replace(change.status, start_s=start_s, replicas=replicas)
        _PHASES[seen.phase](change, seen)
    return change.done()


def refuse(status: LifeStatus, wanted: ServedObject, message: str, now_s: int) -> Reflection:
    """The status of an object that no job can be made of."""
    change = _Change(status, wanted, now_s)
    change.put(ConditionKind.CREATED, f"{wanted.kind} {wanted.name} is created.")
    if status.finished:
        return Reflection(status)
    said = f"{wanted.kind} {wanted.name} is refused: {message}"
    change.tell("FailedValidation", said, warning=True)
    change.complete()
    change.put(ConditionKind.FAILED, said, "FailedValidation")
    return change.done()


class _Change:
    """A status that changes at one moment, and the events about it."""

    def __init__(self, status: LifeStatus, wanted: ServedObject, now_s: int) -> None:
        self.status, self.asked, self.now_s = status, wanted, now_s
        self.events: list[ObjectEvent] = []

    def put(self, kind: ConditionKind, message: str, word: str = "", *, holds: bool = True) -> bool:
        """Set a condition; whether something changed. `word` ends the reason: that of the condition."""
        reason = _reason(self.asked, word or kind)
        new = ObjectCondition(kind, holds, reason, message, self.now_s, self.now_s)
        found = put_exclusive(self.status.conditions, new)
        changed = found is not self.status.conditions
        self.status = replace(self.status, conditions=found)
        return changed

    def tell(self, word: str, message: str, *, warning: bool = False, about: str = "") -> None:
        """Add an event."""
        # The same after a crash before the status was written.
        name = about or str(self.status.start_s)
        self.events.append(ObjectEvent(_reason(self.asked, word), message, warning, name))

    def complete(self) -> None:
        """Note the end, once."""
        if self.status.completed_s is None:
            self.status = replace(self.status, completed_s=self.now_s)

    def stop_replicas(self) -> None:
        """Count no replica as active."""
        replicas = {role: replace(one, active=0) for role, one in self.status.replicas.items()}
        self.status = replace(self.status, replicas=replicas)

    def done(self) -> Reflection:
        """The result."""
        return Reflection(self.status, tuple(self.events))


def _reason(wanted: ServedObject, word: str) -> str:
    return f"{wanted.kind}{word}"


def _suspend(change: _Change) -> None:
    wanted = change.asked
    said = f"{wanted.kind} {wanted.name} is suspended."
    change.stop_replicas()
    if change.status.holds(ConditionKind.RUNNING):
        change.put(ConditionKind.RUNNING, said, "Suspended", holds=False)
    if not change.status.holds(ConditionKind.SUSPENDED):
        change.put(ConditionKind.SUSPENDED, said)
        change.tell("Suspended", said)


def _resume(change: _Change) -> None:
    said = f"{change.asked.kind} {change.asked.name} is resumed."
    change.put(ConditionKind.SUSPENDED, said, "Resumed", holds=False)
    change.tell("Resumed", said)
    change.status = replace(change.status, start_s=change.now_s)


def _fail(change: _Change, why: str, *, job: bool = False) -> None:
    wanted = change.asked
    said = f"{'Job' if job else wanted.kind} {wanted.name} {why}"
    change.tell("Failed", said)
    change.complete()
    change.put(ConditionKind.FAILED, said)


def _waiting(change: _Change, seen: SeenJob) -> None:
    if change.status.holds(ConditionKind.RUNNING):
        # It was preempted, or lost its nodes, and waits for others.
        _restarting(change, seen)


def _running(change: _Change, seen: SeenJob) -> None:
    _tell_restart(change, seen)
    wanted = change.asked
    name = wanted.name if wanted.has_master else f"{wanted.namespace}/{wanted.name}"
    change.put(ConditionKind.RUNNING, f"{wanted.kind} {name} is running.")


def _restarting(change: _Change, seen: SeenJob) -> None:
    change.put(ConditionKind.RESTARTING, _restart_text(change, seen))
    _tell_restart(change, seen)


def _tell_restart(change: _Change, seen: SeenJob) -> None:
    """One event for each restart, also for one that was over before it was seen."""
    if seen.restarts:
        said = _restart_text(change, seen)
        change.tell("Restarting", said, warning=True, about=f"restart-{seen.restarts}")


def _restart_text(change: _Change, seen: SeenJob) -> str:
    role, name = seen.failed_role, f"{change.asked.kind} {change.asked.name}"
    if not role:
        return f"{name} is restarting."
    if role == _MASTER:
        # Nothing of the job runs without it: the training-operator then leaves its first message.
        return f"job {change.asked.name} is restarting because {role} replica(s) failed."
    count = max(1, seen.replicas.get(role, ReplicaCounts()).failed)
    return f"{name} is restarting because {count} {role} replica(s) failed."


def _stopping(change: _Change, seen: SeenJob) -> None:
    """Nothing new: what it becomes is told when it has stopped."""


def _paused(change: _Change, seen: SeenJob) -> None:
    """Paused in Phalanx, and not by the object: the object says so, and leaves it alone."""
    change.stop_replicas()
    wanted = change.asked
    if change.status.holds(ConditionKind.RUNNING):
        said = f"{wanted.kind} {wanted.name} is paused in Phalanx."
        change.put(ConditionKind.RUNNING, said, "Paused", holds=False)


def _succeeded(change: _Change, seen: SeenJob) -> None:
    wanted = change.asked
    all_done = {role: ReplicaCounts(succeeded=count) for role, count in wanted.replicas.items()}
    change.status = replace(change.status, replicas=all_done)
    said = (
        f"{wanted.kind} {wanted.name} is successfully completed."
        if wanted.has_master
        else f"{wanted.kind} {wanted.namespace}/{wanted.name} successfully completed."
    )
    change.tell("Succeeded", said)
    change.complete()
    change.put(ConditionKind.SUCCEEDED, said)


def _failed(change: _Change, seen: SeenJob) -> None:
    change.stop_replicas()
    if seen.no_more_restarts and change.asked.backoff_limit is not None:
        _fail(change, "has failed because it has reached the specified backoff limit", job=True)
        return
    role = seen.failed_role or next(iter(change.asked.replicas), "Worker")
    if role in change.asked.by_exit_code:
        said = f'job "{change.asked.name}" is failing because "{role}" replica(s) failed.'
        change.tell("Failed", f"{said} {seen.message}".rstrip(), warning=True)
        change.complete()
        change.put(ConditionKind.FAILED, f"{said} {seen.message}".rstrip())
        return
    count = max(1, seen.replicas.get(role, ReplicaCounts()).failed)
    why = f"is failed because {count} {role} replica(s) failed."
    _fail(change, f"{why} {seen.message}".rstrip())


def _cancelled(change: _Change, seen: SeenJob) -> None:
    change.stop_replicas()
    _fail(change, "is failed because its job was cancelled.")


_PHASES = {
    JobPhase.WAITING: _waiting,
    JobPhase.RUNNING: _running,
    JobPhase.RESTARTING: _restarting,
    JobPhase.STOPPING: _stopping,
    JobPhase.PAUSED: _paused,
    JobPhase.SUCCEEDED: _succeeded,
    JobPhase.FAILED: _failed,
    JobPhase.CANCELLED: _cancelled,
}
