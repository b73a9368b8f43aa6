"""The components of a run, and its precision, batch size and learning rate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.core.gang.meshes import Layout
from phalanx.core.training import learning_rate
from phalanx.core.training.batches import BatchPlan
from phalanx.core.training.guards import num_pieces
from phalanx.core.training.learning_rate import Ramp
from phalanx.kit.clock import Clock
from phalanx.train.data.shares import Shares
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection
from phalanx.train.gang.report import Report
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.numerics import batch_norm, precision, recompute
from phalanx.train.numerics.precision import Scale
from phalanx.train.settings import RunOptions
from phalanx.train.state.saving import Saver
from phalanx.train.step.guard_state import GuardStateStore, install_memory_hook
from phalanx.train.step.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """The components that `init` opens before there is a model."""

    info: RankInfo  # the environment of this rank
    options: RunOptions  # the script's options, overridden by the job's spec
    clock: Clock  # of the process
    #: the process groups of the gang
    connection: Connection
    report: Report  # of this rank's progress and metrics
    saver: Saver  # writes and restores checkpoints
    stop: StopSignal  # set by SIGTERM
    device: torch.device  # on which this rank trains
    #: which rank holds what part of the model
    layout: Layout


class TrainingPolicies:
    """Applies the options of a run to its models, optimizers and steps."""

    def __init__(
        self,
        components: RunComponents,
        progress: Progress,
        store: GuardStateStore,
        scale: Scale,
        shares: Shares,
        statistics: batch_norm.StatisticsGroup | None,
    ) -> None:
        """`statistics` is the group over which batch norms are synchronised, if they are."""
        self.shares = shares
        self._info, self._options = components.info, components.options
        self._layout = components.layout
        self._progress, self._store, self._scale = progress, store, scale
        self._statistics = statistics
        self._ramp = Ramp()
        # By the number of ranks at the job's first start; None until that or a checkpoint says it.
        self._world_factor: float | None = None
        if components.options.deterministic:
            make_deterministic()

    # -- before training -------------------------------------------------------------------------

    def open(self) -> None:
        """Read what earlier generations learned. Collective; before checkpoints are looked at."""
        self._progress.set_guard_state(self._store.open())
        if self._store.keeps:
            install_memory_hook(self._out_of_memory)

    def adapt(self, model: nn.Module, device: torch.device) -> None:
        """Convert a model before it becomes a replica; its parameters stay the same objects."""
        if self._statistics is not None:
            batch_norm.synchronize(model, self._statistics)
        recompute.recompute_blocks(model, self._options.activation_checkpointing)
        precision.cast_forward(model, self._options.precision, device)

    @property
    def may_accumulate(self) -> bool:
        """Return whether a step can take several micro-batches."""
        return (
            self._options.accumulate > 1
            or self._options.max_micro_batch is not None
            or self._progress.guard_state.halvings > 0
        )

    @property
    def batch_world(self) -> int:
        """Return the number of places that the loader's batch size is multiplied by."""
        if self._options.on_resize == "keep_batch":
            return self._reference_places
        return self._layout.num_places

    @property
    def _reference_places(self) -> int:
        return max(1, self._info.reference_world // (self._layout.tp * self._layout.pp))

    def pieces(self, local_batch: int) -> int:
        """In how many pieces a micro-batch is given out, from the largest rank's part of it."""
        return num_pieces(local_batch, self._options.max_micro_batch, self._progress.guard_state)

    def skips(self, total_passes: int) -> Sequence[tuple[int, int]]:
        """Intervals of a pass that earlier generations decided to skip."""
        return self._progress.guard_state.intervals(total_passes)

    # -- the learning rate -----------------------------------------------------------------------

    def follow(self, plan: BatchPlan) -> None:
        """Set the learning rate's factor for this batch, and warm up where it is a new one."""
        if self._world_factor is None:
            scale, places = self._options.scale_lr, self._reference_places
            self._world_factor = learning_rate.world_factor(scale, places)
        end = self._world_factor
        if self._options.on_resize != "keep_batch":
            base = plan.step_batch // self.batch_world * self._reference_places
            end *= learning_rate.factor(base, plan.step_batch)
        self._ramp = self._ramp.towards(end, self._progress.step, self._options.warmup_steps)

    @contextmanager
    def rate(self, optimizer: Optimizer) -> Iterator[None]:
        """Apply the learning rate of one step; schedulers and checkpoints only see the script's own."""
        factor = self._ramp.at(self._progress.step)
        if factor == 1.0:
            yield
            return
        before = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "scale": self._scale.state_dict(),
            "ramp": self._ramp.to_json(),
            "world_factor": 1.0 if self._world_factor is None else self._world_factor,
            "shares": self.shares.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; checkpoints of earlier versions have none, or no factor: theirs was 1."""
        self._world_factor = float(state.get("world_factor", 1.0))
        if state:
            self._scale.load_state_dict(state["scale"])
            self._ramp = Ramp.from_json(state["ramp"])
            self.shares.load_state_dict(state.get("shares", {}))

    def _out_of_memory(self) -> None:
        """Store that this rank ran out of memory: the next generation uses smaller pieces everywhere."""
        plan, state = self._progress.plan, self._progress.guard_state
        if plan is None or plan.pieces >= plan.largest_share(self._layout.num_places):
            return
        here = (self._info.attempt, self._info.generation)
        self._store.keep(replace(state, halvings=state.halvings + 1, halved_in=here))


def make_deterministic() -> None:
    """Allow only deterministic kernels; an operation that has none raises an error."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # noqa: TID251 - read by cuBLAS
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
