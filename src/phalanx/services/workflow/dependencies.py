"""Dependencies of jobs on jobs: checked at submit, settled with every start and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from phalanx.core.jobs.dependencies import MAX_DEPENDENCIES, Dependency, DependencyKind
from phalanx.core.jobs.events import DependencyEnded, DependencyStarted, JobEvent
from phalanx.core.jobs.model import TERMINAL, Job
from phalanx.core.tenancy.principals import Caller
from phalanx.core.tenancy.roles import Permission
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import job_label
from phalanx.schemas.spec.workflow import DependsOn, array_id, job_id
from phalanx.store.database import Tx
from phalanx.store.workflow import dependencies as rows

Batch = list[tuple[int, list[JobEvent]]]
_UNKNOWN = "there is no such job; write an id such as j-12, or the name of a job in the same batch"


def settle(tx: Tx, changes: Iterable[tuple[Job, Job]]) -> Batch:
    """Events for the jobs that wait for those that have just started or ended; (before, after) each."""
    started, ended = dict[int, Job](), dict[int, Job]()
    for before, after in changes:
        if before.started_at is None and after.started_at is not None:
            started[after.num] = after
        if after.is_terminal and not before.is_terminal:
            ended[after.num] = after
    if not started and not ended:
        return []
    told: dict[int, dict[int, JobEvent]] = {}
    for job, other, _ in rows.take(tx, list(started), list(ended)):
        over = ended.get(other)
        event = DependencyStarted(other) if over is None else DependencyEnded(other, over.state)
        told.setdefault(job, {})[other] = event
    return [(job, list(events.values())) for job, events in told.items()]


def resolve(
    tx: Tx,
    wanted: DependsOn,
    below: int,
    names: Mapping[str, Sequence[int]],
    by: Caller | None = None,
) -> tuple[Dependency, ...]:
    """The dependencies of a spec by number.

    `below` is the first number that the jobs submitted with it get: an id must be of an earlier job.
    `names` are the numbers of those that have a name of their own. Raises SpecInvalid for jobs that do not
    exist, and for those that `by` may not read.
    """
    found, problems = dict[Dependency, None](), list[Problem]()
    for kind, name in wanted.named():
        nums = names.get(name) or _earlier(tx, name, below, by)
        if not nums:
            problems.append(Problem(f"depends_on.{kind}", _UNKNOWN, name))
        found |= dict.fromkeys(Dependency(num, kind) for num in nums)
    if len(found) > MAX_DEPENDENCIES:
        said = f"at most {MAX_DEPENDENCIES} jobs, counting all elements of arrays"
        problems.append(Problem("depends_on", said, str(len(found))))
    if problems:
        raise SpecInvalid(problems)
    return tuple(found)


def _earlier(tx: Tx, name: str, below: int, by: Caller | None) -> list[int]:
    """The jobs that an id names, of which `by` may read every one."""
    num, array = job_id(name), array_id(name)
    nums = [num] if num is not None else rows.elements(tx, array) if array is not None else []
    known = rows.others(tx, [one for one in nums if one < below])
    seen = all(by is None or by.may(Permission.JOBS_READ, one.project) for one in known.values())
    return nums if seen and len(known) == len(nums) else []


def register(tx: Tx, fresh: Sequence[Job]) -> Batch:
    """Store what new jobs wait for; returns events for what happened before. Raises SpecInvalid."""
    waiting = [job for job in fresh if job.waits_for]
    if not waiting:
        return []
    known = rows.others(tx, (one.job for job in waiting for one in job.waits_for))
    batch: Batch = []
    for job in waiting:
        missing = [one.job for one in job.waits_for if one.job not in known]
        if missing:
            raise SpecInvalid(
                [Problem("depends_on", "there is no such job", job_label(missing[0]))]
            )
        events: dict[int, JobEvent] = {}
        for one in job.waits_for:
            other = known[one.job]
            if other.state in TERMINAL:
                events[one.job] = DependencyEnded(one.job, other.state)
            elif other.started and one.kind is DependencyKind.AFTER:
                events[one.job] = DependencyStarted(one.job)
        rows.add(tx, [(job.num, [one for one in job.waits_for if not _is_settled(one, events)])])
        if events:
            batch.append((job.num, list(events.values())))
    return batch


def _is_settled(one: Dependency, events: dict[int, JobEvent]) -> bool:
    event = events.get(one.job)
    return isinstance(event, DependencyEnded) or (
        event is not None and one.kind is DependencyKind.AFTER
    )
