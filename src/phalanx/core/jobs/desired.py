"""What a supervisor should be doing now: the state it follows, derived from the job alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.gang.roles import Part, part_at
from phalanx.core.jobs.model import Attempt, Job, JobState, NodePhase
from phalanx.core.telemetry.profiles import RequestedProfile


class Action(StrEnum):
    """What one supervisor must bring about."""

    WAIT = "wait"  # stay, run nothing new
    RUN = "run"  # the ranks of `generation` must run
    END = "end"  # kill the ranks of `generation` at once
    STOP = "stop"  # ask the ranks of `generation` to save and leave before the deadline, then kill
    RELEASE = "release"  # kill whatever is left, report, and leave


@dataclass(frozen=True, slots=True)
class Desired:
    """One supervisor's orders. `master_*` and `resume_path` are set for RUN, the deadline for STOP.

    A RELEASE with a deadline asks ranks that still run to leave before they are killed. `masters` are
    (role, address, port) of every role of a gang that has several, where its rank 0 may listen.

    `stacks` is the number of the newest request for the running ranks' stacks; 0: there was none.
    `profile` is the newest request for a profile of the running ranks.
    `after` is the cause that ended the attempt's generation before, where there was one.
    """

    action: Action
    generation: int = 0
    master_address: str = ""
    master_port: int = 0
    resume_path: str | None = None
    restarts: int = 0
    deadline_at: int | None = None
    stacks: int = 0
    after: str = ""
    profile: RequestedProfile | None = None
    masters: tuple[tuple[str, str, int], ...] = ()


def desired(job: Job, attempt_num: int, node_rank: int) -> Desired:
    """The orders for one node rank of one attempt; RELEASE for an attempt that is over."""
    attempt = job.attempt
    if attempt is None or attempt.num != attempt_num:
        return Desired(Action.RELEASE)
    phase = attempt.nodes[node_rank].phase
    if phase is NodePhase.RELEASED or attempt.finished:
        return Desired(Action.RELEASE, attempt.generation, deadline_at=attempt.leave_by)
    if job.state is JobState.STOPPING:
        return _stopping(job, attempt, phase)
    if attempt.failures and phase in (NodePhase.UP, NodePhase.READY):
        return Desired(Action.END, attempt.generation)
    if not attempt.ranks_may_start or phase is NodePhase.ENDED:
        return Desired(Action.WAIT, attempt.generation)
    parts = job.parts_now()
    part = part_at(parts, node_rank)
    if not part.required and phase is NodePhase.UP and attempt.has_failed(part):
        return Desired(Action.END, attempt.generation)
    master = _master(attempt, part)
    return Desired(
        Action.RUN,
        attempt.generation,
        master_address=master[1],
        master_port=master[2],
        masters=tuple(_master(attempt, one) for one in parts) if len(parts) > 1 else (),
        resume_path=job.progress.checkpoint_path,
        restarts=job.restarts,
        stacks=attempt.stacks,
        after=_ended_by(job, attempt),
        profile=attempt.profile,
    )


def _master(attempt: Attempt, part: Part) -> tuple[str, str, int]:
    first = part.first_node
    return part.name, attempt.placement.shares[first].address, attempt.nodes[first].port or 0


def _ended_by(job: Job, attempt: Attempt) -> str:
    if attempt.generation == 0 or job.last_failure is None:
        return ""
    return job.last_failure.cause.value


def _stopping(job: Job, attempt: Attempt, phase: NodePhase) -> Desired:
    if phase is not NodePhase.UP:
        return Desired(Action.RELEASE, attempt.generation)
    if attempt.failures:
        return Desired(Action.END, attempt.generation)
    return Desired(
        Action.STOP,
        attempt.generation,
        deadline_at=job.stop_deadline_at,
        stacks=attempt.stacks,
    )
