"""The events of a job. Event names are in the past tense and are stored permanently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from phalanx.core.codec import earlier_names
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.placement import NodeShare, Placement, SlotOffer
from phalanx.core.jobs.dependencies import Dependency
from phalanx.core.jobs.model import JobPolicy, JobState, NodeOutcome, StopGoal
from phalanx.core.reasons import Cause, Reason, ReasonCode


@earlier_names(policy="terms")
@dataclass(frozen=True, slots=True)
class Submitted:
    """A user submitted a spec."""

    num: int
    policy: JobPolicy
    waits_for: tuple[Dependency, ...] = ()
    waits_turn: bool = False  # an element of an array that others go before


@dataclass(frozen=True, slots=True)
class AttemptPlaced:
    """The planner found room for the whole gang."""

    attempt: int
    placement: Placement
    waited_s: float = 0.0  # in the queue before this placement
    waited_for: str = ""  # the last pending reason; empty: it started at the next pass
    offers: tuple[SlotOffer, ...] = ()  # the kinds of its slots, with their prices at that time


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A supervisor checked in. `port` is free on its node, `addresses` are those of the node."""

    attempt: int
    node_rank: int
    port: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The executor could not start a supervisor; nothing of it is left."""

    attempt: int
    node_rank: int
    message: str
    cause: Cause = Cause.START_FAILED


@dataclass(frozen=True, slots=True)
class RanksStarted:
    """All ranks of one node run."""

    attempt: int
    generation: int
    node_rank: int


@dataclass(frozen=True, slots=True)
class RankFailed:
    """The first failing rank of one node; the rest of the node is being killed."""

    attempt: int
    generation: int
    node_rank: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class RanksStalled:
    """The ranks of one node run and make no step. Its stacks are there; other nodes' are not yet."""

    attempt: int
    generation: int
    node_rank: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class StacksRequested:
    """A user asked for the stacks of every rank."""


@dataclass(frozen=True, slots=True)
class ProfileRequested:
    """A user asked for a profile of the next steps; see `RequestedProfile`."""

    steps: int
    traced: int
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveRequested:
    """A user asked the ranks to save a checkpoint at the end of their step."""


@dataclass(frozen=True, slots=True)
class TunnelRequested:
    """A user asked to run a command in the environment of a rank, or to reach a port of its node."""

    kind: str  # exec or forward
    rank: int  # in the gang
    node_rank: int  # of the node that runs it


@dataclass(frozen=True, slots=True)
class StacksCaptured:
    """One node has sent its ranks' stacks for a request.

    Of a stalled generation, `failure` names the culprit among all nodes that have sent theirs. `excuse`
    says why the ranks of this node keep the others waiting: the generation is not stalled.
    """

    attempt: int
    generation: int
    node_rank: int
    request: int
    failure: Failure | None = None
    excuse: str = ""


@dataclass(frozen=True, slots=True)
class StacksOverdue:
    """Not every node of a stalled gang has sent its stacks in time."""

    attempt: int
    generation: int


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """Every rank of one node is gone."""

    attempt: int  # number of the attempt in the job
    generation: int  # number of the generation in the attempt
    node_rank: int  # of the node in the gang
    outcome: NodeOutcome  # how the ranks ended there
    port: int  # a fresh one, free for the next rendezvous
    step: int | None = None  # the last one completed
    failure: Failure | None = None  # the first one on the node
    unsaved: str = ""  # why the last checkpoint of a complete run is missing; empty: it is not
    target: int | None = None  # of a trial, if its ranks left because they have reached it


@dataclass(frozen=True, slots=True)
class NodeReleased:
    """The executor confirmed that a supervisor that had to leave is gone with all it started."""

    attempt: int
    node_rank: int


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The executor confirmed that a supervisor that should be there is dead, with all it started.

    `step` is the last one that supervisor reported. `replacement` is what another supervisor with the same
    node rank may use instead, so that the other nodes keep theirs; None: the whole gang is placed again.
    """

    attempt: int
    node_rank: int
    message: str
    step: int | None = None
    cause: Cause = Cause.NODE_LOST
    replacement: NodeShare | None = None


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint is complete and has its manifest."""

    attempt: int
    generation: int
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined:
    """A checkpoint failed verification and was set aside.

    `left_path` and `left_step` are of the newest other checkpoint that the job has committed, if any.
    """

    attempt: int
    generation: int
    path: str
    message: str
    left_path: str | None = None
    left_step: int | None = None


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job's ranks are to stop. `grace_s` None takes the spec's; 0 kills at once.

    An eviction names the job that gets the slots, and the slot-seconds it was expected to cost.
    """

    goal: StopGoal
    reason: Reason = Reason(ReasonCode.CANCEL_REQUESTED)
    grace_s: float | None = None
    beneficiary: int | None = None
    price_slot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """A paused job goes back to the queue; with `begin_anew`, without the checkpoints that it has."""

    begin_anew: bool = False


@dataclass(frozen=True, slots=True)
class TargetRaised:
    """A trial may go on until it has completed `until` units."""

    until: int


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """A user changed settings of the job: those that differ, by their names in the spec.

    `max_duration_s` is the limit that holds after it, whether it is among them or not. `num_nodes` and
    `min_nodes` are the size of the gang after it, as in `JobPolicy`; `num_nodes` None: it stays.
    """

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    max_duration_s: float | None = None
    num_nodes: int | None = None
    min_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class DependencyStarted:
    """All ranks of a job that this one depends on have started."""

    job: int


@dataclass(frozen=True, slots=True)
class DependencyEnded:
    """A job that this one depends on has ended, in this state."""

    job: int
    state: JobState


@dataclass(frozen=True, slots=True)
class TurnCame:
    """Another element of the array has ended, and this one may join the queue."""


@dataclass(frozen=True, slots=True)
class BackoffElapsed:
    """The wait before the next generation is over."""


@dataclass(frozen=True, slots=True)
class DurationExceeded:
    """The job ran for longer than it may."""


@dataclass(frozen=True, slots=True)
class StopOverdue:
    """The supervisors did not leave in time."""

    attempt: int


JobEvent = (
    Submitted
    | AttemptPlaced
    | NodeReady
    | LaunchFailed
    | RanksStarted
    | RankFailed
    | RanksEnded
    | NodeReleased
    | NodeLost
    | CheckpointCommitted
    | CheckpointQuarantined
    | StopRequested
    | Resumed
    | BackoffElapsed
    | DurationExceeded
    | StopOverdue
    | RanksStalled
    | StacksRequested
    | ProfileRequested
    | SaveRequested
    | TunnelRequested
    | StacksCaptured
    | StacksOverdue
    | TargetRaised
    | SettingsChanged
    | DependencyStarted
    | DependencyEnded
    | TurnCame
)

EVENT_TYPES: tuple[type[JobEvent], ...] = get_args(JobEvent)
