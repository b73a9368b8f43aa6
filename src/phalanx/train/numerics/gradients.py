"""Gradient norms over ranks, and clipping."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all gradients together, for `whole` and for clipping."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for one in parameters:
        if one.grad is not None:
            mesh = getattr(one.grad, "device_mesh", None)
            kinds.setdefault(mesh, []).append(one.grad)
    if len(kinds) < 2:
        return nn.utils.get_total_norm([one for row in kinds.values() for one in row])
    # Tensors of different meshes do not mix: each kind's norm is put together from its own ranks.
    norms = [_full(nn.utils.get_total_norm(row)) for row in kinds.values()]
    together: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together


def norm_over(
    parameters: Iterable[torch.Tensor], group: dist.ProcessGroup, device: torch.device
) -> torch.Tensor:
    """Return the norm of gradients that are distributed over the ranks of `group`. Collective.

    Every rank adds the same numbers in the same order, so all get the same bits.
    """
    mine = _full(gradient_norm(parameters)).detach().to(device, torch.float64).reshape(1)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    together: torch.Tensor = torch.linalg.vector_norm(torch.cat(rows))
    return together.to(torch.float32)


def whole(norm: torch.Tensor) -> float:
    """Return the norm as a number; that of sharded gradients is reduced over all ranks."""
    return float(_full(norm))


def _full(norm: torch.Tensor) -> torch.Tensor:
    full = getattr(norm, "full_tensor", None)
    found: torch.Tensor = norm if full is None else full()
    return found


def clip(parameters: Iterable[torch.Tensor], most: float, norm: torch.Tensor) -> None:
    """Scale gradients of norm `norm` so that it is at most `most`, as torch does."""
    parameters = list(parameters)
    gradients = [one.grad for one in parameters if one.grad is not None]
    meshes = {getattr(one, "device_mesh", None) for one in gradients}
    if not meshes or meshes == {getattr(norm, "device_mesh", None)}:
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return
    factor = min(1.0, most / (whole(norm) + 1e-6))
    for one in gradients:
        own_part(one).mul_(factor)


def own_part(gradient: torch.Tensor) -> torch.Tensor:
    """Return this rank's local part of a gradient, as a view."""
    found: torch.Tensor = getattr(gradient, "to_local", lambda: gradient)()
    return found


def scale(models: Iterable[nn.Module], factor: float) -> None:
    """Multiply every gradient by a factor."""
    for model in models:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
