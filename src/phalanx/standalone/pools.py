"""Clusters as pools: their entries in the home directory, and their executors."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Mapping
from pathlib import Path

import yaml

from phalanx.errors import Conflict, NotFound, ServerError
from phalanx.executors import local
from phalanx.executors.protocol import Executor
from phalanx.executors.routing import RoutedExecutor
from phalanx.kit.text import random_hex
from phalanx.launch.files import folder_identity, write_file
from phalanx.schemas.api.pools import ChangeView
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.kubernetes_pools import KubernetesPool
from phalanx.schemas.pools.pool_file import POOL_SCHEMA, ClusterPool, read_pool_file
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.services.platform import ClusterChange

_FOLDER = "pools"
_OWNER = "owner"
_OWNER_HOME = "owner.home"  # device, inode and path of the home that has this name
# A cluster that does not answer within this time is connected in the background.
_READY_S = 20.0


class HomeClusters:
    """The clusters of a home; `connect_all` makes each of them a pool of the executor."""

    def __init__(self, home: HomeLayout, routed: RoutedExecutor) -> None:
        self._home, self._routed = home, routed
        self._folder = home.root / _FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._known = known_clusters(home)
        self._lock = threading.RLock()

    def known(self) -> Mapping[str, ClusterPool]:
        """See `Clusters`."""
        return dict(self._known)

    def connect_all(self) -> None:
        """Connect to every known cluster. Raises ServerError when one cannot be used."""
        for pool in self._known.values():
            self._connect(pool)

    def connect(self, pool: ClusterPool) -> ClusterChange:
        """See `Clusters`. Only `scaling` of a connected cluster changes before the next start."""
        with self._lock:
            return self._connected(pool)

    def refresh(self) -> None:
        """See `Clusters`."""
        with self._lock:
            stored = known_clusters(self._home)
            for name in self._known.keys() - stored.keys():
                self._routed.drop(name)
            for name in stored.keys() - self._known.keys():
                self._connect(stored[name])
            for name in stored.keys() & self._known.keys():
                if stored[name].scaling != self._known[name].scaling:
                    self._routed.set_scaling(name, stored[name].scaling)
            self._known = stored

    def _connected(self, pool: ClusterPool) -> ClusterChange:
        before = self._known.get(pool.name)
        if before == pool:
            return ClusterChange(ChangeView(name=pool.name, outcome="unchanged"))
        if pool.name == local.POOL:
            raise Conflict(f"the name {local.POOL} is taken by this machine's own pool")
        if before is None:
            self._connect(pool, check=True)
        body = {"schema": POOL_SCHEMA, "pools": [pool.model_dump(mode="json")]}
        write_file(self._path(pool.name), yaml.safe_dump(body, sort_keys=False).encode())
        self._known[pool.name] = pool
        if before is None:
            return ClusterChange(ChangeView(name=pool.name, outcome="created"))
        self._routed.set_scaling(pool.name, pool.scaling)
        if pool == before.model_copy(update={"scaling": pool.scaling}):
            return ClusterChange(ChangeView(name=pool.name, outcome="changed"))
        warning = f"pool {pool.name} stays as it is until the next start of the control plane"
        return ClusterChange(ChangeView(name=pool.name, outcome="changed"), warning)

    def forget(self, name: str) -> None:
        """See `Clusters`."""
        with self._lock:
            if self._known.pop(name, None) is None:
                raise NotFound(f"there is no pool {name} from a pool file")
            self._path(name).unlink(missing_ok=True)
            self._routed.drop(name)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.yaml"

    def _connect(self, pool: ClusterPool, *, check: bool = False) -> None:
        """Make a cluster a pool of the executor; `check` refuses one that could run no job."""
        owner = cluster_owner(self._home)
        if isinstance(pool, KubernetesPool):
            self._routed.add(pool.name, _kubernetes(self._home, pool, owner, check))
        else:
            self._routed.add(pool.name, _ray(self._home, pool, owner))


def known_clusters(home: HomeLayout) -> dict[str, ClusterPool]:
    """Read the clusters stored in a home. Raises SpecInvalid."""
    paths = sorted((home.root / _FOLDER).glob("*.yaml"))
    return {pool.name: pool for path in paths for pool in read_pool_file(path)[0].clusters}


def cluster_owner(home: HomeLayout) -> str:
    """The stored name of this home in the clusters, used to find its running attempts again.

    A copy of a home that still exists gets a name of its own: it must not stop what the original runs. One
    that was moved, or restored from a backup, keeps its name. Raises OSError.
    """
    path, root = home.root / _FOLDER / _OWNER, home.root.resolve()
    record, here = path.with_name(_OWNER_HOME), f"{folder_identity(root)} {root}"
    recorded = record.read_text().strip() if record.exists() else ""
    if not path.exists() or _is_copied(recorded, root):
        write_file(path, f"{random_hex(8)}\n".encode())
    if recorded != here:
        write_file(record, f"{here}\n".encode())
    return path.read_text().strip()


def _is_copied(recorded: str, root: Path) -> bool:
    """Whether another folder is the home that was recorded; earlier releases recorded none."""
    identity, _, place = recorded.partition(" ")
    with contextlib.suppress(OSError):
        return bool(place) and Path(place) != root and folder_identity(Path(place)) == identity
    return False


def _ray(home: HomeLayout, pool: RayPool, owner: str) -> Executor:
    if importlib.util.find_spec("ray") is None:
        raise ServerError(
            f"pool {pool.name} is a Ray cluster, and Ray is not installed here",
            "pip install 'phalanx[ray]', with the version that the cluster runs",
        )
    from phalanx.executors.ray.executor import RayExecutor

    log = home.root / _FOLDER / f"{pool.name}.log"
    executor = RayExecutor(home, pool, owner=owner, log=log)
    executor.wait_ready(_READY_S)
    return executor


def _kubernetes(home: HomeLayout, pool: KubernetesPool, owner: str, check: bool) -> Executor:
    from phalanx.executors.kubernetes.credentials import from_kubeconfig, in_cluster
    from phalanx.executors.kubernetes.executor import KubernetesExecutor

    path = pool.kubeconfig
    access = in_cluster() if path is None else from_kubeconfig(Path(path), pool.context)
    executor = KubernetesExecutor(home, pool, access, owner=owner)
    executor.wait_ready(_READY_S)
    try:
        if check:
            executor.check_devices()
    except ServerError:
        executor.close()
        raise
    return executor
