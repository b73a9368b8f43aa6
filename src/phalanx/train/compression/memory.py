"""What error feedback remembers: for each parameter, what this rank has not sent yet.

Kept in the units of true gradients, whatever a loss scale multiplies them by, and taken over only when
the step that used it was applied: a step that is skipped or computed again leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from phalanx.train.sharding import StoredTensor


class Residuals:
    """One tensor per parameter and rank."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._pending: dict[str, torch.Tensor] = {}
        self._spare: dict[str, torch.Tensor] = {}
        self._mesh: DeviceMesh | None = None

    def add(self, name: str, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """Gradient / scale + what is owed, in a buffer that is from now on what will be owed.

        The caller takes away from it what it sends.
        """
        held = self._pending.get(name)
        if held is None:
            held = self._spare.pop(name, None)
            if held is None:
                held = torch.empty_like(gradient, memory_format=torch.contiguous_format)
            kept = self._kept.get(name)
            if kept is None:
                held.zero_()
            else:
                held.copy_(kept)
            self._pending[name] = held
        held.add_(gradient, alpha=1.0 / scale)
        return held

    def settle(self, applied: bool) -> None:
        """The step is over: keep what it left behind, or forget that it was."""
        for name, tensor in self._pending.items():
            other = self._kept.get(name)
            if applied:
                self._kept[name] = tensor
                tensor = other if other is not None else torch.empty_like(tensor)
            self._spare[name] = tensor
        self._pending.clear()

    def state_dict(self) -> dict[str, Any]:
        """One tensor per parameter with a row for every rank, laid out over the ranks."""
        if not self._kept:
            return {}
        if self._mesh is None:
            device = next(iter(self._kept.values())).device
            self._mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        return {name: _row(tensor, self._mesh) for name, tensor in sorted(self._kept.items())}

    def load_state_dict(
        self, state: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Put it back. At another number of ranks each owes the mean: the sum that all owe together,

        per rank, stays the same.
        """
        for name, saved in state.items():
            live = torch.zeros_like(parameters[name], memory_format=torch.contiguous_format)
            self._kept[name] = live.copy_(_mine(saved, tuple(live.shape)))


def _row(tensor: torch.Tensor, mesh: Any) -> DTensor:
    return DTensor.from_local(tensor.unsqueeze(0), mesh, [Shard(0)], run_check=False)


def _mine(saved: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """This rank's row, or the mean of all rows where they are not as many as there are ranks."""
    same = saved.shape[0] == dist.get_world_size()
    if isinstance(saved, StoredTensor):
        if same:
            start = (dist.get_rank(), *(0 for _ in shape))
            return saved.read_box((1, *shape), start)[0]
        return saved.read().to(torch.float64).mean(0)
    whole: torch.Tensor = saved.full_tensor() if isinstance(saved, DTensor) else saved
    return whole[dist.get_rank()] if same else whole.to(torch.float64).mean(0)
