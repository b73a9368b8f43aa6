"""Batch norm over the whole gang, on CPU and GPU, weighted by the ranks' shares.

torch's own SyncBatchNorm refuses CPU tensors and takes every rank's gradient for equally important.
Here ranks' means and squared deviations are merged in rank order (Welford, Chan), so all ranks compute
the same bits, and equal those of one process that holds the concatenated batch. A spare rank's sample
counts in nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class GradientWeight(Protocol):
    """The weight of this rank's gradient in the current micro-batch; 0 for a spare rank."""

    @property
    def factor(self) -> float:
        """Return the factor of the current micro-batch."""
        ...


class StatisticsGroup:
    """The process group of the statistics, with the weight of this rank's share."""

    def __init__(self, group: dist.ProcessGroup | None, weight: GradientWeight) -> None:
        self._group, self._weight = group, weight
        self.world_size = dist.get_world_size(group)

    @property
    def factor(self) -> float:
        """Return the factor of this rank's gradient in the current micro-batch."""
        return self._weight.factor

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Gather the rows of all ranks, in rank order."""
        rows = row.new_empty(self.world_size * row.numel())
        dist.all_gather_into_tensor(rows, row, group=self._group)
        return rows.view(self.world_size, -1)


def merged(rows: torch.Tensor, num_features: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Merge the ranks' (mean, squared deviations, count) into mean, biased variance and count."""
    mean = torch.zeros_like(rows[0, :num_features])
    deviation = torch.zeros_like(mean)
    total = 0.0
    for row in rows:
        count = float(row[-1])
        if count == 0.0:
            continue
        delta = row[:num_features] - mean
        share = count / (total + count)
        deviation = deviation + row[num_features:-1] + delta.square() * (total * share)
        mean = mean + delta * share
        total += count
    return mean, deviation / max(total, 1.0), total


def _columns(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _shaped(row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return row.view([1, -1] + [1] * (x.dim() - 2))


class _Normalize(torch.autograd.Function):
    """The normalization y = (x - mean) * invstd with statistics of the whole gang."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        mean: torch.Tensor,
        invstd: torch.Tensor,
        total: float,
        link: StatisticsGroup,
    ) -> torch.Tensor:
        y = (x - _shaped(mean, x)) * _shaped(invstd, x)
        ctx.save_for_backward(y, invstd)
        ctx.total, ctx.link = total, link
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (dy,) = gradients
        y, invstd = ctx.saved_tensors
        factor = ctx.link.factor
        dims = _columns(dy)
        sums = torch.cat([dy.sum(dims), (dy * y).sum(dims)])
        # Each rank's gradients are of its own mean loss; `factor` makes them comparable, and a spare
        # rank's, which may be anything, never enters.
        rows = ctx.link.gather(sums * factor if factor != 0.0 else torch.zeros_like(sums))
        if factor == 0.0:
            return torch.zeros_like(dy), None, None, None, None
        whole = rows[0]
        for row in rows[1:]:
            whole = whole + row
        means = whole / (factor * ctx.total)
        half = len(means) // 2
        dx = (dy - _shaped(means[:half], dy) - y * _shaped(means[half:], dy)) * _shaped(invstd, dy)
        return dx, None, None, None, None


class SyncedBatchNorm:
    """The forward pass of a converted batch norm, mixed into the user's class."""

    link: StatisticsGroup

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize over all ranks in training, as the user's own batch norm in evaluation."""
        assert isinstance(self, _BatchNorm)
        if not self.training:
            return super().forward(x)  # type: ignore[misc, no-any-return]
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        mean, variance, total = self._statistics(wide.detach())
        _track(self, mean, variance, total)
        invstd = (variance + self.eps).rsqrt()
        y = _Normalize.apply(wide, mean, invstd, total, self.link)  # type: ignore[no-untyped-call]
        if self.weight is not None:
            y = y * _shaped(self.weight, y) + _shaped(self.bias, y)
        return y.to(x.dtype)  # type: ignore[no-any-return]

    def _statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        count = x.numel() // x.size(1) if self.link.factor != 0.0 else 0
        dims = _columns(x)
        if count == 0:
            row = x.new_zeros(2 * x.size(1) + 1)
        else:
            mean = x.mean(dims)
            deviation = (x - _shaped(mean, x)).square().sum(dims)
            row = torch.cat([mean, deviation, mean.new_tensor([float(count)])])
        mean, variance, total = merged(self.link.gather(row), x.size(1))
        if total <= 1.0:
            raise ValueError(f"Expected more than 1 value per channel when training, got {total:g}")
        return mean, variance, total


def _track(norm: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    with torch.no_grad():
        momentum = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(norm.num_batches_tracked)
        momentum = momentum or 0.0
        norm.running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        norm.running_var.mul_(1 - momentum).add_(variance, alpha=momentum * total / (total - 1))


_CLASSES: dict[type, type] = {}


def synchronize(model: nn.Module, link: StatisticsGroup) -> int:
    """Convert every batch norm of the model in place to one over the whole gang; returns how many.

    The objects stay the same, and so do parameters, buffers, their names and references to them.
    """
    num = 0
    for module in model.modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, SyncedBatchNorm):
            continue
        kind = nn.BatchNorm2d if isinstance(module, nn.SyncBatchNorm) else type(module)
        if kind not in _CLASSES:
            _CLASSES[kind] = type(f"Synced{kind.__name__}", (SyncedBatchNorm, kind), {})
        module.__class__ = _CLASSES[kind]
        object.__setattr__(module, "link", link)
        num += 1
    return num
