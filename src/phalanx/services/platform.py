"""What every service may use."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.core.gang.placement import Node
from phalanx.core.retention.policy import RetentionPeriods
from phalanx.core.scheduling import EmptyClusters
from phalanx.core.slo.objectives import DEFAULT_CLASS, STANDARD, JobClass
from phalanx.errors import NotSupported
from phalanx.executors.protocol import BoundedExecutor, Executor
from phalanx.schemas.api.pools import ChangeView
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.pool_file import ClusterPool
from phalanx.search import SamplerWorker
from phalanx.services.caches.row_cache import PlanningPolicy
from phalanx.services.caches.scheduler_cache import SchedulerCache
from phalanx.services.caches.study_cache import StudyCache
from phalanx.services.objects.code_archives import CodeArchives
from phalanx.services.objects.log_files import LogFiles
from phalanx.services.secret_managers.references import SecretSources
from phalanx.store import planning
from phalanx.store.database import Store
from phalanx.store.secrets.envelope import HomeKeys, KeyWrapper

REQUEST_BASE: ContextVar[str] = ContextVar("phalanx_request_base", default="")
"""The scheme, host and port under which the client of the present request reaches the control plane."""


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """The outcome of one cluster entry of a pool file; an empty `warning` means none."""

    change: ChangeView
    warning: str = ""


class Clusters(Protocol):
    """Pools that are clusters of their own; the program that runs the control plane connects them."""

    def known(self) -> Mapping[str, ClusterPool]:
        """The known clusters by name."""
        ...

    def connect(self, pool: ClusterPool) -> ClusterChange:
        """Connect to a cluster, now and at every later start. Raises ServerError, Conflict."""
        ...

    def forget(self, name: str) -> None:
        """Disconnect from a cluster for good. Raises NotFound."""
        ...

    def refresh(self) -> None:
        """Follow what another control plane of the home has connected or forgotten."""
        ...


class NoClusters:
    """The clusters of a control plane that connects to none."""

    def known(self) -> Mapping[str, ClusterPool]:
        """Return none."""
        return {}

    def connect(self, pool: ClusterPool) -> ClusterChange:
        """Raise NotSupported: no cluster can be connected."""
        raise NotSupported(f"pool {pool.name} is a cluster; this control plane connects to none")

    def forget(self, name: str) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """How long data is kept by default, and how the control plane reaches object stores to delete."""

    periods: RetentionPeriods = field(default_factory=RetentionPeriods)
    log_bytes: int | None = None  # bytes of output stored of all jobs; None: any number
    stores: tuple[str, ...] | None = None  # prefixes that it may delete in; None: any
    store_env: Mapping[str, str] = field(default_factory=dict, repr=False)  # its own credentials


@dataclass(frozen=True, slots=True)
class Platform:
    """The store, the executor and the constants of one control plane process.

    A supervisor's token is derived from `signing_key` and the attempt: a launch that is repeated
    after a crash matches the supervisor that was started before it.
    """

    store: Store  # the database
    executor: Executor  # starts and stops supervisors
    home: HomeLayout  # paths of the home directory
    server_url: str  # URL that supervisors connect to
    signing_key: bytes  # key of supervisor tokens
    public_url: str = ""  # URL that users open; empty: that of each request
    server_ca: str = ""  # authority of its certificate, in PEM; empty: the system's, or no TLS
    given_keys: KeyWrapper | None = None  # master keys of secrets; None: the file of the home
    managers: SecretSources = field(default_factory=SecretSources, compare=False)  # of secrets
    base_env: Mapping[str, str] = field(default_factory=dict)  # base environment of `submit` jobs
    code_archives: CodeArchives | None = None  # code in an object store; None: in the home alone
    log_store: LogFiles | None = None  # files of packed output; None: in the home
    contact_lost_after_s: float = 480.0  # silence before a supervisor is lost
    log_format: str = "text"  # of the log lines of supervisors: text or json
    log_limit: int | None = None  # bytes of output stored of one job; None: any number
    retention: RetentionRules = field(default_factory=RetentionRules)  # periods by default
    #: classes of jobs by name, with their objectives
    classes: Mapping[str, JobClass] = field(default_factory=lambda: {DEFAULT_CLASS: STANDARD})
    policy: PlanningPolicy = field(default_factory=PlanningPolicy)  # until another one is stored
    scheduler_cache: SchedulerCache = field(default_factory=SchedulerCache, compare=False)  # cache
    studies: StudyCache = field(default_factory=StudyCache, compare=False)  # studies in memory
    sampler: SamplerWorker = field(default_factory=SamplerWorker, compare=False)  # runs models
    clusters: Clusters = field(default_factory=NoClusters, compare=False)  # connected clusters
    empty: EmptyClusters = field(default_factory=EmptyClusters, compare=False)  # for new jobs
    #: raises LeaseLost where a loop may start nothing any more, because another process leads
    may_act: Callable[[], None] = field(default=lambda: None, compare=False)

    def __post_init__(self) -> None:
        """Register the caches, so that rows stored by this process are not read back."""
        self.store.on_commit(self.scheduler_cache.rows.remember)
        self.store.on_commit(self.studies.remember)

    def job_url(self, num: int) -> str:
        """The URL of the page of a job, as the client of the present request can open it."""
        return f"{self.public_url or REQUEST_BASE.get() or self.server_url}/jobs/{num}"

    @property
    def secret_keys(self) -> KeyWrapper:
        """The master keys of secrets."""
        return self.given_keys or HomeKeys(self.home.secrets_key_file)

    @property
    def log_files(self) -> LogFiles:
        """The files of packed output."""
        return self.log_store or LogFiles(self.home.logs_dir)

    def cluster(self) -> tuple[Node, ...]:
        """The nodes as jobs see them now. Raises ExecutorUnavailable."""
        real = self.inventory()
        return self.store.view(lambda tx: self.scheduler_cache.rows.nodes(tx, real))

    def inventory(self) -> tuple[Node, ...]:
        """The nodes as the executor reports them, with those that could come within the bounds in effect.

        Raises ExecutorUnavailable.
        """
        executor: object = self.executor
        if isinstance(executor, BoundedExecutor) and executor.scaling_policies():
            # Another replica may have set them, or an earlier process.
            executor.bound_pools(self.store.view(planning.scaling_bounds))
        return tuple(self.executor.inventory())

    def supervisor_token(self, job: int, attempt: int, incarnation: int = 0) -> str:
        """The secret that authenticates the supervisors of one attempt.

        It depends on the database: job numbers of another one begin again, and their supervisors may live.
        A supervisor that replaces a lost one has another token: calls of the lost one are refused.
        """
        text = f"supervisor/{self.store.database_id}/{job}/{attempt}"
        if incarnation:
            text = f"{text}/{incarnation}"
        return hmac.new(self.signing_key, text.encode(), hashlib.sha256).hexdigest()


def token_hash(token: str) -> str:
    """The stored form of a token: its SHA-256 digest in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()
