"""Layouts of several dimensions: tensor parallel layers inside, shards or replicas outside.

All of it is torch's own: `parallelize_module` over the mesh's `tp` dimension, then `fully_shard` over the
others. Parameters become DTensors, so checkpoints fit any other layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from phalanx.core.gang.meshes import DIMENSIONS, Layout
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.train.parallel.strategies import ShardStrategy

# The sequence is the second dimension of activations: batch × sequence × width.
_SEQUENCE = Shard(1)
STYLES: Mapping[str, Any] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    # For a layer such as the last, of which every rank needs the whole output.
    "colwise_gather": lambda: ColwiseParallel(output_layouts=Replicate()),
    # Between sequence parallel layers: split on the way out, gathered on the way in.
    "rowwise_sequence": lambda: RowwiseParallel(output_layouts=_SEQUENCE),
    "sequence": SequenceParallel,
    "split_sequence": lambda: PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=_SEQUENCE, use_local_output=True
    ),
    "gather_sequence": lambda: PrepareModuleInput(
        input_layouts=_SEQUENCE, desired_input_layouts=Replicate(), use_local_output=True
    ),
    "embedding": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_sequence": lambda: RowwiseParallel(
        input_layouts=Replicate(), output_layouts=_SEQUENCE
    ),
}


class GridStrategy(ShardStrategy):
    """The strategy of tensor parallel ranks inside, shards and replicas outside."""

    def __init__(self, layout: Layout, plan: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Create the strategy.

        `plan` maps patterns of module names to `STYLES` or torch's own; empty: the model's attribute
        `tp_plan`. `options` are further arguments of `fully_shard`.
        """
        super().__init__(options)
        self.name = str(layout)
        self._layout, self._plan = layout, plan
        self._mesh: DeviceMesh | None = None

    def _sharder(self, model: nn.Module, device: torch.device) -> Callable[[nn.Module], object]:
        """Return a function that splits and shards a part. Raises SpecInvalid without a plan."""
        mesh, left = self._the_mesh(device), self._to_split(model)

        def shard(part: nn.Module) -> None:
            self._split_layers(part, left, mesh)
            if self._layout.num_places > 1:
                fully_shard(part, mesh=self._outer(mesh), **self._options)

        return shard

    def _to_split(self, model: nn.Module) -> dict[nn.Module, ParallelStyle]:
        """Return the style of each module that the plan names. Raises SpecInvalid without a plan."""
        if self._layout.tp == 1:
            return {}
        chosen = self._plan or getattr(model, "tp_plan", None) or {}
        modules = dict(model.named_modules())
        return {modules[name]: style for name, style in styles(model, chosen).items()}

    def _split_layers(
        self, part: nn.Module, left: dict[nn.Module, ParallelStyle], mesh: DeviceMesh
    ) -> None:
        """Split the layers of a part that are still in `left` over the tensor parallel ranks."""
        for module in part.modules():
            if (style := left.pop(module, None)) is not None:
                parallelize_module(module, mesh["tp"], style)

    def _outer(self, mesh: DeviceMesh) -> DeviceMesh:
        """Return the mesh over which parameters are sharded and replicated."""
        return mesh["dp", "fsdp"] if self._layout.dp > 1 else mesh["fsdp"]

    def _the_mesh(self, device: torch.device) -> DeviceMesh:
        if self._mesh is None:
            names = DIMENSIONS if self._layout.pp > 1 else DIMENSIONS[1:]
            shape = tuple(getattr(self._layout, name) for name in names)
            self._mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        return self._mesh

    def reduces(self, models: Iterable[nn.Module]) -> bool:
        """Return whether gradients of all ranks are reduced; never with tensor parallel layers."""
        return self._layout.tp == 1 and super().reduces(models)


def styles(model: nn.Module, plan: Mapping[str, Any]) -> dict[str, ParallelStyle]:
    """Return the style of each module that a pattern matches. Raises SpecInvalid for unmatched patterns."""
    names = [name for name, _ in model.named_modules() if name]
    found: dict[str, ParallelStyle] = {}
    problems = []
    for pattern, style in plan.items():
        fitting = [name for name in names if fnmatchcase(name, pattern)]
        if not fitting:
            near = nearest(pattern, names)
            hint = f"; did you mean {near}?" if near else ""
            problems.append(Problem(f"tp_plan.{pattern}", f"matches no module of the model{hint}"))
        if isinstance(style, str) and style not in STYLES:
            problems.append(
                Problem(f"tp_plan.{pattern}", f"must be one of {', '.join(STYLES)}", style)
            )
            continue
        for name in fitting:
            found[name] = STYLES[style]() if isinstance(style, str) else style
    if not plan:
        text = "is required with tp: a style for each module to split, such as {'*.fc1': 'colwise'}"
        problems.append(Problem("tp_plan", text))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return found
