"""Precision, batch, guards and memory of one run: what `Run` delegates, put together in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.core.training import learning_rate
from phalanx.core.training.batches import BatchPlan
from phalanx.core.training.guards import GuardPolicy, num_pieces
from phalanx.core.training.learning_rate import Ramp
from phalanx.train.data import shares
from phalanx.train.gang.report import NoReport
from phalanx.train.numerics import batch_norm, precision, recompute
from phalanx.train.observe.stragglers import ComputeTimes, NoStragglers, Stragglers
from phalanx.train.step.apply import Applier, Around
from phalanx.train.step.divergence import SpikeGuard
from phalanx.train.step.early_stop import EarlyStopping
from phalanx.train.step.guard_state import Forgetful, Keeper, MemoryFile, watch_memory

if TYPE_CHECKING:
    from phalanx.train.step.components import Parts


class Care:
    """One run's tuning at work. `weight` says what this rank's gradients count just now."""

    def __init__(
        self, parts: Parts, weight: batch_norm.GradientWeight, mean_over_tokens: Callable[[], None]
    ) -> None:
        info, loop, tuning = parts.info, parts.loop, parts.options.tuning
        channel, place = parts.connection.channel, (info.attempt, info.generation)
        self._parts, self._tuning, self._weight = parts, tuning, weight
        self._keeper: Keeper = Forgetful()
        if info.checkpoint_dir is not None:
            self._keeper = MemoryFile(info.checkpoint_dir, info, channel, parts.report)
        around = Around(
            loop=loop,
            report=parts.report,
            channel=channel,
            keeper=self._keeper,
            is_main=info.is_main,
        )
        self._applier = Applier(
            around, precision.scale_for(tuning.precision), parts.options.clip,
            tuning.on_non_finite, mean_over_tokens,
        )  # fmt: skip
        if tuning.sync.is_local:
            self._applier.anywhere = lambda seen: channel.total([float(seen)])[0] > 0
        loop.keeps_batches = self._applier.guards
        if tuning.on_spike is not GuardPolicy.OFF:
            spikes = SpikeGuard(loop, self._applier, channel, tuning.on_spike, place)
            loop.on_values, loop.wishes = spikes.observe, spikes.wishes
            loop.on_roll_back = spikes.act
        if tuning.deterministic:
            make_deterministic()
        self._stragglers: Stragglers = NoStragglers()
        told = parts.report if info.is_main else NoReport()
        self.shares = shares.shares_for(tuning.batch_shares, info.world_size, told)
        window = tuning.straggler_window
        if tuning.batch_shares == shares.AUTO:
            window = window or shares.MEASURED_STEPS
        if window and info.world_size > 1:
            where = (info.rank, info.world_size)
            self._stragglers = ComputeTimes(
                window, where, channel, parts.report, self.shares.observe
            )
        self.began, self.stepped = self._stragglers.began, self._stragglers.stepped
        self._link: batch_norm.StatisticsGroup | None = None
        if tuning.sync_batchnorm and info.world_size > 1:
            self._link = batch_norm.StatisticsGroup(parts.connection.private_group(), weight)
        self.apply: Callable[[Optimizer, Callable[[], Any]], Any] = self._applier.apply
        self.finish: Callable[[Iterable[torch.Tensor]], None] = self._applier.finish
        self.scaled: Callable[[torch.Tensor], torch.Tensor] = self._applier.scale.scaled
        self.begin_step: Callable[[], None] = self._applier.begin
        self.step_over: Callable[[], None] = self._applier.step_over

    def measure(self, norm_of: Callable[[Iterable[torch.Tensor]], torch.Tensor]) -> None:
        """How the norm of gradients is found that lie on several ranks."""
        self._applier.norm_of = norm_of

    # -- before training -------------------------------------------------------------------------

    def open(self) -> None:
        """Take over what earlier generations learned. Collective; before checkpoints are looked at."""
        self._parts.loop.memory = self._keeper.open()
        if self._keeper.keeps:
            watch_memory(self._out_of_memory)

    def adapt(self, model: nn.Module) -> None:
        """Convert a model before it becomes a replica; its parameters stay the same objects."""
        self._applier.models.append(model)
        self._applier.witness.watch(model)
        self._stragglers.watch(model)
        if self._link is not None:
            batch_norm.synchronize(model, self._link)
        recompute.recompute_blocks(model, self._tuning.activation_checkpointing)
        precision.cast_forward(model, self._tuning.precision, self._parts.device)

    @property
    def may_accumulate(self) -> bool:
        """Whether a step can take several micro-batches."""
        return (
            self._parts.options.accumulate > 1
            or self._tuning.max_micro_batch is not None
            or self._parts.loop.memory.halvings > 0
        )

    @property
    def batch_world(self) -> int:
        """The number of places that the loader's batch size is multiplied by."""
        if self._tuning.on_resize == "keep_batch":
            return self._reference_places
        return self._parts.layout.num_places

    @property
    def _reference_places(self) -> int:
        layout = self._parts.layout
        return max(1, self._parts.info.reference_world // (layout.tp * layout.pp))

    def pieces(self, local_batch: int) -> int:
        """In how many pieces a micro-batch is given out, from the largest rank's part of it."""
        return num_pieces(local_batch, self._tuning.max_micro_batch, self._parts.loop.memory)

    def skips(self, total_passes: int) -> Sequence[tuple[int, int]]:
        """What guards of earlier generations want passed over."""
        return self._parts.loop.memory.intervals(total_passes)

    def follow(self, plan: BatchPlan) -> None:
        """Set the learning rate's factor for this batch, and warm up where it is a new one."""
        if self._tuning.on_resize == "keep_batch":
            return
        base = plan.step_batch // self.batch_world * self._reference_places
        end = learning_rate.factor(base, plan.step_batch)
        ramp = self._applier.ramp
        self._applier.ramp = ramp.towards(end, self._parts.loop.step, self._tuning.warmup_steps)

    def early_stopping(self, patience: int, mode: str, min_delta: float) -> EarlyStopping:
        """A count of updates without improvement that all ranks share."""
        channel = self._parts.connection.channel
        return EarlyStopping(
            patience, mode, min_delta, lambda value: float(channel.broadcast(repr(value)))
        )

    # -- state -----------------------------------------------------------------------------------

    @property
    def applied(self) -> bool:
        """Whether the step in hand changed anything."""
        return self._applier.applied

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by just now."""
        return self._applier.scale.factor

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"scale": self._applier.scale.state_dict(), "ramp": self._applier.ramp.to_json(),
                "shares": self.shares.state_dict()}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back; checkpoints of earlier versions have none."""
        if state:
            self._applier.scale.load_state_dict(state["scale"])
            self._applier.ramp = Ramp.from_json(state["ramp"])
            self.shares.load_state_dict(state.get("shares", {}))

    # -- memory ----------------------------------------------------------------------------------

    def _out_of_memory(self) -> None:
        """This rank has no memory left: the next generation tries smaller pieces on all ranks."""
        loop = self._parts.loop
        if loop.plan is None or loop.plan.pieces >= self._largest_share(loop.plan):
            return
        info = self._parts.info
        smaller = replace(
            loop.memory,
            halvings=loop.memory.halvings + 1,
            halved_in=(info.attempt, info.generation),
        )
        self._keeper.keep(smaller)

    def _largest_share(self, plan: BatchPlan) -> int:
        return plan.largest_share(self._parts.layout.num_places)


def make_deterministic() -> None:
    """Only kernels whose sums always come out the same; those that have none raise an error."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # noqa: TID251 - read by cuBLAS
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
