"""Pools beside this machine's own: their files in the home, and the executors behind them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import ServerError
from phalanx.executors import local
from phalanx.executors.protocol import Executor
from phalanx.kit.ids import random_hex
from phalanx.launch.durable import write_file
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.ray_pools import RayPool, read_pool

_FOLDER = "pools"
_OWNER = "owner"
# A cluster that does not answer within this time is waited for in the background.
_READY_S = 20.0


def build_all(home: HomeLayout, given: Sequence[Path]) -> dict[str, Executor]:
    """Take in the given files, and build an executor for every pool of this home.

    Raises SpecInvalid for a file that is not a pool's, ServerError when Ray is not installed.
    """
    folder = home.root / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in given:
        pool = read_pool(path)
        if pool.name == local.POOL:
            raise ServerError(f"{path}: the name {local.POOL} is taken by this machine's own pool")
        # Read first: it may be the very file that was taken in before.
        write_file(folder / f"{pool.name}.yaml", path.read_bytes())
    found = [read_pool(path) for path in sorted(folder.glob("*.yaml"))]
    if not found:
        return {}
    owner = _owner(folder)
    return {pool.name: _ray(home, pool, owner) for pool in found}


def _owner(folder: Path) -> str:
    """By which name this home is known in the clusters; kept, so that attempts are found again."""
    path = folder / _OWNER
    if not path.exists():
        write_file(path, f"{random_hex(8)}\n".encode())
    return path.read_text().strip()


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
