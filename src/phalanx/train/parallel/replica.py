"""Data parallel replicas that reduce gradients in the same order after a restart.

DDP groups gradients into buckets by registration order, and regroups them by arrival order after its
first backward pass. A restarted run would therefore reduce its first step in another order, and with
three ranks or more the sums differ in their last bits. `freeze_buckets` does the regrouping at once,
in registration order, so that it never happens later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from phalanx.train.settings import RunOptions


class Replica(DistributedDataParallel):
    """DistributedDataParallel without buffer broadcasts in evaluation.

    Ranks evaluate shares of different length, or only rank 0 does; a broadcast per forward pass would
    pair the wrong calls or wait for ever. Buffers are sent at the end of each pass instead.
    """

    def _check_sync_bufs_pre_fwd(self) -> bool:
        return self.training and bool(super()._check_sync_bufs_pre_fwd())  # type: ignore[no-untyped-call]

    def start_share(self, first: bool, last: bool) -> None:
        """Reduce gradients in the last micro-batch of a step only; take rank 0's buffers in the first.

        After an evaluation DDP takes the buffers for equal; in a restarted run it would not.
        """
        self.require_backward_grad_sync = last
        if first:
            self.require_forward_param_sync = True

    def send_buffers(self) -> None:
        """Send rank 0's buffers to every rank. Collective."""
        if len(self.modules_buffers) > 0:
            self._sync_buffers()  # type: ignore[no-untyped-call]


def learns(model: nn.Module) -> bool:
    """Return whether the model has trainable parameters."""
    return any(parameter.requires_grad for parameter in model.parameters())


def replicate(model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
    """Wrap the model as one of several replicas; a model without trainable parameters is unchanged."""
    if not learns(model):
        return model
    ids = [device.index] if device.type == "cuda" else None
    replica = Replica(model, device_ids=ids, **options.ddp)
    # With unused parameters to find, DDP never regroups.
    if options.exact and not options.ddp.get("find_unused_parameters"):
        freeze_buckets(replica)
    return replica


def freeze_buckets(replica: DistributedDataParallel) -> None:
    """Do DDP's only regrouping of buckets now, the same in every generation. Collective."""
    push = getattr(replica.reducer, "_push_all_rebuilt_params", None)
    if push is None:
        regroup_by_backward(replica)
    else:
        push()
        replica.reducer._rebuild_buckets()


def regroup_by_backward(replica: DistributedDataParallel) -> None:
    """Regroup the buckets by one backward pass that leaves no gradient."""
    replica.reducer.prepare_for_forward()
    replica.reducer.prepare_for_backward([])
    wanted = [parameter for parameter in replica.parameters() if parameter.requires_grad]
    torch.stack([parameter.sum() * 0 for parameter in wanted]).sum().backward()  # type: ignore[no-untyped-call]
    replica.zero_grad(set_to_none=True)
    replica.reducer._rebuild_buckets()


class GradientScale:
    """A factor on gradients, applied as they are computed, before they are accumulated.

    A factor of 1 costs nothing: the hooks are only there while it is something else.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._models: list[nn.Module] = []
        self._handles: list[Callable[[], None]] = []

    def watch(self, model: nn.Module) -> None:
        """Scale the gradients of this model's parameters."""
        self._models.append(model)

    def watch_outputs(self, model: nn.Module) -> None:
        """Scale the gradients of this model's outputs, where parameters have no hooks."""

        def hook(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.requires_grad:
                tensor.register_hook(self._scaled_if_asked)  # type: ignore[no-untyped-call]
            return tensor

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            return tree_map_only(torch.Tensor, hook, output)

        model.register_forward_hook(after)

    def _scaled_if_asked(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return None if self.factor == 1.0 else self._scaled(gradient)

    def set(self, factor: float) -> None:
        """Set the factor of the following backward passes."""
        self.factor = factor
        if factor == 1.0:
            for remove in self._handles:
                remove()
            self._handles.clear()
        elif not self._handles:
            for model in self._models:
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        handle = parameter.register_hook(self._scaled)  # type: ignore[no-untyped-call]
                        self._handles.append(handle.remove)

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        # Not `gradient * 0`: a spare rank's NaN must not reach the others.
        return torch.zeros_like(gradient) if self.factor == 0.0 else gradient * self.factor


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's own module."""
    return model.module if isinstance(model, DistributedDataParallel) else model
