"""A model as a sequence of layers, cut into pipeline stages.

Layers are the children of an `nn.Sequential`, or the modules that the model's attribute `pipeline_layers`
names: they are called one after another, each with the output of the one before; members of module lists
and sequences count one by one. Parameters of other ranks' layers stay in the model without memory, so
state dictionaries, optimizers and checkpoints have the same names on every rank.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from phalanx.core.training import pipelines
from phalanx.errors import NotSupported, Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.train.gang import randomness

_ATTRIBUTE = "pipeline_layers"


@dataclass(frozen=True, slots=True)
class PipelineLayer:
    """One layer of the sequence."""

    name: str
    module: nn.Module


def layers_of(model: nn.Module) -> list[PipelineLayer]:
    """Return the model's layers in call order. Raises SpecInvalid where that is not known."""
    names = getattr(model, _ATTRIBUTE, None)
    if names is None:
        if isinstance(model, nn.Sequential):
            return _members(model, "")
        said = (
            f"pp cannot cut a {type(model).__name__}: give it an attribute {_ATTRIBUTE}, the names of"
            " modules called one after another, or make it an nn.Sequential"
        )
        raise _wrong("strategy", said)
    known = dict(model.named_modules())
    found: list[PipelineLayer] = []
    for name in names:
        module = known.get(name)
        if module is None:
            near = nearest(str(name), list(known))
            hint = f"; did you mean {near}?" if near else ""
            raise _wrong(_ATTRIBUTE, f"{name} is not a module of the model{hint}")
        if isinstance(module, nn.ModuleList | nn.Sequential):
            found += _members(module, f"{name}.")
        else:
            found.append(PipelineLayer(name, module))
    _check_whole(model, found)
    return found


def _members(sequence: nn.Module, prefix: str) -> list[PipelineLayer]:
    named = sequence._modules.items()
    return [PipelineLayer(f"{prefix}{name}", one) for name, one in named if one is not None]


def _check_whole(model: nn.Module, layers: Sequence[PipelineLayer]) -> None:
    """Check that every parameter and buffer lies in a layer."""
    inside = {id(one) for layer in layers for _, one in _named_tensors(layer.module)}
    outside = [name for name, one in _named_tensors(model) if id(one) not in inside]
    if outside:
        raise _wrong(_ATTRIBUTE, f"{outside[0]} is in none of the layers; name the module it is in")


def cut(
    layers: Sequence[PipelineLayer], num_stages: int, begins: Sequence[str]
) -> list[list[PipelineLayer]]:
    """Cut the layers into stages: before those named in `begins`, or into equally heavy parts.

    Raises SpecInvalid for cuts that make no sense, and for parameters that two stages would share.
    """
    if begins:
        names = [layer.name for layer in layers]
        for name in begins:
            if name not in names:
                near = nearest(name, names)
                hint = f"; did you mean {near}?" if near else f"; known: {', '.join(names[:8])}"
                raise _wrong("pipeline_split", f"{name} is not a layer{hint}")
        if len(begins) != num_stages - 1:
            wanted = f"{num_stages - 1} layers, the first of every stage but the first"
            raise _wrong("pipeline_split", f"must name {wanted}, not {len(begins)}")
        edges = [0, *sorted(names.index(name) for name in begins)]
    else:
        weights = [
            1 + sum(one.numel() for _, one in _named_tensors(layer.module)) for layer in layers
        ]
        try:
            edges = pipelines.cuts(weights, num_stages)
        except ValueError as error:
            raise _wrong("strategy", f"pp: {error}") from None
    parts = [list(layers[a:b]) for a, b in zip(edges, [*edges[1:], len(layers)], strict=True)]
    _check_apart(parts)
    return parts


def _check_apart(parts: Sequence[Sequence[PipelineLayer]]) -> None:
    owner: dict[int, int] = {}
    for number, part in enumerate(parts):
        if not part:
            raise _wrong("pipeline_split", f"stage {number} would have no layer")
        for layer in part:
            for name, one in _named_tensors(layer.module):
                if owner.setdefault(id(one), number) != number:
                    said = f"{layer.name}.{name} is shared with stage {owner[id(one)]}"
                    rule = "layers that share weights have to be on one stage, see pipeline_split"
                    raise _wrong("strategy", f"pp: {said}; {rule}")


def _named_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _wrong(what: str, text: str) -> SpecInvalid:
    return SpecInvalid([Problem(what, text)], "these are arguments of phalanx.train.init")


def free_memory(module: nn.Module) -> None:
    """Replace a module's tensors by ones without memory, in place; shapes and names stay."""
    for one in module.modules():
        for name, parameter in one._parameters.items():
            if parameter is not None and not parameter.is_meta:
                one._parameters[name] = meta_parameter(parameter)
        for name, buffer in one._buffers.items():
            if buffer is not None:
                one._buffers[name] = to_meta(buffer)


class StageShapes:
    """The shapes of tensors between stages, from a forward pass without memory."""

    def __init__(self, stages: Sequence[Sequence[PipelineLayer]]) -> None:
        """Copy the stages' modules before they are changed."""
        self._stages = [meta_copy(stage_module(stage)) for stage in stages]

    def between(self, micro_batch: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Return the inputs of the first stage, then the outputs of each, as tensors without memory.

        Raises NotSupported where the model needs values to know its shapes.
        """
        value: tuple[torch.Tensor, ...] = tuple(to_meta(one) for one in micro_batch)
        found = [value]
        for number, stage in enumerate(self._stages):
            try:
                with randomness.undisturbed():
                    put_out = stage(*value)
            except Exception as error:
                raise NotSupported(
                    f"pipeline stage {number} has no output shape that is known without data: {error}",
                    "the forward pass must not depend on values, and must return only tensors",
                ) from error
            value = put_out if isinstance(put_out, tuple) else (put_out,)
            found.append(value)
        return found


class StageModule(nn.Sequential):
    """A stage: layers called in sequence; several outputs are the next layer's inputs."""

    def forward(self, *args: Any) -> Any:
        """Return the output of the last layer."""
        for module in self:
            found = module(*args)
            args = found if isinstance(found, tuple) else (found,)
        return found


def stage_module(layers: Sequence[PipelineLayer]) -> StageModule:
    """Make a stage from layers, which stay shared with their model."""
    return StageModule(*(layer.module for layer in layers))


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape without memory."""
    found = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return found.requires_grad_(tensor.requires_grad)


def meta_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter of the same shape without memory."""
    return nn.Parameter(to_meta(parameter.detach()), parameter.requires_grad)


def meta_copy(module: nn.Module) -> nn.Module:
    """Copy a module with tensors without memory."""
    memo: dict[int, Any] = {id(one): meta_parameter(one) for one in module.parameters()}
    memo |= {id(one): to_meta(one) for one in module.buffers()}
    copied = copy.deepcopy(module, memo)
    for one in copied.modules():
        # A forward pass replaced on the instance belongs to the original.
        one.__dict__.pop("forward", None)
    return copied
