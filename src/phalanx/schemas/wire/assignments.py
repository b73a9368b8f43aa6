"""What one supervisor is given to serve: the file that it starts from, of mode 0600."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from phalanx.core.contract.gang import GangContract, RolePlace
from phalanx.core.contract.job import PythonRequirements, WarmStart
from phalanx.core.contract.pods import PodContract
from phalanx.core.tracing.identity import TRACEPARENT, TRACESTATE
from phalanx.schemas.wire import ASSIGNMENT_PROTOCOL


class Message(BaseModel):
    """Strict about what we send, lenient about what a newer peer adds."""

    # JSON has no NaN: a diverged loss travels as the string "NaN", not as a null that cannot be read.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class PythonPackages(Message):
    """The job's Python packages, and the folder of the node in which environments are kept."""

    root: str
    wanted: PythonRequirements


class ResumePlaces(Message):
    """Paths and URLs of a checkpoint to begin from; the first that can be read counts."""

    places: list[str]


class ExpectedFacts(Message):
    """The software and inputs that a clone must find: those of the job that it repeats.

    `facts` are values by name, as `core.contract.provenance` names them.
    """

    job: str
    facts: dict[str, str]


class Assignment(Message):
    """Everything a supervisor needs to serve one node rank of one attempt. A file of mode 0600.

    `command` is an argument vector, or one string for the shell. A script named by a relative path, and
    modules, come from `workdir`, the attempt's own copy of the code; ranks run in `cwd`, which is the
    caller's directory for `phalanx run` and `workdir` otherwise. `env` is the complete environment of
    the ranks before the rank variables are laid over it. `server_file`, where present, names the file
    from which a new address of the control plane is read when the old one stops answering. Of `secrets`
    and of `own_secrets`, the job's own secret variables, only the names travel; when it starts, the
    supervisor reads the values from `own_secrets_file`, or, with `secrets` or where that is absent
    because the node is another machine, from the control plane.
    """

    protocol: int = ASSIGNMENT_PROTOCOL
    gang: GangContract
    node_rank: int  # in the gang, all roles
    incarnation: int = 0  # number of supervisors that the node rank had before in the attempt
    role: RolePlace | None = None  # None: the gang has one
    pod: PodContract | None = None  # for executors with containers; supervisors do not need it
    address: str = ""  # where its ranks are reached; empty: the placement knows it
    node_dir: str  # <home>/jobs/j-12/a001/n0: spool, logs, exit record
    workdir: str
    cwd: str
    command: list[str] | str
    setup: str | None = None
    python: PythonPackages | None = None
    data: dict[str, str] = Field(default_factory=dict)  # inputs to stage: path or URL by name
    data_root: str | None = None  # folder of this node for copies of inputs
    env: dict[str, str]
    own_env: list[str] = Field(default_factory=list)  # names in `env` that the job itself sets
    secrets: list[str] = Field(default_factory=list)
    own_secrets: dict[str, str] = Field(default_factory=dict)  # name to layer in the file
    own_secrets_file: str | None = None
    warm: WarmStart = Field(default_factory=WarmStart)
    cpus: int  # CPUs that this node's ranks share
    limit_cpus: int = 0  # CPUs that they may use together; 0: no limit
    limit_memory_bytes: int = 0  # memory that they may use together; 0: no limit
    devices: list[str] = Field(default_factory=list)  # accelerators of its slots, in their order
    device_kind: str = ""  # cuda or rocm: the ranks see `devices` alone; empty: as the node has it
    slot_type: str = ""  # declared model of the devices; empty: any
    device_memory_bytes: int = 0  # declared memory of each device; 0: any
    server_url: str
    server_ca: str = (
        ""  # the only authority of certificates that it accepts, in PEM; empty: the system's
    )
    server_file: str | None = None
    token: str
    code: str | None = None  # digest of the archive, for nodes that do not see the home
    resume: ResumePlaces | None = None  # None: the job begins anew
    expects: ExpectedFacts | None = None  # None: any software and inputs are fine
    log_format: str = "text"  # of the supervisor's own lines: text or json
    log_limit: int | None = None  # bytes of output stored of the job; more need not be sent
    contact_lost_after_s: float = 480.0  # 0.8 × fence_after: alone for longer, ranks are stopped

    @property
    def node_in_world(self) -> int:
        """The node rank among the nodes of its world."""
        return self.node_rank if self.role is None else self.role.node_rank

    @property
    def num_ranks(self) -> int:
        """Number of ranks on this node."""
        return self.gang.world.ranks_on(self.node_in_world)

    @property
    def first_rank(self) -> int:
        """The number in the gang of this node's first rank."""
        before = 0 if self.role is None else self.role.first_rank
        return before + self.gang.world.first_rank(self.node_in_world)

    @property
    def secret_values(self) -> list[str]:
        """The values of its secret variables, once the supervisor has read them."""
        names = (*self.secrets, *self.own_secrets)
        return [self.env[name] for name in names if name in self.env]

    def in_trace(self) -> Self:
        """With the span of the attempt in `env`, for the setup command and what else precedes the ranks."""
        trace, attempt = self.gang.trace, self.gang.attempt
        names = {
            TRACEPARENT: trace.attempt(attempt).traceparent(),
            TRACESTATE: trace.tracestate(attempt),
        }
        return self.model_copy(update={"env": {**self.env, **names}})

    @property
    def leads(self) -> bool:
        """Whether its ranks' steps and checkpoints are those of the job."""
        return self.role is None or self.role.leads
