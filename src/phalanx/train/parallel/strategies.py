"""Strategies of one dimension: a single rank, replicas (DDP), shards of every parameter (FSDP2).

A strategy wraps models, says which micro-batch reduces gradients, and keeps buffers equal. Checkpoints
do not depend on it: `state.sharding` finds any part of any tensor. `grid` and `pipeline` have the
strategies of several dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from phalanx.train.gang.groups import ControlChannel
from phalanx.train.numerics import gradients
from phalanx.train.parallel import materialize, replica
from phalanx.train.settings import RunOptions
from phalanx.train.state.per_rank import num_ranks

LossFn = Callable[[Any, Any], torch.Tensor]


class Strategy:
    """How the ranks of a gang hold a model. Every rank makes the same calls.

    The methods here are those of ranks that hold the whole model and reduce nothing.
    """

    name: str
    #: (rank, number) among the ranks that hold the same layers; None: all ranks do
    place: tuple[int, int] | None = None

    def receive(self, model: nn.Module, device: torch.device, options: RunOptions) -> None:
        """Allocate a new model, where the strategy holds it whole.

        Raises NotSupported for a module without memory and without `reset_parameters`.
        """
        materialize.materialize_model(model, device, options.seed)

    def wrap(self, model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
        """Return the model to train with, which the script gets."""
        return model

    def adopt(self, optimizer: Optimizer) -> None:
        """Replace an optimizer's parameters by those that `wrap` made."""

    def watch(self, scale: replica.GradientScale, model: nn.Module) -> None:
        """Scale the gradients of a model that `wrap` returned."""
        scale.watch(replica.unwrapped(model))

    def start_share(self, models: Iterable[nn.Module], first: bool, last: bool) -> None:
        """Start a micro-batch, which may be the first or the last of its step."""

    def send_buffers(self, models: Iterable[nn.Module]) -> None:
        """Send rank 0's buffers to every rank."""

    def reduces(self, models: Iterable[nn.Module]) -> bool:
        """Return whether every step reduces gradients over all ranks."""
        return False

    def compute(
        self,
        model: nn.Module,
        inputs: Sequence[torch.Tensor],
        target: Any,
        loss_fn: LossFn,
        backward: Callable[[torch.Tensor], None],
        factor: Callable[[], float],
    ) -> torch.Tensor:
        """Compute the loss of one batch, and its gradients where they are enabled.

        Gradients come from `backward(loss)`, or from losses that are multiplied by `factor`.
        """
        loss = loss_fn(model(*inputs), target)
        if torch.is_grad_enabled():
            backward(loss)
        return loss.detach()

    def norm(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the norm of all ranks' gradients together, once they are reduced."""
        return gradients.gradient_norm(parameters)

    def completed(self, state: dict[str, Any], channel: ControlChannel) -> dict[str, Any]:
        """Return the state with the tensors that other ranks hold, numbered alike on all ranks."""
        return state


class SingleRank(Strategy):
    """The strategy of one rank."""

    name = "single"


class IndependentReplicas(Strategy):
    """Independent replicas that start from rank 0's weights; `rounds` averages them later."""

    def __init__(self, name: str) -> None:
        """Create the strategy; checkpoints record `name`."""
        self.name = name

    def wrap(self, model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
        """Return the same module, with rank 0's weights."""
        if num_ranks() > 1:
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    dist.broadcast(tensor, src=0)
        return model


class ReplicaStrategy(Strategy):
    """The strategy of replicas: every rank holds the whole model."""

    name = "ddp"

    def wrap(self, model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
        """Return the model as one of several replicas."""
        return replica.replicate(model, device, options)

    def start_share(self, models: Iterable[nn.Module], first: bool, last: bool) -> None:
        """Reduce gradients in the last micro-batch of a step only."""
        for model in models:
            if isinstance(model, replica.Replica):
                model.start_share(first, last)

    def send_buffers(self, models: Iterable[nn.Module]) -> None:
        """Send rank 0's buffers to every rank."""
        for model in models:
            if isinstance(model, replica.Replica):
                model.send_buffers()

    def reduces(self, models: Iterable[nn.Module]) -> bool:
        """Return whether a replica has trainable parameters."""
        return any(isinstance(model, replica.Replica) for model in models)


class ShardStrategy(Strategy):
    """The strategy of shards: every rank holds a part of each parameter, gathered block by block.

    Blocks are the members of every `nn.ModuleList`, and the model itself.
    """

    name: str = "fsdp"

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Create the strategy; `options` are further arguments of `fully_shard`."""
        self._options = options
        # Weak: what an optimizer no longer names may give its memory back.
        self._moved: MutableMapping[Any, nn.Parameter] = WeakIdKeyDictionary()
        self._optimizers: list[Optimizer] = []

    def receive(self, model: nn.Module, device: torch.device, options: RunOptions) -> None:
        """Allocate a whole model only when it is not sharded."""
        if not replica.learns(model):
            materialize.materialize_model(model, device, options.seed)

    def wrap(self, model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
        """Return the same module, sharded in place block by block, with rank 0's weights.

        Parameters that the script still holds from before are empty afterwards.
        """
        if not replica.learns(model):
            return model
        materialize.return_large_blocks(device)
        maker = materialize.Materializer(model, device, options.seed)
        before = dict(model.named_parameters())
        shard = self._sharder(model, device)
        for part in [*blocks(model), model]:
            whole = self._begin_equal(part, maker)
            shard(part)
            materialize.free_replaced(model, whole)
        self._remember(before, model)
        return model

    def _sharder(self, model: nn.Module, device: torch.device) -> Callable[[nn.Module], object]:
        """Return a function that shards a part of the model in place."""
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        return lambda part: fully_shard(part, mesh=mesh, **self._options)

    def _begin_equal(self, part: nn.Module, maker: materialize.Materializer) -> list[nn.Parameter]:
        """Broadcast rank 0's weights of a part of the model; returns those that are not split yet."""
        maker.make(part)
        whole = [one for one in part.parameters() if not isinstance(one, DTensor)]
        with torch.no_grad():
            for tensor in [*whole, *part.buffers()]:
                dist.broadcast(tensor, src=0)
        return whole

    def _remember(self, before: Mapping[str, nn.Parameter], model: nn.Module) -> None:
        self._moved.update({before[name]: new for name, new in model.named_parameters()})
        for optimizer in self._optimizers:
            self._repoint(optimizer)

    def adopt(self, optimizer: Optimizer) -> None:
        """Replace an optimizer's parameters by those that `wrap` made.

        What it kept of those goes along. Raises NotSupported where that cannot be split as they were.
        """
        self._optimizers.append(optimizer)
        self._repoint(optimizer)

    def _repoint(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._moved.get(one, one) for one in group["params"]]
        for old in [one for one in optimizer.state if one in self._moved]:
            new, kept = self._moved[old], optimizer.state.pop(old)
            # A rank of another pipeline stage neither has the parameter nor needs its state.
            if not new.is_meta:
                optimizer.state[new] = materialize.split_state(kept, new, type(optimizer).__name__)

    def watch(self, scale: replica.GradientScale, model: nn.Module) -> None:
        """Scale the gradients of its outputs: those of gathered parameters pass no hook of the shards."""
        scale.watch_outputs(model)

    def start_share(self, models: Iterable[nn.Module], first: bool, last: bool) -> None:
        """Reduce in the last micro-batch only; each step starts with rank 0's buffers."""
        for model in models:
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
                if first:
                    _broadcast_buffers(model)

    def send_buffers(self, models: Iterable[nn.Module]) -> None:
        """Send rank 0's buffers to every rank."""
        for model in models:
            if isinstance(model, FSDPModule):
                _broadcast_buffers(model)

    def reduces(self, models: Iterable[nn.Module]) -> bool:
        """Return whether a model is sharded."""
        return any(isinstance(model, FSDPModule) for model in models)


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that are gathered at once: the members of every `nn.ModuleList`."""
    found = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            found += [one for one in module if any(True for _ in one.parameters())]
    # Inner blocks first: a parameter belongs to the innermost.
    return list(reversed(list(dict.fromkeys(found))))


def _broadcast_buffers(model: nn.Module) -> None:
    with torch.no_grad():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
