"""The strategy of a layout of the ranks, and the choice of `strategy="auto"`.

`auto` is decided at the first model by rank 0, from the model's size, the devices' memory, the number of
ranks and of those that share a node; the same at every start with as many ranks. Layouts that need changes
of the script (tensor parallel layers, pipeline stages) are never chosen: `phalanx plan` recommends them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.core.contract.records import WarningRecord
from phalanx.core.gang.meshes import AUTO, Layout
from phalanx.core.training import estimates
from phalanx.core.training.estimates import DeviceSet, LayoutChoice, ModelProfile
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.parallel import replica
from phalanx.train.parallel.grid import GridStrategy
from phalanx.train.parallel.model_costs import block_bytes, bytes_of
from phalanx.train.parallel.strategies import (
    IndependentReplicas,
    ReplicaStrategy,
    ShardStrategy,
    SingleRank,
    Strategy,
)
from phalanx.train.settings import RunOptions

_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
Make = Callable[[Layout], Strategy]


def device_memory_bytes(local_world_size: int) -> int:
    """Return the memory of this rank's device, or a CPU rank's part of the node's or container's."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _LIMIT_FILE.read_text().strip()
        whole = min(whole, int(limit)) if limit.isdigit() else whole
    except OSError:
        pass  # no such limit here
    return whole // max(1, local_world_size)


def device_figures() -> estimates.Device:
    """Return the figures of this machine's devices; those of the slowest GPU for an unknown one."""
    if not torch.cuda.is_available():
        return estimates.DEVICES["cpu"]
    name = torch.cuda.get_device_name().replace("-", " ").split()
    return next(
        (row for key, row in estimates.DEVICES.items() if key in name), estimates.DEVICES["T4"]
    )


def pick(model: nn.Module, world: DeviceSet) -> LayoutChoice:
    """Choose the layout for a model, assuming an optimizer with two tensors per parameter."""
    trained = bytes_of(one for one in model.parameters() if one.requires_grad)
    outline = ModelProfile(
        parameter_bytes=bytes_of(model.parameters()),
        trainable_bytes=trained,
        optimizer_bytes=2 * trained,
        block_bytes=block_bytes(model),
        buffer_bytes=bytes_of(model.buffers()),
    )
    return estimates.recommend(world, outline)


class AutoStrategy(Strategy):
    """A strategy chosen at the first model; delegates to the chosen one."""

    name = "auto"

    def __init__(
        self,
        info: RankInfo,
        channel: ControlChannel,
        report: Report,
        make: Make,
        on_choice: Callable[[str], None],
    ) -> None:
        """Create the strategy; `make` makes that of a layout, `on_choice` gets the name of the choice."""
        self._info, self._channel, self._report, self._make = info, channel, report, make
        self._made: Strategy = SingleRank()
        self._optimizers: list[Optimizer] = []
        self._on_choice = on_choice

    def receive(self, model: nn.Module, device: torch.device, options: RunOptions) -> None:
        """Choose a strategy at the first model, then delegate to it."""
        if isinstance(self._made, SingleRank):
            self._decide(model)
        self._made.receive(model, device, options)

    def wrap(self, model: nn.Module, device: torch.device, options: RunOptions) -> nn.Module:
        """Delegate to the chosen strategy."""
        return self._made.wrap(model, device, options)

    def _decide(self, model: nn.Module) -> None:
        info = self._info
        device = estimates.with_memory(device_figures(), device_memory_bytes(info.local_world_size))
        # Nodes of unequal size are taken for several of the largest size that divides them all: no
        # group of so many neighbouring ranks lies across two nodes.
        rows = self._channel.gather(str(info.local_world_size).encode())
        slots = math.gcd(*(int(row) for row in rows)) if rows else 1
        world = DeviceSet(info.world_size // slots, slots, device)
        choice = pick(model, world)
        mine = {"dp": choice.best.layout.dp, "fsdp": choice.best.layout.fsdp}
        told: dict[str, Any] = json.loads(self._channel.broadcast(json.dumps(mine)))
        self._made = self._make(Layout(**told))
        self.name = self._made.name
        self._on_choice(self.name)
        for optimizer in self._optimizers:
            self._made.adopt(optimizer)
        if info.is_main:
            self._report.write(WarningRecord(f"strategy auto: {choice.why}"))
            print(f"phalanx: strategy auto: {choice.why}", flush=True)  # noqa: T201 - the rank's log

    def adopt(self, optimizer: Optimizer) -> None:
        """Delegate to the chosen strategy, now or once it is chosen."""
        self._optimizers.append(optimizer)
        self._made.adopt(optimizer)

    def watch(self, scale: replica.GradientScale, model: nn.Module) -> None:
        """Delegate to the chosen strategy."""
        self._made.watch(scale, model)

    def start_share(self, models: Iterable[nn.Module], first: bool, last: bool) -> None:
        """Delegate to the chosen strategy."""
        self._made.start_share(models, first, last)

    def send_buffers(self, models: Iterable[nn.Module]) -> None:
        """Delegate to the chosen strategy."""
        self._made.send_buffers(models)

    def reduces(self, models: Iterable[nn.Module]) -> bool:
        """Delegate to the chosen strategy."""
        return self._made.reduces(models)


def strategy_for(
    options: RunOptions,
    layout: Layout,
    info: RankInfo,
    *,
    channel: ControlChannel,
    report: Report,
    on_choice: Callable[[str], None],
) -> Strategy:
    """Return the strategy of a run; `auto` is resolved at the first model, and named to `on_choice`."""
    if options.sync.is_local:
        return IndependentReplicas(options.sync.method)

    def make(layout: Layout) -> Strategy:
        return chosen(layout, info.rank, options)

    compresses = options.compression.method != "none"
    if options.strategy != AUTO or info.world_size == 1 or compresses:
        return make(layout)
    return AutoStrategy(info, channel, report, make, on_choice)


def chosen(layout: Layout, rank: int, options: RunOptions) -> Strategy:
    """Return the strategy of a layout, for this rank."""
    if layout.world_size == 1:
        return SingleRank()
    if layout.dp == layout.world_size:
        # Also what `auto` takes where gradients are compressed.
        return ReplicaStrategy()
    if layout.fsdp == layout.world_size:
        return ShardStrategy(options.fsdp)
    if layout.pp == 1:
        return GridStrategy(layout, options.tp_plan, options.fsdp)
    # torch's pipelines import its compiler, which takes most of a second.
    from phalanx.train.parallel.pipeline import PipelineOptions, PipelineStrategy

    pipeline = PipelineOptions(
        schedule=options.pipeline_schedule,
        micro_batches=options.micro_batches,
        split=options.pipeline_split,
        precision=options.precision,
    )
    return PipelineStrategy(layout, rank, options.tp_plan, options.fsdp, pipeline)
