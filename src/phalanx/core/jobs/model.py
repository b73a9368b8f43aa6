"""The job and its live attempt, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from phalanx.core.codec import earlier_names, written_once
from phalanx.core.gang.failures import Failure, first_failure
from phalanx.core.gang.placement import GangShape, Placement, RoleShape
from phalanx.core.gang.roles import WORKER, Part, part_at, parts_of
from phalanx.core.jobs.budgets import RecoveryPolicy, RestartsUsed
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.telemetry.profiles import RequestedProfile


class JobState(StrEnum):
    """Where a job is in its life. Slots are held exactly in HOLDING."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
HOLDING = frozenset({JobState.STARTING, JobState.RUNNING, JobState.RECOVERING, JobState.STOPPING})


class StopGoal(StrEnum):
    """What a stopping job becomes. Later members override earlier ones."""

    REQUEUE = "requeue"
    PAUSE = "pause"
    CANCEL = "cancel"
    FAIL = "fail"


class NodePhase(StrEnum):
    """What is known of one node rank of the live attempt."""

    LAUNCHING = "launching"  # the executor was asked to start its supervisor
    READY = "ready"  # the supervisor has checked in; no rank runs
    UP = "up"  # the ranks of the current generation run
    ENDED = "ended"  # the ranks of the current generation are gone
    RELEASED = "released"  # the executor confirmed that nothing is left


class NodeOutcome(StrEnum):
    """How a generation ended on one node."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # left at a stop request, with or without a checkpoint


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node rank: `port` is free on it for the next rendezvous; used when its node rank is 0.

    `step` is the last one its ranks completed in the generation that ended.
    """

    phase: NodePhase = NodePhase.LAUNCHING
    port: int | None = None
    outcome: NodeOutcome | None = None
    step: int | None = None


@earlier_names(ranks_may_start="opened")
@dataclass(frozen=True, slots=True)
class Attempt:
    """One placement of the gang. Generations count from 0 within it.

    `stacks` counts the generation's requests for stacks. `stall` is set from the moment a generation
    is found to hang until `stall_until`, while the nodes in `stacks_of` are no longer waited for.
    `profile` is the generation's newest request for a profile. `placed_at` is None only for
    attempts that an earlier release placed. `leave_by`: when ranks that are not required, and still
    run at the end of all others, are killed.
    """

    num: int
    placement: Placement
    nodes: tuple[NodeStatus, ...]
    generation: int = 0
    ranks_may_start: bool = False
    finished: bool = False
    failures: tuple[Failure, ...] = ()
    stacks: int = 0
    stall: Failure | None = None
    stall_until: int | None = None
    stacks_of: tuple[int, ...] = ()
    placed_at: int | None = None
    profile: RequestedProfile | None = None
    leave_by: int | None = None

    def with_node(self, node_rank: int, **changes: object) -> Attempt:
        """The same attempt with one node's status changed."""
        nodes = list(self.nodes)
        nodes[node_rank] = replace(nodes[node_rank], **changes)  # type: ignore[arg-type]
        return replace(self, nodes=tuple(nodes))

    def has_failed(self, part: Part) -> bool:
        """Whether ranks of this role have failed in the current generation."""
        return any(self.nodes[rank].outcome is NodeOutcome.FAILED for rank in part.nodes)

    def all_in(self, *phases: NodePhase) -> bool:
        """Whether every node is in one of `phases`."""
        return all(node.phase in phases for node in self.nodes)

    @property
    def failure(self) -> Failure | None:
        """What ended the current generation, as far as is known."""
        return first_failure(self.failures)

    @property
    def num_slots(self) -> int:
        """Slots that it holds."""
        return sum(len(share.slots) for share in self.placement.shares)


@earlier_names(no_progress="barren")
@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far the job has come. `high_water_step` None: it never reported a step."""

    high_water_step: int | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    no_progress: int = 0


@earlier_names(recovery="policy")
@written_once
@dataclass(frozen=True, slots=True)
class JobPolicy:
    """What the job machine must know of a spec; fixed at submit.

    `shape` is the gang at its full size; `min_nodes` below `shape.nodes` makes it elastic. Where the
    gang has several roles, `shape` is that of the first one, named `role`, and `roles` are the others.
    """

    shape: GangShape
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    grace_s: float = 30.0
    max_duration_s: float | None = None
    min_nodes: int | None = None
    role: str = WORKER
    roles: tuple[RoleShape, ...] = ()

    @property
    def num_slots(self) -> int:
        """Slots of the whole gang at full size, all roles."""
        return self.shape.num_slots + sum(role.num_slots for role in self.roles)

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang at full size, all roles."""
        return self.shape.world_size + sum(role.world_size for role in self.roles)

    def parts(self, num_shares: int | None = None) -> tuple[Part, ...]:
        """Where each role lies in a placement of so many shares; None: at full size."""
        return parts_of(self.role, self.shape, self.roles, num_shares)


@earlier_names(policy="terms")
@dataclass(frozen=True, slots=True)
class Job:
    """A job's whole present state; rebuilt by folding its events.

    `queued_at` is when it last entered the queue; `attained_slot_s` is the service of the attempts
    that are over, `waited_s` all the time it spent in the queue before its placements.
    """

    num: int
    policy: JobPolicy
    submitted_at: int
    state: JobState = JobState.QUEUED
    reason: Reason = Reason(ReasonCode.SUBMITTED)
    attempts: int = 0
    restarts: int = 0
    attempt: Attempt | None = None
    goal: StopGoal | None = None
    stop_deadline_at: int | None = None
    not_before: int | None = None
    spending: RestartsUsed = RestartsUsed()
    progress: TrainingProgress = TrainingProgress()
    last_failure: Failure | None = None
    started_at: int | None = None
    ended_at: int | None = None
    queued_at: int | None = None
    attained_slot_s: float = 0.0
    waited_s: float = 0.0

    def parts_now(self) -> tuple[Part, ...]:
        """Where each role lies in the live attempt; at full size without one."""
        return self.policy.parts(None if self.attempt is None else len(self.attempt.nodes))

    def needs_node(self, node_rank: int) -> bool:
        """Whether the job cannot go on when the ranks of this node fail."""
        return not self.policy.roles or part_at(self.parts_now(), node_rank).required

    @property
    def is_done(self) -> bool:
        """Whether every rank that the job needs has finished in the live attempt."""
        nodes = () if self.attempt is None else self.attempt.nodes
        return self.attempt is not None and all(
            nodes[rank].phase is NodePhase.ENDED and nodes[rank].outcome is NodeOutcome.SUCCEEDED
            for part in self.parts_now()
            if part.required
            for rank in part.nodes
        )

    @property
    def is_terminal(self) -> bool:
        """Whether the job will never change again."""
        return self.state in TERMINAL

    @property
    def holds_slots(self) -> bool:
        """Whether its placement is taken."""
        return self.state in HOLDING
