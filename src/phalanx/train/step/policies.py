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
from phalanx.train.step.apply import Applier, EngineContext
from phalanx.train.step.divergence import SpikeGuard
from phalanx.train.step.early_stop import EarlyStopping
from phalanx.train.step.guard_state import (
    GuardStateFile,
    GuardStateStore,
    NoGuardStateStore,
    install_memory_hook,
)

if TYPE_CHECKING:
    from phalanx.train.step.components import RunComponents


class TrainingPolicies:
    """One run's options at work. `weight` says what this rank's gradients count just now."""

    def __init__(
        self,
        components: RunComponents,
        weight: batch_norm.GradientWeight,
        mean_over_tokens: Callable[[], None],
    ) -> None:
        info, loop, options = components.info, components.loop, components.options
        channel, place = components.connection.channel, (info.attempt, info.generation)
        self._components, self._options, self._weight = components, options, weight
        self._guard_store: GuardStateStore = NoGuardStateStore()
        if info.checkpoint_dir is not None:
            self._guard_store = GuardStateFile(
                info.checkpoint_dir, info, channel, components.report
            )
        context = EngineContext(
            loop=loop,
            report=components.report,
            channel=channel,
            guard_store=self._guard_store,
            is_main=info.is_main,
        )
        self._applier = Applier(
            context,
            precision.scale_for(options.precision),
            components.options.clip,
            options.on_non_finite,
            mean_over_tokens,
        )
        if options.sync.is_local:
            self._applier.anywhere = lambda seen: channel.total([float(seen)])[0] > 0
        loop.keeps_batches = self._applier.guards
        if options.on_spike is not GuardPolicy.OFF:
            spikes = SpikeGuard(loop, self._applier, channel, options.on_spike, place)
            loop.on_values, loop.wishes = spikes.observe, spikes.wishes
            loop.on_roll_back = spikes.act
        if options.deterministic:
            make_deterministic()
        self._stragglers: Stragglers = NoStragglers()
        told = components.report if info.is_main else NoReport()
        self.shares = shares.shares_for(options.batch_shares, info.world_size, told)
        window = options.straggler_window
        if options.batch_shares == shares.AUTO:
            window = window or shares.MEASURED_STEPS
        if window and info.world_size > 1:
            where = (info.rank, info.world_size)
            self._stragglers = ComputeTimes(
                window, where, channel, components.report, self.shares.observe
            )
        self.began, self.stepped = self._stragglers.began, self._stragglers.stepped
        self._link: batch_norm.StatisticsGroup | None = None
        if options.sync_batchnorm and info.world_size > 1:
            self._link = batch_norm.StatisticsGroup(components.connection.private_group(), weight)
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
        self._components.loop.guard_state = self._guard_store.open()
        if self._guard_store.keeps:
            install_memory_hook(self._out_of_memory)

    def adapt(self, model: nn.Module) -> None:
        """Convert a model before it becomes a replica; its parameters stay the same objects."""
        self._applier.models.append(model)
        self._applier.attribution.watch(model)
        self._stragglers.watch(model)
        if self._link is not None:
            batch_norm.synchronize(model, self._link)
        recompute.recompute_blocks(model, self._options.activation_checkpointing)
        precision.cast_forward(model, self._options.precision, self._components.device)

    @property
    def may_accumulate(self) -> bool:
        """Whether a step can take several micro-batches."""
        return (
            self._components.options.accumulate > 1
            or self._options.max_micro_batch is not None
            or self._components.loop.guard_state.halvings > 0
        )

    @property
    def batch_world(self) -> int:
        """The number of places that the loader's batch size is multiplied by."""
        if self._options.on_resize == "keep_batch":
            return self._reference_places
        return self._components.layout.num_places

    @property
    def _reference_places(self) -> int:
        layout = self._components.layout
        return max(1, self._components.info.reference_world // (layout.tp * layout.pp))

    def pieces(self, local_batch: int) -> int:
        """In how many pieces a micro-batch is given out, from the largest rank's part of it."""
        return num_pieces(
            local_batch, self._options.max_micro_batch, self._components.loop.guard_state
        )

    def skips(self, total_passes: int) -> Sequence[tuple[int, int]]:
        """What guards of earlier generations want passed over."""
        return self._components.loop.guard_state.intervals(total_passes)

    def follow(self, plan: BatchPlan) -> None:
        """Set the learning rate's factor for this batch, and warm up where it is a new one."""
        if self._options.on_resize == "keep_batch":
            return
        base = plan.step_batch // self.batch_world * self._reference_places
        end = learning_rate.factor(base, plan.step_batch)
        ramp = self._applier.ramp
        self._applier.ramp = ramp.towards(
            end, self._components.loop.step, self._options.warmup_steps
        )

    def early_stopping(self, patience: int, mode: str, min_delta: float) -> EarlyStopping:
        """A count of updates without improvement that all ranks share."""
        channel = self._components.connection.channel
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
        return {
            "scale": self._applier.scale.state_dict(),
            "ramp": self._applier.ramp.to_json(),
            "shares": self.shares.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back; checkpoints of earlier versions have none."""
        if state:
            self._applier.scale.load_state_dict(state["scale"])
            self._applier.ramp = Ramp.from_json(state["ramp"])
            self.shares.load_state_dict(state.get("shares", {}))

    # -- memory ----------------------------------------------------------------------------------

    def _out_of_memory(self) -> None:
        """This rank has no memory left: the next generation tries smaller pieces on all ranks."""
        loop = self._components.loop
        if loop.plan is None or loop.plan.pieces >= self._largest_share(loop.plan):
            return
        info = self._components.info
        smaller = replace(
            loop.guard_state,
            halvings=loop.guard_state.halvings + 1,
            halved_in=(info.attempt, info.generation),
        )
        self._guard_store.keep(smaller)

    def _largest_share(self, plan: BatchPlan) -> int:
        return plan.largest_share(self._components.layout.num_places)


def make_deterministic() -> None:
    """Only kernels whose sums always come out the same; those that have none raise an error."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # noqa: TID251 - read by cuBLAS
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
