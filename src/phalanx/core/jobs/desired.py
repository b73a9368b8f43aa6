"""The desired state of each supervisor, derived from the job's state alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.gang.roles import Part, part_at
from phalanx.core.jobs.model import Attempt, Job, JobState, NodePhase
from phalanx.core.telemetry.profiles import RequestedProfile


class Action(StrEnum):
    """The action that a supervisor has to complete."""

    WAIT = "wait"  # stay, run nothing new
    RUN = "run"  # the ranks of `generation` must run
    END = "end"  # kill the ranks of `generation` at once
    STOP = "stop"  # ask the ranks of `generation` to save and leave before the deadline, then kill
    RELEASE = "release"  # kill whatever is left, report, and leave


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of one supervisor. `master_*` and `resume_path` are set only for RUN.

    A RELEASE with a deadline asks ranks that still run to leave before they are killed.
    """

    action: Action  # the action to complete
    generation: int = 0  # the generation that it concerns
    master_address: str = ""  # address of rank 0 of the node's world
    master_port: int = 0  # free port there for the rendezvous
    resume_path: str | None = None  # checkpoint to resume from; None: none
    beginning: int = 0  # attempts before the owner had the job begin anew
    restarts: int = 0  # restarts of the job so far
    failed_at: tuple[int, ...] = ()  # its newest failures that lost work, microseconds UTC
    deadline_at: int | None = None  # when ranks are killed, microseconds UTC
    stacks: int = 0  # number of the newest stack request; 0: none
    after: str = ""  # cause that ended the attempt's previous generation; empty: none
    profile: RequestedProfile | None = None  # newest profile request
    masters: tuple[tuple[str, str, int], ...] = ()  # (role, address, port) per role
    saves: int = 0  # number of the newest save request; 0: none
    tunnels: int = 0  # number of the node's newest tunnel request; 0: none
    until: int | None = None  # raised target of a trial; None: that of its contract
    peers: tuple[str, ...] = ()  # addresses of the gang's nodes, where there are several


def desired(job: Job, attempt_num: int, node_rank: int, incarnation: int | None = None) -> Desired:
    """The orders for one node rank of one attempt.

    RELEASE for an attempt that is over, and for an incarnation of the supervisor that was replaced; None:
    the present one.
    """
    attempt = job.attempt
    if attempt is None or attempt.num != attempt_num:
        return Desired(Action.RELEASE)
    if incarnation not in (None, attempt.nodes[node_rank].incarnation):
        return Desired(Action.RELEASE)
    phase = attempt.nodes[node_rank].phase
    if phase is NodePhase.RELEASED or attempt.finished:
        return Desired(Action.RELEASE, attempt.generation, deadline_at=attempt.leave_by)
    if job.state is JobState.STOPPING:
        return _stopping(job, attempt, phase)
    if attempt.failures and phase in (NodePhase.UP, NodePhase.READY):
        return Desired(Action.END, attempt.generation)
    if not attempt.ranks_may_start or phase in (NodePhase.LAUNCHING, NodePhase.ENDED):
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
        peers=_peers(attempt),
        resume_path=job.progress.checkpoint_path,
        beginning=job.progress.beginning,
        restarts=job.restarts,
        failed_at=job.progress.failed_at,
        stacks=attempt.stacks,
        after=_ended_by(job, attempt),
        profile=attempt.profile,
        saves=attempt.saves,
        tunnels=dict(attempt.tunnels).get(node_rank, 0),
        until=job.until,
    )


@dataclass(frozen=True, slots=True)
class StopAdvice:
    """Whether a rank should save and exit now. `code` and `message` are empty as long as it should not."""

    stop: bool = False
    code: str = ""  # a reason code of jobs, or `superseded`: the generation is over
    message: str = ""
    deadline_at: int | None = None  # when ranks are killed, microseconds UTC; None: not known


SUPERSEDED = "superseded"


def stop_advice(job: Job, attempt: int, generation: int, node_rank: int) -> StopAdvice:
    """What a rank of one generation on one node is told about going on."""
    orders = desired(job, attempt, node_rank)
    if orders.action in (Action.RUN, Action.WAIT) and orders.generation == generation:
        return StopAdvice()
    live = job.attempt is not None and (job.attempt.num, job.attempt.generation) == (
        attempt,
        generation,
    )
    if live and job.state is JobState.STOPPING:
        return StopAdvice(True, job.reason.code.value, job.reason.message, job.stop_deadline_at)
    return StopAdvice(True, SUPERSEDED, "this generation of the job is over", orders.deadline_at)


def _master(attempt: Attempt, part: Part) -> tuple[str, str, int]:
    first = part.world_node
    node = attempt.nodes[first]
    # A pod has no address before it runs: its supervisor reports it, the one that peers use first.
    address = attempt.placement.shares[first].address or next(iter(node.addresses), "")
    return part.name, address, node.port or 0


def _peers(attempt: Attempt) -> tuple[str, ...]:
    """The addresses from which ranks of the gang may connect to one another."""
    shares = attempt.placement.shares
    if len(shares) == 1:
        return ()
    reported = {one for node in attempt.nodes for one in node.addresses}
    return tuple(sorted(reported | {share.address for share in shares if share.address}))


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
