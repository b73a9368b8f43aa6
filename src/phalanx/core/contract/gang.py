"""The contract of an attempt's gang, and that of each of its ranks.

`GangContract` is what all nodes of one role of an attempt have in common; it travels in the assignment.
`GangContract.rank` makes the `RankContract` of one rank in one generation, which travels to it in
environment variables (`environment`) and is read there by `phalanx.train`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from phalanx.core.contract.checkpointing import CheckpointPolicy, variable
from phalanx.core.contract.job import JobIdentity, RoleContract
from phalanx.core.contract.trial import TrialContract, whole
from phalanx.core.gang import meshes
from phalanx.core.tracing.identity import JobTrace
from phalanx.kit.units import parse_duration

DEFAULT_GRACE_S = 30.0
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class WorldShape:
    """Nodes of a world in this attempt, and the ranks on each."""

    num_nodes: int
    #: ranks on each node; where nodes differ, on the first one
    ranks_per_node: int
    #: ranks by node rank, where nodes differ; empty: they do not
    ranks_by_node: tuple[int, ...] = ()

    @classmethod
    def of(cls, ranks_by_node: Sequence[int]) -> WorldShape:
        """The shape of a world with so many ranks on its nodes, by node rank."""
        alike = len(set(ranks_by_node)) == 1
        return cls(len(ranks_by_node), ranks_by_node[0], () if alike else tuple(ranks_by_node))

    @property
    def size(self) -> int:
        """Ranks of the world."""
        return sum(self.ranks_by_node) or self.num_nodes * self.ranks_per_node

    def ranks_on(self, node_rank: int) -> int:
        """Number of ranks on a node."""
        return self.ranks_by_node[node_rank] if self.ranks_by_node else self.ranks_per_node

    def first_rank(self, node_rank: int) -> int:
        """The first rank on a node."""
        if self.ranks_by_node:
            return sum(self.ranks_by_node[:node_rank])
        return node_rank * self.ranks_per_node

    def nodes_with(self, local_rank: int) -> list[int]:
        """The node ranks of the nodes that have such a local rank."""
        return [node for node in range(self.num_nodes) if local_rank < self.ranks_on(node)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlace:
    """The role of a node in a gang with several roles. `node_rank` counts within the role's world."""

    name: str  # name of the role
    node_rank: int  # among the nodes of the world
    #: the number in the gang of the world's rank 0
    first_rank: int
    #: ranks of the gang, all roles
    gang_size: int
    #: where the first role keeps its checkpoints
    lead_dir: str
    #: first rank of the role in its world
    role_first_rank: int = 0
    #: ranks of the role; None: those of its world
    role_size: int | None = None
    #: its world is that of the first role
    leads: bool = True
    required: bool = True  # its failure ends the job


class RoleAddress(Protocol):
    """The address of rank 0 of a role, and a free port there."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def address(self) -> str: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102


class GenerationOrders(Protocol):
    """The control plane's decisions for a generation; see `schemas.wire.supervision.Orders`."""

    @property
    def generation(self) -> int: ...  # noqa: D102
    @property
    def master_address(self) -> str: ...  # noqa: D102
    @property
    def master_port(self) -> int: ...  # noqa: D102
    @property
    def resume_path(self) -> str | None: ...  # noqa: D102
    @property
    def beginning(self) -> int: ...  # noqa: D102
    @property
    def restarts(self) -> int: ...  # noqa: D102
    @property
    def failed_at(self) -> Sequence[int]:
        """Times of the newest failures that lost work, oldest first, microseconds UTC."""

    @property
    def after(self) -> str:
        """The cause that ended the previous generation; empty: none."""

    @property
    def until(self) -> int | None:
        """The raised target of a trial; None: that of its contract."""

    @property
    def masters(self) -> Sequence[RoleAddress]:
        """Address and port of rank 0 of each role, in gangs with several roles."""


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Paths of one rank's own files on its node."""

    report_file: str
    control_file: str
    error_file: str
    #: the attempt's own copy of the code
    code_dir: str | None = None
    #: the secret of the generation
    secret_file: str | None = None
    #: the verified checkpoint to begin from; None: the job has one of its own, or begins anew
    resume_from: str | None = None


def _object(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"must be a JSON object: {error}") from None


def _times(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def _write_times(times: Sequence[int]) -> str:
    return ",".join(str(one) for one in times)


def _write_sizes(sizes: str | Mapping[str, int]) -> str:
    if isinstance(sizes, str):
        return sizes
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def _write_object(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True)


def as_path(text: str) -> str:
    """Mark a variable as a path; `environment.from_environment` may convert it to another type."""
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContract(Generic[P]):
    """One rank of one generation: its place, its files and its policies. `P` is the type of paths.

    Ranks count within their world. The variable of a field stands beside it; without a launcher none of
    them exist, and the defaults are those of a run of one process.
    """

    #: a launcher, ours or torchrun, gave a rendezvous
    launched: bool = False
    #: address of rank 0 of the world
    master_address: str = variable("MASTER_ADDR", "")
    #: a port there that is free for the rendezvous
    master_port: int = variable("MASTER_PORT", 0, whole)
    #: number of this rank in its world, from 0
    rank: int = variable("RANK", 0, whole)
    #: number of ranks of the world
    world_size: int = variable("WORLD_SIZE", 1, whole)
    #: number of this rank on its node, from 0
    local_rank: int = variable("LOCAL_RANK", 0, whole)
    #: number of ranks on the node
    local_world_size: int = variable("LOCAL_WORLD_SIZE", 1, whole)
    #: the rank's first device among those that it sees; absent where the launcher chooses none
    local_device: int | None = variable("PHALANX_LOCAL_DEVICE", None, whole)
    #: number of this rank's node in its world, from 0
    node_rank: int = variable("NODE_RANK", 0, whole)
    #: the world size to which the script's batch size refers
    reference_world: int = variable("PHALANX_REFERENCE_WORLD", 1, whole)
    #: the job, such as `j-12`; absent outside the platform
    job: str | None = variable("PHALANX_JOB", None)
    #: unique name of the job over all databases; absent outside the platform
    job_uid: str | None = variable("PHALANX_JOB_UID", None)
    #: the job's name; absent outside the platform
    job_name: str | None = variable("PHALANX_JOB_NAME", None)
    #: name of the job's project; absent outside the platform
    project: str | None = variable("PHALANX_PROJECT", None)
    #: number of the attempt in the job, from 1
    attempt: int = variable("PHALANX_ATTEMPT", 1, whole)
    #: number of the generation in the attempt, from 0
    generation: int = variable("PHALANX_GENERATION", 0, whole)
    #: number of restarts of the job so far
    restarts: int = variable("TORCHELASTIC_RESTART_COUNT", 0, whole)
    #: times of the job's newest failures that lost work, oldest first, microseconds UTC
    failed_at: tuple[int, ...] = variable("PHALANX_FAILED_AT", (), _times, _write_times)
    #: cause that ended the attempt's generation before, such as `node_lost`; absent in the first one
    restart_cause: str | None = variable("PHALANX_RESTART_CAUSE", None)
    #: start of the job's first attempt, microseconds UTC
    job_started_at: int | None = variable("PHALANX_JOB_STARTED_AT", None, whole)
    #: seconds to save and exit after a stop request
    grace_s: float = variable(
        "PHALANX_GRACE_S", DEFAULT_GRACE_S, parse_duration, lambda value: f"{value:.15g}"
    )
    #: the job's own folder of checkpoints, or that of a role which is not the first
    checkpoint_dir: P | None = variable("PHALANX_CHECKPOINT_DIR", None, as_path)
    #: folder of the newest committed checkpoint; absent without one
    resume_path: P | None = variable("PHALANX_RESUME_PATH", None, as_path)
    #: verified folder of the checkpoint that `checkpoint.resume_from` names; absent without one, and once
    #: the job has a checkpoint of its own
    resume_from: P | None = variable("PHALANX_RESUME_FROM", None, as_path)
    #: SHA-256 over everything that the submission fixed, for manifests of checkpoints
    provenance: str = variable("PHALANX_PROVENANCE", "")
    #: attempts before the owner had the job begin anew, without their checkpoints; 0: never
    beginning: int = variable("PHALANX_BEGINNING", 0, whole)
    #: folder of the attempt's own copy of the code; absent without one
    code_dir: P | None = variable("PHALANX_CODE_DIR", None, as_path)
    #: file that the rank writes its reports to, in the format of `core.contract.records`
    report_file: P | None = variable("PHALANX_REPORT_FILE", None, as_path)
    #: file that the ranks of the node share for requests, in the format of `core.training.control`
    control_file: P | None = variable("PHALANX_CONTROL_FILE", None, as_path)
    #: file that receives the exception that ended the rank, as JSON
    error_file: P | None = variable("TORCHELASTIC_ERROR_FILE", None, as_path)
    #: file with the secret that the ranks of this generation share; absent without the platform
    secret_file: P | None = variable("PHALANX_SECRET_FILE", None, as_path)
    #: the span of the generation in W3C Trace Context: spans of the script hang under it
    traceparent: str | None = variable("TRACEPARENT", None)
    #: the job, attempt and generation, for backends of traces
    tracestate: str | None = variable("TRACESTATE", None)
    checkpoint: CheckpointPolicy = CheckpointPolicy()  # when and where to save
    trial: TrialContract = TrialContract()  # the trial of a study that the job is
    #: layout of the ranks: `ddp`, `fsdp` or sizes such as `fsdp=2,tp=2`; replaces the script's argument
    strategy: str | Mapping[str, int] | None = variable(
        "PHALANX_STRATEGY", None, meshes.parse_sizes, _write_sizes
    )
    #: the spec's section `training` as a JSON object; replaces the script's arguments
    training: Mapping[str, Any] = variable(
        "PHALANX_TRAINING", read=_object, write=_write_object, default_factory=dict
    )
    #: nodes of the world; None where the rank was made of its variables, which do not have them
    world: WorldShape | None = None

    def device_index(self, num_devices: int) -> int:
        """Number of the rank's GPU among the `num_devices` that it sees."""
        wanted = self.local_rank if self.local_device is None else self.local_device
        return wanted % num_devices

    @property
    def master(self) -> tuple[str, int]:
        """Address and port of the rendezvous."""
        return self.master_address, self.master_port

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def one_node(self) -> bool:
        """Whether all ranks share this machine."""
        return self.world_size == self.local_world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GangContract:
    """The part of an attempt that all nodes of one role share.

    `world` is that of the role, or that of the first one where the role shares it.
    """

    job: JobIdentity
    attempt: int
    world: WorldShape
    role: RoleContract
    #: the job's own folder of checkpoints, or that of a role which is not the first
    checkpoint_dir: str
    #: microseconds UTC of the start of the job's first attempt
    job_started_at: int | None = None
    #: the trial that the job is; None: it is none
    trial: TrialContract | None = None
    #: SHA-256 over everything that the submission fixed; empty: not known
    provenance: str = ""

    @property
    def trace(self) -> JobTrace:
        """The identifiers of the job's traces."""
        return JobTrace(self.job.num, self.job.uid)

    def rank(
        self, orders: GenerationOrders, node_rank: int, local_rank: int, files: RankFiles
    ) -> RankContract[str]:
        """One rank of the generation that `orders` names; `node_rank` counts within the world."""
        training = dict(self.role.training or {})
        training.pop("network", None)  # variables of the node, not of the library
        trace = self.trace
        return RankContract(
            launched=True,
            master_address=orders.master_address,
            master_port=orders.master_port,
            rank=self.world.first_rank(node_rank) + local_rank,
            world_size=self.world.size,
            local_rank=local_rank,
            local_world_size=self.world.ranks_on(node_rank),
            node_rank=node_rank,
            reference_world=self.role.reference_world,
            job=self.job.label,
            job_uid=self.job.uid or None,
            job_name=self.job.name,
            project=self.job.project,
            attempt=self.attempt,
            generation=orders.generation,
            restarts=orders.restarts,
            failed_at=tuple(orders.failed_at),
            restart_cause=orders.after or None,
            job_started_at=self.job_started_at,
            grace_s=self.role.grace_s,
            checkpoint_dir=self.checkpoint_dir,
            resume_path=orders.resume_path if self.role.leads else None,
            resume_from=files.resume_from,
            provenance=self.provenance,
            beginning=orders.beginning,
            report_file=files.report_file,
            control_file=files.control_file,
            error_file=files.error_file,
            code_dir=files.code_dir,
            secret_file=files.secret_file,
            traceparent=trace.generation(self.attempt, orders.generation).traceparent(),
            tracestate=trace.tracestate(self.attempt, orders.generation),
            checkpoint=self.role.checkpoint,
            trial=self._trial(orders.until),
            training=training,
            world=self.world,
        )

    def _trial(self, raised: int | None) -> TrialContract:
        """The trial with its target, which is raised while it runs or is paused.

        Only the first role of a gang reports and pauses; the others have the parameters.
        """
        trial = self.trial or TrialContract()
        if not self.role.leads:
            return replace(trial, until=None, fork_of=None)
        if raised is None or trial.until is None:
            return trial
        return replace(trial, until=max(raised, trial.until))
