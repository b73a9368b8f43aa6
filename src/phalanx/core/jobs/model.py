"""The state of a job and of its live attempt, and the result of a handler, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from phalanx.core.codec import earlier_names, written_once
from phalanx.core.gang.failures import Failure, first_failure
from phalanx.core.gang.placement import GangShape, Placement, RoleShape, SlotOffer
from phalanx.core.gang.roles import WORKER, Part, part_at, parts_of
from phalanx.core.jobs.budgets import RecoveryPolicy, RestartsUsed
from phalanx.core.jobs.dependencies import Dependency
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.telemetry.profiles import RequestedProfile


class JobState(StrEnum):
    """The state of a job. A job holds slots exactly in the states of HOLDING."""

    WAITING = "waiting"
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
    """The state that follows a stop. Later members override earlier ones."""

    REQUEUE = "requeue"
    PAUSE = "pause"
    CANCEL = "cancel"
    FAIL = "fail"


class NodePhase(StrEnum):
    """The phase of one node rank of the live attempt."""

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
    AT_TARGET = "at_target"  # left with a checkpoint, because the trial has reached its target


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node rank: `port` is free on it for the next rendezvous; used when its node rank is 0.

    `step` is the last one its ranks completed in the generation that ended. `addresses` are those from
    which other nodes see its connections. `unsaved` says why the last checkpoint of a complete run is
    missing. `incarnation` is the number of supervisors that were lost and replaced before this one.
    """

    phase: NodePhase = NodePhase.LAUNCHING
    port: int | None = None
    outcome: NodeOutcome | None = None
    step: int | None = None
    addresses: tuple[str, ...] = ()
    unsaved: str = ""
    incarnation: int = 0


@earlier_names(ranks_may_start="opened")
@dataclass(frozen=True, slots=True)
class Attempt:
    """One placement of the gang, with its current generation; times are microseconds UTC."""

    num: int  # number of the attempt in its job, from 1
    placement: Placement  # the node shares that it holds
    nodes: tuple[NodeStatus, ...]  # status by node rank
    generation: int = 0  # number of the current generation, from 0
    ranks_may_start: bool = False  # all supervisors of the generation are ready
    finished: bool = False  # every required rank has succeeded
    failures: tuple[Failure, ...] = ()  # those of the current generation
    stacks: int = 0  # number of stack requests in this generation
    stall: Failure | None = None  # set once the generation is found to hang
    stall_until: int | None = None  # deadline for stacks of the stalled generation
    stacks_of: tuple[int, ...] = ()  # node ranks that have sent the requested stacks
    placed_at: int | None = None  # None only if an earlier release placed it
    profile: RequestedProfile | None = None  # newest profile request of the generation
    saves: int = 0  # number of the newest save request of the generation; 0: none
    tunnels: tuple[tuple[int, int], ...] = ()  # (node rank, number of its newest tunnel request)
    leave_by: int | None = None  # when ranks that still run after the finish are killed
    offers: tuple[
        SlotOffer, ...
    ] = ()  # the kinds of its slots, with their prices when it was placed

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
    def to_launch(self) -> tuple[int, ...]:
        """The node ranks of a launch: all at first, later those of supervisors that are replaced."""
        return tuple(
            rank
            for rank, node in enumerate(self.nodes)
            if not self.ranks_may_start or node.phase is NodePhase.LAUNCHING
        )

    @property
    def failure(self) -> Failure | None:
        """The first failure of the current generation; a collateral one if all are."""
        return first_failure(self.failures)

    @property
    def num_slots(self) -> int:
        """Number of slots that the attempt holds."""
        return sum(len(share.slots) for share in self.placement.shares)


@earlier_names(no_progress="barren")
@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The highest step, the newest checkpoint, and the generations in a row without progress.

    `beginning` is the number of attempts before the owner had the job begin anew; 0: never. `failed_at`
    are the times of the newest failures that lost work, oldest first, in microseconds UTC.
    """

    high_water_step: int | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    no_progress: int = 0
    beginning: int = 0
    failed_at: tuple[int, ...] = ()


@earlier_names(recovery="policy")
@written_once
@dataclass(frozen=True, slots=True)
class JobPolicy:
    """The settings of a spec that the job state machine uses; duration and nodes may change later.

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
    #: other shapes of the same world that the gang may be placed in, each on another number of nodes
    splits: tuple[GangShape, ...] = ()

    @property
    def num_slots(self) -> int:
        """Slots of the whole gang at full size, all roles."""
        return self.shape.num_slots + sum(role.num_slots for role in self.roles)

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang at full size, all roles."""
        return self.shape.world_size + sum(role.world_size for role in self.roles)

    def parts(self, num_shares: int | None = None) -> tuple[Part, ...]:
        """The nodes of each role in a placement of `num_shares` shares; None: at full size."""
        others = sum(role.nodes for role in self.roles)
        shape = self.shape if num_shares is None else self.shape_on(num_shares - others)
        return parts_of(self.role, shape, self.roles, num_shares)

    def shape_on(self, num_nodes: int) -> GangShape:
        """The shape of the first role on so many nodes, where it may be split; else at full size."""
        return next((one for one in self.splits if one.nodes == num_nodes), self.shape)


@earlier_names(policy="terms")
@dataclass(frozen=True, slots=True)
class Job:
    """The current state of a job, computed from its events; times are microseconds UTC."""

    num: int  # number of the job, shown as `j-<num>`
    policy: JobPolicy  # see there
    submitted_at: int  # time of the submit
    state: JobState = JobState.QUEUED  # changed only by the job machine
    reason: Reason = Reason(ReasonCode.SUBMITTED)  # reason of the current state
    attempts: int = 0  # number of placements so far
    restarts: int = 0  # number of restarts charged so far
    attempt: Attempt | None = None  # live attempt
    goal: StopGoal | None = None  # state that follows a stop under way
    stop_deadline_at: int | None = None  # when ranks that are stopping are killed
    not_before: int | None = None  # end of the back-off before the next start
    spending: RestartsUsed = RestartsUsed()  # restarts charged since the last progress
    progress: TrainingProgress = TrainingProgress()  # steps and checkpoints reached
    last_failure: Failure | None = None  # failure that ended the last failed generation
    started_at: int | None = None  # when all ranks first ran
    ended_at: int | None = None  # when it reached a terminal state
    queued_at: int | None = None  # when it last entered the queue; None: at submit
    attained_slot_s: float = 0.0  # slot-seconds used by attempts that are over
    waited_s: float = 0.0  # seconds in the queue before all placements
    preempted_at: tuple[int, ...] = ()  # requests to make room, those of the hour before the last
    until: int | None = None  # raised target of a trial; None: that of its contract
    waits_for: tuple[Dependency, ...] = ()  # dependencies that are not met yet
    waits_turn: bool = False  # its array has as many elements under way as it may

    def parts_now(self) -> tuple[Part, ...]:
        """The nodes of each role in the live attempt; without an attempt, at full size."""
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
        """Whether the job holds the slots of a placement."""
        return self.state in HOLDING


@dataclass(frozen=True, slots=True)
class LaunchAttempt:
    """Start the supervisor of each node that launches. Ends as NodeReady or LaunchFailed."""

    attempt: int


@dataclass(frozen=True, slots=True)
class KillAttempt:
    """Kill what is left of the attempt's supervisors. Ends as NodeReleased or NodeLost."""

    attempt: int


JobCommand = LaunchAttempt | KillAttempt


@dataclass(frozen=True, slots=True)
class Decision:
    """The new job, the commands, and the reason why the event was ignored, where it was."""

    job: Job
    commands: tuple[JobCommand, ...] = ()
    ignored: str | None = None
