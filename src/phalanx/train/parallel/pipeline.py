"""Pipeline parallel training: every rank holds the layers of one stage, micro-batches pass through.

Stages, schedules and the messages between neighbours are torch's (`torch.distributed.pipelining`). Inside
a stage everything is as in `GridStrategy`: tensor parallel layers, shards, replicas. What differs: a batch
goes through `run.pipeline_step`, the norm of gradients is put together from all stages, and a checkpoint
is written by the stages together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.utils._pytree import tree_map_only

from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.core.gang.meshes import Layout
from phalanx.core.training import pipelines
from phalanx.errors import TrainingError
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.numerics import gradients, precision
from phalanx.train.parallel import materialize, replica, stages
from phalanx.train.parallel.grid import GridStrategy
from phalanx.train.parallel.strategies import LossFn, blocks
from phalanx.train.settings import RunOptions
from phalanx.train.state import tree
from phalanx.train.state.tree import dtype_name, dtype_of

Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The settings of a pipeline."""

    schedule: str = "1f1b"
    micro_batches: int | None = None
    split: Sequence[str] = ()
    precision: str = "fp32"


class PipelineStrategy(GridStrategy):
    """The strategy of pipeline stages, with a grid of the other dimensions in each."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        plan: Mapping[str, Any],
        options: Mapping[str, Any],
        pipeline: PipelineOptions,
    ) -> None:
        super().__init__(layout, plan, options)
        self._pipeline_options = pipeline
        self._stage_ranks = [
            [pp * layout.stage_size + one for one in range(layout.stage_size)]
            for pp in range(layout.pp)
        ]
        self._at = layout.coordinates(rank)["pp"]
        self.place = (rank % layout.stage_size, layout.stage_size)
        self._pipelines: dict[nn.Module, Pipeline] = {}
        self._group: dist.ProcessGroup | None = None
        self._stage_group: dist.ProcessGroup | None = None
        self._device = torch.device("cpu")
        self._told = ""
        self._others: list[dict[int, Any]] = []

    def wrap(self, model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
        """Return the same module with the memory of its own stages only, with rank 0's weights.

        Raises SpecInvalid where it cannot be cut, or no plan says what tp splits.
        """
        self._device = device
        num_stages = self._layout.pp * pipelines.chunks(self._pipeline_options.schedule)
        parts = stages.cut(stages.layers_of(model), num_stages, self._pipeline_options.split)
        materialize.return_large_blocks(device)
        maker = materialize.Materializer(model, device, options.seed)
        before = dict(model.named_parameters())
        shapes = stages.StageShapes(parts)
        mesh = self._the_mesh(device)
        left = self._to_split(model)
        mine: dict[int, nn.Module] = {}
        for number, part in enumerate(parts):
            for layer in part:
                whole = self._begin_equal(layer.module, maker)
                self._split_layers(layer.module, left, mesh)
                if number % self._layout.pp != self._at:
                    stages.free_memory(layer.module)
                materialize.free_replaced(model, whole)
            if number % self._layout.pp != self._at:
                continue
            mine[number] = stages.stage_module(part)
            self._shard(mine[number], mesh)
            precision.cast_forward(mine[number], self._pipeline_options.precision, device)
        self._remember(before, model)
        self._group = mesh.get_group("pp")
        self._make_stage_group()
        pipeline = Pipeline(mine, num_stages, shapes, self._pipeline_options, self._group, device)
        self._pipelines[model] = pipeline
        object.__setattr__(model, "forward", pipeline.outputs)
        return model

    def _shard(self, module: nn.Module, mesh: Any) -> None:
        if self._layout.num_places == 1 or not replica.learns(module):
            return
        outer = self._outer(mesh)
        for layer in [*blocks(module), *module.children()]:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=outer, **self._options)
        fully_shard(module, mesh=outer, **self._options)

    def _make_stage_group(self) -> None:
        if self._stage_group is not None or self._layout.stage_size == 1:
            return
        for number, ranks in enumerate(self._stage_ranks):
            group = dist.new_group(ranks)
            if number == self._at:
                self._stage_group = group

    # -- a step ----------------------------------------------------------------------------------

    def compute(
        self,
        model: nn.Module,
        inputs: Sequence[torch.Tensor],
        target: Any,
        loss_fn: LossFn,
        backward: Callable[[torch.Tensor], None],
        factor: Callable[[], float],
    ) -> torch.Tensor:
        """Run one batch through all stages, forward and backward; returns the mean loss on every rank."""
        pipeline = self._pipelines[model]
        if not torch.is_grad_enabled():
            return pipeline.evaluate(inputs, target, loss_fn)
        return pipeline.train(inputs, target, loss_fn, factor())

    def watch(self, scale: replica.GradientScale, model: nn.Module) -> None:
        """Do nothing: `compute` scales the loss."""

    def start_share(self, models: Iterable[nn.Module], first: bool, last: bool) -> None:
        """Send buffers to the ranks of a stage at the start of a step."""
        if first:
            self.send_buffers(models)

    def send_buffers(self, models: Iterable[nn.Module]) -> None:
        """Send the buffers of each stage's first rank to its other ranks."""
        if self._stage_group is None:
            return
        with torch.no_grad():
            for model in models:
                for buffer in model.buffers():
                    if not buffer.is_meta:
                        source = self._stage_ranks[self._at][0]
                        dist.broadcast(buffer, src=source, group=self._stage_group)

    def reduces(self, models: Iterable[nn.Module]) -> bool:
        """Return False: gradients are never reduced over all ranks."""
        return False

    def norm(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the norm of all stages' gradients together. Collective."""
        assert self._group is not None
        return gradients.norm_over(parameters, self._group, self._device)

    # -- state -----------------------------------------------------------------------------------

    def completed(self, state: dict[str, Any], channel: ControlChannel) -> dict[str, Any]:
        """Complete the state with other stages' tensors, without memory, so that all ranks number alike.

        Collective. Only what rank 0 says beside models and optimizers is kept.
        """
        if self._at > 0:
            rest = {key: one for key, one in state.items() if key not in ("models", "optimizers")}
            state = {**state, **_hollowed(rest)}
        held = [one["state"]["state"] for one in state["optimizers"]]
        self._learn(held, channel)
        optimizers = []
        for one, mine, others in zip(state["optimizers"], held, self._others, strict=True):
            whole = dict(sorted({**others, **mine}.items()))
            optimizers.append({**one, "state": {**one["state"], "state": whole}})
        return {**state, "optimizers": optimizers}

    def _learn(self, held: Sequence[Section], channel: ControlChannel) -> None:
        """Exchange the outlines of the optimizers' states over stages, when one has changed."""
        text = json.dumps([_outline(one) for one in held])
        digest = digest_of(canonical({"text": text}))
        if not channel.total([float(digest != self._told)])[0]:
            return
        self._told = digest
        leads = self.place is not None and self.place[0] == 0
        rows = channel.gather(text.encode() if leads else b"")
        told = channel.spread(json.dumps([json.loads(row) for row in rows if row]))
        self._others = [{} for _ in held]
        for row in json.loads(told):
            for others, outline in zip(self._others, row, strict=True):
                others.update(_hollow_state(outline))


def _outline(state: Section) -> dict[str, Any]:
    """Return the outline of an optimizer's state: shapes and types without values."""
    body, leaves = tree.collect(state)
    return {"body": body, "leaves": [[list(one.shape), dtype_name(one.dtype)] for one in leaves]}


def _hollow_state(outline: Section) -> dict[int, Any]:
    leaves = outline["leaves"]

    def tensor(at: int) -> torch.Tensor:
        shape, dtype = leaves[at]
        return torch.empty(shape, dtype=dtype_of(dtype), device="meta")

    found: dict[int, Any] = tree.rebuild(outline["body"], tensor, "an optimizer of another stage")
    return found


def _hollowed(value: Any) -> Any:
    arrays = tree_map_only(np.ndarray, lambda one: torch.empty(one.shape, device="meta"), value)
    return tree_map_only(torch.Tensor, stages.to_meta, arrays)


class Pipeline:
    """One model's stages on this rank, and a schedule for every batch shape."""

    def __init__(
        self,
        mine: Mapping[int, nn.Module],
        num_stages: int,
        shapes: stages.StageShapes,
        options: PipelineOptions,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        """Create the pipeline; `mine` are this rank's stages, `group` has one rank of each stage."""
        self._mine, self._num_stages, self._shapes = mine, num_stages, shapes
        self._pipeline_options, self._group, self._device = options, group, device
        self._num_ranks = dist.get_world_size(group)
        self._schedules: dict[Any, Any] = {}
        self._loss_fn: LossFn | None = None
        self._factor = 1.0
        self._losses: list[torch.Tensor] = []

    @property
    def _first(self) -> bool:
        return 0 in self._mine

    @property
    def _last(self) -> bool:
        return self._num_stages - 1 in self._mine

    def train(
        self, inputs: Sequence[torch.Tensor], target: Any, loss_fn: LossFn, factor: float
    ) -> torch.Tensor:
        """Compute gradients of the mean loss times `factor`; returns the mean loss on every rank."""
        num = self._pieces(inputs)
        self._loss_fn, self._factor = loss_fn, factor / num
        self._losses.clear()
        schedule = self._schedule(inputs, num, self._scaled_loss)
        received = inputs if self._first else ()
        end = {"target": target, "losses": []} if self._last else {}
        schedule.step(*received, **end, return_outputs=False)
        loss = torch.stack(self._losses).mean() if self._losses else None
        return self._spread(loss)

    def evaluate(
        self, inputs: Sequence[torch.Tensor], target: Any, loss_fn: LossFn
    ) -> torch.Tensor:
        """Return the loss of one batch on every rank."""
        found = self._forward(inputs)
        loss = loss_fn(found, target).detach() if self._last else None
        return self._spread(loss)

    def outputs(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the model's output on every rank: the forward pass of a model in stages.

        Raises TrainingError where gradients are wanted.
        """
        if torch.is_grad_enabled():
            raise TrainingError(
                "a model in pipeline stages was called where gradients are computed",
                "write loss = run.pipeline_step(x, target=y, loss_fn=…) in place of the call, the loss and"
                " backward, or call it under torch.no_grad()",
            )
        found = self._forward(inputs)
        like = self._shapes.between([one[:1] for one in inputs])[-1][0]
        if found is None:
            shape = (inputs[0].shape[0], *like.shape[1:])
            found = torch.empty(shape, dtype=like.dtype, device=self._device)
        whole: torch.Tensor = found
        self._broadcast(whole)
        return whole

    # -- inside ----------------------------------------------------------------------------------

    def _forward(self, inputs: Sequence[torch.Tensor]) -> Any:
        schedule = self._schedule(inputs, self._pieces(inputs), None)
        return schedule.step(*(inputs if self._first else ()))

    def _pieces(self, inputs: Sequence[torch.Tensor]) -> int:
        return pipelines.num_micro_batches(
            inputs[0].shape[0], self._pipeline_options.micro_batches or 2 * self._num_ranks
        )

    def _scaled_loss(self, output: Any, target: Any) -> torch.Tensor:
        assert self._loss_fn is not None
        loss = self._loss_fn(output, target)
        self._losses.append(loss.detach())
        return loss * self._factor

    def _spread(self, loss: torch.Tensor | None) -> torch.Tensor:
        """Broadcast the last stage's loss; it may be ready before earlier stages have finished."""
        value = torch.zeros((), dtype=torch.float32, device=self._device)
        if loss is not None:
            value.copy_(loss)
        self._broadcast(value)
        return value

    def _broadcast(self, value: torch.Tensor) -> None:
        source = (self._num_stages - 1) % self._num_ranks
        dist.broadcast(value, group=self._group, group_src=source)

    def _schedule(self, inputs: Sequence[torch.Tensor], num: int, loss: LossFn | None) -> Any:
        """Return torch's schedule for batches of this shape, cached."""
        shapes = tuple((tuple(one.shape), one.dtype) for one in inputs)
        key = (shapes, num, loss is not None)
        if key not in self._schedules:
            size = inputs[0].shape[0] // num
            with torch.set_grad_enabled(loss is not None):
                passed = self._shapes.between([one[:size] for one in inputs])
            made = [self._stage(number, module, passed) for number, module in self._mine.items()]
            self._schedules[key] = self._ordered(made, num, loss)
        return self._schedules[key]

    def _stage(
        self, number: int, module: nn.Module, passed: Sequence[tuple[torch.Tensor, ...]]
    ) -> PipelineStage:
        ends: dict[str, Any] = {"input_args": passed[number], "output_args": passed[number + 1]}
        place = (number, self._num_stages)
        return PipelineStage(module, *place, self._device, group=self._group, **ends)

    def _ordered(self, made: Sequence[PipelineStage], num: int, loss: LossFn | None) -> Any:
        """Return the schedule; all forward passes come first where the wished one does not fit.

        1F1B needs a micro-batch for every rank, interleaved whole rounds of them.
        """
        wished, options = self._pipeline_options.schedule, {"loss_fn": loss, "scale_grads": False}
        if wished == "interleaved":
            rounds = max(1, num // self._num_ranks)
            fits = num % rounds == 0 and loss is not None
            kind = ScheduleInterleaved1F1B if fits else ScheduleLoopedBFS
            return kind(list(made), num, **options)  # type: ignore[arg-type]
        fits = wished == "1f1b" and num >= self._num_ranks and loss is not None
        return (Schedule1F1B if fits else ScheduleGPipe)(made[0], num, **options)  # type: ignore[arg-type]
