"""What every service may use."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.core.gang.placement import Node
from phalanx.executors.protocol import Executor
from phalanx.schemas.home import HomeLayout
from phalanx.services.planning.row_cache import PlanningPolicy
from phalanx.services.planning.scheduler_cache import SchedulerCache
from phalanx.services.resources.clusters import Clusters, NoClusters
from phalanx.store.database import Store


@dataclass(frozen=True, slots=True)
class Platform:
    """The store, the executor, and the few facts that do not change while a control plane lives.

    `base_env` is what ranks of `submit` jobs start from. `signing_key` makes the supervisors' tokens:
    the same one for the same attempt, so that a launch that is repeated after a crash fits the
    supervisor that was started before it.
    """

    store: Store
    executor: Executor
    home: HomeLayout
    server_url: str
    signing_key: bytes
    base_env: Mapping[str, str] = field(default_factory=dict)
    contact_lost_after_s: float = 480.0
    policy: PlanningPolicy = PlanningPolicy()
    scheduler_cache: SchedulerCache = field(default_factory=SchedulerCache, compare=False)
    clusters: Clusters = field(default_factory=NoClusters, compare=False)

    def __post_init__(self) -> None:
        """What this process stores need not be read back for the next plan."""
        self.store.on_commit(self.scheduler_cache.rows.remember)

    def cluster(self) -> tuple[Node, ...]:
        """The nodes as jobs see them now. Raises ExecutorUnavailable."""
        real = tuple(self.executor.inventory())
        return self.store.view(lambda tx: self.scheduler_cache.rows.nodes(tx, real))

    def supervisor_token(self, job: int, attempt: int) -> str:
        """The secret by which the supervisors of one attempt are known."""
        text = f"supervisor/{job}/{attempt}".encode()
        return hmac.new(self.signing_key, text, hashlib.sha256).hexdigest()


def token_hash(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
