"""State that differs between ranks, saved as one tensor with a row for each rank.

Each rank writes its own row and reads it again at the same world size. At another world size every
rank starts with the mean of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from phalanx.train.state.sharding import StoredTensor
from phalanx.train.state.tree import mapped

_MESHES: dict[str, DeviceMesh] = {}


def row(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's tensor as one row of a tensor over all ranks; it shares memory."""
    mine = tensor.detach().unsqueeze(0)
    if num_ranks() == 1:
        return mine
    kind = tensor.device.type
    if kind not in _MESHES:
        _MESHES[kind] = init_device_mesh(kind, (num_ranks(),))
    return DTensor.from_local(mine, _MESHES[kind], [Shard(0)], run_check=False)


def mine(saved: Any) -> torch.Tensor:
    """Return this rank's row in new memory, or the mean of all rows when the world size changed.

    Raises CheckpointCorrupt.
    """
    shape = tuple(saved.shape)[1:]
    if saved.shape[0] == num_ranks():
        at = dist.get_rank() if num_ranks() > 1 else 0
        if isinstance(saved, StoredTensor):
            return saved.read_region((1, *shape), (at, *(0 for _ in shape)))[0]
        return _whole(saved)[at].clone()
    return mean(saved)


def mean(saved: Any) -> torch.Tensor:
    """Return the mean of all rows in new memory; for integers, the first row.

    Raises CheckpointCorrupt.
    """
    whole = _whole(saved)
    if not whole.is_floating_point():
        return whole[0].clone()
    return whole.to(torch.float64).mean(0).to(whole.dtype)


def as_before(saved: Any) -> bool:
    """Return whether the world size is the one at which the tensor was saved."""
    return bool(saved.shape[0] == num_ranks())


def spread(value: Any) -> Any:
    """Return a state in which `row` has replaced every tensor."""
    return mapped(value, lambda one: row(one) if isinstance(one, torch.Tensor) else one)


def gathered(value: Any, take: Callable[[Any], torch.Tensor]) -> Any:
    """Undo `spread`: apply `take` (`mine` or `mean`) to the rows of every tensor.

    Raises CheckpointCorrupt.
    """
    saved = (torch.Tensor, StoredTensor)
    return mapped(value, lambda one: take(one) if isinstance(one, saved) else one)


def num_ranks() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _whole(saved: Any) -> torch.Tensor:
    if isinstance(saved, StoredTensor):
        return saved.read()
    found: torch.Tensor = saved.full_tensor() if isinstance(saved, DTensor) else saved
    return found
