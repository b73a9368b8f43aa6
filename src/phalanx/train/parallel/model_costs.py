"""Costs of a model, measured without memory: what a step keeps and computes, and how it divides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from phalanx.errors import SpecInvalid
from phalanx.train.numerics.precision import HALF
from phalanx.train.parallel import grid, stages
from phalanx.train.parallel.strategies import blocks

_SPLITTING = ("colwise", "rowwise", "embedding")


@contextlib.contextmanager
def meta_parameters() -> Iterator[None]:
    """Give modules made inside the block parameters without memory."""
    register = nn.Module.register_parameter

    def hollow(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = stages.meta_parameter(param)
        register(self, name, param)

    nn.Module.register_parameter = hollow  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextlib.contextmanager
def flash_attention_costs() -> Iterator[None]:
    """Count attention as flash kernels compute it, without storing the scores of all pairs.

    Without memory torch takes its plain formula, which would count them.
    """
    usual = functional.scaled_dot_product_attention

    def lean(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any
    ) -> torch.Tensor:
        if not (query.is_meta and query.dim() == 4 and key.shape[-1] == value.shape[-1]):
            return usual(query, key, value, *args, **options)
        heads = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(heads, 1) if heads > 1 else one for one in (key, value))
        found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)
        put_out: torch.Tensor = found[0]
        return put_out

    functional.scaled_dot_product_attention = lean
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = usual


class CostRecorder:
    """Records the memory that forward passes keep for the backward pass, and the operations of both."""

    def __init__(self) -> None:
        self._kept: dict[int, torch.UntypedStorage] = {}
        self._own: set[int] = set()
        self._flops = FlopCounterMode(display=False)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda one: one)
        self._counting = contextlib.ExitStack()
        self._counts = self._went_back = False

    def start(self, models: list[nn.Module]) -> None:
        """Start recording; the models' own tensors do not count."""
        for model in models:
            for one in [*model.parameters(), *model.buffers()]:
                self._own.add(one.untyped_storage()._cdata)
        if not self._counts:
            self._counts = True
            self._counting.enter_context(flash_attention_costs())
            self._counting.enter_context(self._flops)
            self._counting.enter_context(self._hooks)

    def saw_backward(self) -> None:
        """Record that the script made its own backward pass."""
        self._went_back = True

    def stop(self) -> None:
        """Stop recording."""
        self._counting.close()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._own:
            # Held, so that no other storage gets its number.
            self._kept[storage._cdata] = storage
        return tensor

    @property
    def kept_bytes(self) -> int | None:
        """Return the bytes kept for one batch; None without a forward pass."""
        return sum(one.nbytes() for one in self._kept.values()) or None

    @property
    def flops(self) -> float | None:
        """Return the operations of one batch, forward and backward; None without a forward pass."""
        found = float(self._flops.get_total_flops())
        # A backward pass costs twice its forward pass.
        return (found if self._went_back else 3 * found) or None

    @property
    def convolved(self) -> float:
        """Return the share of convolutions in the operations."""
        counts = self._flops.get_flop_counts().get("Global", {})
        found = sum(num for kind, num in counts.items() if "convolution" in str(kind))
        return found / max(1, self._flops.get_total_flops())


def bytes_of(tensors: Any) -> int:
    """Return the bytes of all tensors."""
    return sum(one.numel() * one.element_size() for one in tensors)


def cast_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the half-precision copies of matrices that autocast keeps."""
    wide = [one for one in tensors if one.dtype == torch.float32 and one.dim() > 1]
    return sum(2 * one.numel() for one in wide if one.requires_grad)


def computes_in(model: nn.Module, precision: str) -> str:
    """Return the precision of a model's arithmetic: its parameters', where autocast is off."""
    if precision == "fp32" and any(one.dtype in HALF.values() for one in model.parameters()):
        return "bf16"
    return precision


def block_bytes(model: nn.Module) -> int:
    """Return the bytes of the largest part that shards are gathered for at once."""
    sizes = [bytes_of(block.parameters()) for block in blocks(model)]
    return max([bytes_of(model.parameters()) - sum(sizes), *sizes, 0])


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Return an optimizer's bytes, from a step without memory; two copies where that fails."""
    owned = [one for group in optimizer.param_groups for one in group["params"]]
    for one in owned:
        one.grad = torch.empty_like(one) if one.requires_grad else None
    try:
        optimizer.step()
    except Exception:  # any error of a third-party optimizer without values
        return 2 * bytes_of(one for one in owned if one.requires_grad)
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return bytes_of(one for one in kept if isinstance(one, torch.Tensor) and one.dim())


def split_part(model: nn.Module, plan: Mapping[str, Any]) -> float:
    """Return the share of the parameters that tensor parallel ranks divide; 0 without a plan."""
    plan = plan or getattr(model, "tp_plan", None) or {}
    if not plan:
        return 0.0
    modules, found = dict(model.named_modules()), 0
    for pattern, style in plan.items():
        text = style if isinstance(style, str) else type(style).__name__.lower()
        if text.startswith(_SPLITTING):
            for name in grid.styles(model, {pattern: style}):
                found += bytes_of(modules[name].parameters(recurse=False))
    return found / max(1, bytes_of(model.parameters()))


def layer_bytes(model: nn.Module) -> tuple[int, ...]:
    """Return the bytes of each layer; empty where the model cannot be cut into stages."""
    try:
        layers = stages.layers_of(model)
    except SpecInvalid:
        return ()
    return tuple(1 + bytes_of(layer.module.parameters()) for layer in layers)
