"""`strategy="auto"`: replicas, shards, or shards inside nodes and replicas over them, whichever suits.

Decided when the model is known, by rank 0, from its size, the devices' memory, the number of ranks
and how many share a node; the same at every start with as many ranks. Layouts that ask something of
the script (tensor parallel layers, pipeline stages) are never taken by themselves: `phalanx plan`
says where they would pay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.core.contract.records import WarningRecord
from phalanx.core.gang.meshes import Layout
from phalanx.core.training import estimates
from phalanx.core.training.estimates import DeviceSet, LayoutChoice, ModelProfile
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.parallel import replica
from phalanx.train.parallel.model_costs import block_bytes, bytes_of
from phalanx.train.parallel.strategies import BaseStrategy, SingleRank, Strategy

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


class AutoStrategy(BaseStrategy):
    """A strategy chosen at the first model; delegates to the chosen one."""

    name = "auto"

    def __init__(self, info: RankInfo, channel: ControlChannel, report: Report, make: Make) -> None:
        """Create the strategy; `make` makes the strategy of a layout."""
        self._info, self._channel, self._report, self._make = info, channel, report, make
        self._made: Strategy = SingleRank()
        self._optimizers: list[Optimizer] = []
        self.on_choice: Callable[[str], None] = lambda name: None

    def receive(
        self, model: nn.Module, device: torch.device, wishes: replica.ReplicationOptions
    ) -> None:
        """Choose a strategy at the first model, then delegate to it."""
        if isinstance(self._made, SingleRank):
            self._decide(model)
        self._made.receive(model, device, wishes)

    def wrap(
        self, model: nn.Module, device: torch.device, wishes: replica.ReplicationOptions
    ) -> nn.Module:
        """Delegate to the chosen strategy."""
        return self._made.wrap(model, device, wishes)

    def _decide(self, model: nn.Module) -> None:
        info = self._info
        device = estimates.with_memory(device_figures(), device_memory_bytes(info.local_world_size))
        # Nodes of unequal size are taken for nodes of one rank each.
        even = info.world_size % info.local_world_size == 0
        slots = info.local_world_size if even else 1
        world = DeviceSet(info.world_size // slots, slots, device)
        choice = pick(model, world)
        mine = {"dp": choice.best.layout.dp, "fsdp": choice.best.layout.fsdp}
        told: dict[str, Any] = json.loads(self._channel.broadcast(json.dumps(mine)))
        self._made = self._make(Layout(**told))
        self.name = self._made.name
        self.on_choice(self.name)
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
