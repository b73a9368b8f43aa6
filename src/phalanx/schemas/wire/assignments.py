"""What one supervisor is given to serve: the file that it starts from, of mode 0600."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 1


class Message(BaseModel):
    """Strict about what we send, lenient about what a newer peer adds."""

    # JSON has no NaN: a diverged loss travels as the string "NaN", not as a null that cannot be read.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class WarmStart(Message):
    """How ranks are started. `imports` are preloaded by name beside torch."""

    enabled: bool = True
    imports: list[str] = Field(default_factory=list)


class PythonPackages(Message):
    """The spec's section `python`, and the folder of this node in which environments are kept."""

    root: str
    requirements: str | None = None
    packages: list[str] = Field(default_factory=list)
    installer: str = "auto"
    index_url: str | None = None
    extra_index_urls: list[str] = Field(default_factory=list)
    find_links: list[str] = Field(default_factory=list)


class RoleFacts(Message):
    """The role that a node serves in a gang with several. `node_rank` counts within the role.

    Its ranks are numbered from `first_rank` on in the gang of `gang_size` ranks; `lead_dir` is where
    the first role keeps its checkpoints.
    """

    name: str
    node_rank: int
    first_rank: int
    gang_size: int
    lead_dir: str
    leads: bool = True
    required: bool = True


class GangFacts(Message):
    """What all nodes of a role have in common; see `core.ranks.GangEnvironment`.

    A gang with one role is all of an attempt; `num_nodes` and `ranks_per_node` are the role's.
    """

    job: int
    job_name: str
    project: str
    attempt: int
    framework: str
    num_nodes: int
    ranks_per_node: int
    reference_world: int
    slots_per_rank: int = 1
    grace_s: float
    checkpoint_dir: str
    checkpoint_every: str | None = None
    checkpoint_keep: dict[str, object] | None = None
    checkpoint_async: bool = True
    checkpoint_compress: str | None = None
    checkpoint_store: str | None = None
    checkpoint_key_env: str | None = None
    checkpoint_key_file: str | None = None
    checkpoint_directory: str | None = None  # a folder of the script's own, relative to its cwd
    metric_lines: list[str] = Field(default_factory=list)  # `core.lines` patterns
    training: dict[str, object] | None = None
    job_started_at: int | None = None  # its first attempt; microseconds UTC
    stall_after: str = "never"  # never, auto, or seconds without a step


class Assignment(Message):
    """Everything a supervisor needs to serve one node rank of one attempt. A file of mode 0600.

    `command` is an argument vector, or one string for the shell. A script named by a relative path, and
    modules, come from `workdir`, the attempt's own copy of the code; ranks run in `cwd`, which is the
    caller's directory for `phalanx run` and `workdir` otherwise. `env` is the complete environment of
    the ranks before the rank variables are laid over it. `server_file`, where present, names the file
    from which a new address of the control plane is read when the old one stops answering. Of `secrets`
    only the names travel; the supervisor reads the values from `secrets_dir` when it starts.
    """

    protocol: int = PROTOCOL
    gang: GangFacts
    node_rank: int  # in the gang, all roles
    role: RoleFacts | None = None  # None: the gang has one
    node_dir: str  # <home>/jobs/j-12/a001/n0: spool, logs, exit record
    workdir: str
    cwd: str
    command: list[str] | str
    setup: str | None = None
    python: PythonPackages | None = None
    env: dict[str, str]
    secrets: list[str] = Field(default_factory=list)
    secrets_dir: str | None = None
    warm: WarmStart = Field(default_factory=WarmStart)
    cpus: int  # CPUs that this node's ranks share
    server_url: str
    server_file: str | None = None
    token: str
    code: str | None = None  # digest of the archive, for nodes that do not see the home
    contact_lost_after_s: float = 480.0  # 0.8 × fence_after: alone for longer, ranks are stopped

    @property
    def node_in_role(self) -> int:
        """The node rank among the nodes of its role."""
        return self.node_rank if self.role is None else self.role.node_rank

    @property
    def first_rank(self) -> int:
        """The number in the gang of this node's first rank."""
        before = 0 if self.role is None else self.role.first_rank
        return before + self.node_in_role * self.gang.ranks_per_node

    @property
    def leads(self) -> bool:
        """Whether its ranks' steps and checkpoints are those of the job."""
        return self.role is None or self.role.leads
