"""Materialization of models made under `torch.device("meta")`, part by part.

What is sharded never has to lie whole on one rank then.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from phalanx.errors import NotSupported
from phalanx.train.gang import context, randomness
from phalanx.train.state.sharding import region_of

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 4 << 20


class Materializer:
    """Allocates a model's modules on a device, and initializes weights that have no memory.

    A module's weights depend on the seed and on its name alone: they are the same under every strategy.
    """

    def __init__(self, model: nn.Module, device: torch.device, seed: int) -> None:
        """Raise NotSupported for a module without memory and without `reset_parameters`."""
        self._device, self._seed = device, seed
        self._names = {id(module): name for name, module in model.named_modules()}
        unmade = [
            f"{name or 'the model'} ({type(module).__name__})"
            for name, module in model.named_modules()
            if _hollow(module) and _reset_of(module) is None
        ]
        if unmade:
            raise NotSupported(
                f"{', '.join(unmade[:3])}: on the meta device, without a method reset_parameters()",
                "give such modules a reset_parameters() for their own parameters and buffers, or make"
                ' the model outside of torch.device("meta")',
            )

    def make(self, part: nn.Module) -> None:
        """Materialize a part of the model; parameters stay the same objects."""
        # A parent's reset may set something of its children right, so children come first.
        for module in reversed(list(part.modules())):
            hollow = _hollow(module)
            if not hollow:
                continue
            for tensor in hollow:
                _give_memory(tensor, self._device)
            reset = _reset_of(module)
            assert reset is not None
            name = self._names[id(module)]
            with randomness.undisturbed(), torch.no_grad():
                torch.manual_seed(randomness.mix(self._seed, zlib.crc32(name.encode())))
                reset()
        for module in part.modules():
            self._move(module)

    def _move(self, module: nn.Module) -> None:
        """Move a module's own tensors to the device, except shards."""
        for parameter in module._parameters.values():
            if parameter is not None and not isinstance(parameter, DTensor):
                parameter.data = parameter.data.to(self._device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(self._device)


def materialize_model(model: nn.Module, device: torch.device, seed: int) -> None:
    """Materialize the whole model. Raises NotSupported as `Materializer` does."""
    Materializer(model, device, seed).make(model)
    model.to(device)


def free_replaced(model: nn.Module, before: Iterator[nn.Parameter] | list[nn.Parameter]) -> None:
    """Free the memory of parameters that are no longer the model's, even if they are still referenced."""
    still = {id(one) for one in model.parameters()}
    for parameter in before:
        if id(parameter) not in still:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


def split_state(state: Mapping[str, Any], owner: nn.Parameter, optimizer: str) -> dict[str, Any]:
    """Shard an optimizer's state of a whole parameter as `owner` is sharded.

    Every rank cuts its part out of what it has itself. Raises NotSupported for a tensor of another shape,
    or without memory.
    """
    return {name: _split(value, owner, f"{optimizer}'s {name}") for name, value in state.items()}


def _split(value: Any, owner: nn.Parameter, what: str) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return value
    if not isinstance(owner, DTensor) or (value.dim() == 0 and owner.dim() > 0):
        return value
    if value.is_meta:
        raise NotSupported(
            f"{what} was loaded while the model had no memory, so its numbers are lost",
            'load an optimizer only for a model that is made outside of torch.device("meta")',
        )
    if value.shape != owner.shape:
        raise NotSupported(
            f"{what} has shape {list(value.shape)} for a parameter of shape {list(owner.shape)}:"
            " state from before prepare() cannot be split over the ranks as the parameter is",
            "train with the strategy ddp, or begin with a new optimizer",
        )
    shape, start = region_of(owner)
    part = value.detach()[tuple(slice(at, at + num) for at, num in zip(start, shape, strict=True))]
    own = part.clone(memory_format=torch.contiguous_format).to(owner.device)
    like: dict[str, Any] = {"shape": owner.shape, "stride": owner.stride()}
    return DTensor.from_local(own, owner.device_mesh, owner.placements, run_check=False, **like)


def return_large_blocks(device: torch.device) -> None:
    """Make the C library return large blocks to the system as soon as they are free.

    Shards allocate and free a block's parameters in every pass. By default the C library then keeps up to
    three times the memory in use, as free pieces of sizes that do not fit. Huge pages
    (`context.ask_for_huge_pages`) make up for most of the additional page faults. The variables
    `MALLOC_MMAP_THRESHOLD_` and `GLIBC_TUNABLES` take precedence; without glibc nothing is done.
    """
    if device.type != "cpu" or context.tunes_malloc():
        return
    change: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _hollow(module: nn.Module) -> list[torch.Tensor]:
    """Return the module's own tensors that have no memory."""
    own = [*module._parameters.values(), *module._buffers.values()]
    return [one for one in own if one is not None and one.is_meta]


def _reset_of(module: nn.Module) -> Callable[[], None] | None:
    named = getattr(module, "reset_parameters", None)
    found = named or getattr(module, "_reset_parameters", None)
    return found if callable(found) else None


def _give_memory(tensor: torch.Tensor, device: torch.device) -> None:
    filled = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        filled = nn.Parameter(filled, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, filled)  # type: ignore[no-untyped-call]
