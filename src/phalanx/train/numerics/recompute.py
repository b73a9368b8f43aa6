"""Activation checkpointing: outputs of blocks are discarded and recomputed in the backward pass.

Trades about a third more computing for the memory of activations. Random numbers are drawn again as
they were, and statistics of batch norms, which the second forward pass would count twice, are put back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from phalanx.errors import Problem, SpecInvalid


def recompute_blocks(model: nn.Module, names: bool | Sequence[str]) -> int:
    """Recompute the blocks of these class names; returns how many.

    With True: every element of the model's module lists and sequences. Raises SpecInvalid for no block.
    """
    if names is False:
        return 0
    chosen = _repeated(model) if names is True else _named(model, set(names))
    if not chosen:
        wanted = "a ModuleList or Sequential" if names is True else f"any of {', '.join(names)}"
        problem = Problem("activation_checkpointing", f"the model does not contain {wanted}")
        raise SpecInvalid([problem], "name the classes of the blocks to recompute")
    for block in chosen:
        _recompute(block)
    return len(chosen)


def _repeated(model: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for module in model.children():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            found += [one for one in module if any(True for _ in one.parameters())]
        else:
            found += _repeated(module)
    return found


def _named(model: nn.Module, names: set[str]) -> list[nn.Module]:
    """Return the outermost modules of these classes: nested blocks are recomputed with them."""
    found: list[nn.Module] = []
    for module in model.children():
        found += [module] if type(module).__name__ in names else _named(module, names)
    return found


def _recompute(block: nn.Module) -> None:
    inner = block.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and block.training):
            return inner(*args, **kwargs)
        return checkpoint(
            inner, *args, use_reentrant=False, context_fn=lambda: _contexts(block), **kwargs
        )

    object.__setattr__(block, "forward", forward)


def _contexts(block: nn.Module) -> tuple[Any, Any]:
    return contextlib.nullcontext(), buffers_kept(block)


@contextlib.contextmanager
def buffers_kept(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers at the end of the block."""
    held = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in held:
                buffer.copy_(before)
