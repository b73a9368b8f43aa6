"""What happens between a step's last reduction and the optimizer: mean, scale, guard, clip, rate.

Everything here looks at *reduced* gradients, which are the same on all ranks, so all ranks decide alike
without asking one another; only ranks that train on their own (`lowcomm`) have to. One pass over the
gradients (their norm) serves clipping, the scale of fp16 and the guard. A step that the guard refuses is
computed a second time from the very same batch: only then is it known whether data or hardware is to
blame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.core.contract.records import GuardRecord, WarningRecord
from phalanx.core.training.guards import FaultOrigin, GuardPolicy, GuardState, Skip, Undo, origin
from phalanx.core.training.learning_rate import Ramp
from phalanx.errors import Diverged, DivergedForGood
from phalanx.train.gang import randomness
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.numerics.gradients import clip, gradient_norm, own_part, whole
from phalanx.train.numerics.precision import Scale
from phalanx.train.state import restoring
from phalanx.train.step.fault_attribution import FaultAttribution, NoFaultAttribution, OutputSums
from phalanx.train.step.guard_state import GuardStateStore
from phalanx.train.step.loop import Loop


def fingerprint(parameters: Iterable[torch.Tensor]) -> int:
    """A number that any changed bit of the gradients is likely to change; the same for the same NaNs."""
    total = 0
    for at, one in enumerate(parameters):
        if one.grad is None:
            continue
        local = own_part(one.grad)
        flat = local.detach().contiguous().reshape(-1).view(torch.uint8)
        odd = flat[: flat.numel() // 4 * 4].view(torch.int32).to(torch.int64)
        weights = torch.arange(1, odd.numel() + 1, device=odd.device, dtype=torch.int64)
        total = randomness.mix(total, at, int((odd * weights).sum()) & ((1 << 63) - 1))
    return total


class StepBackup:
    """Generators and buffers as they were when a step began, to make it as if it had never been."""

    def __init__(self) -> None:
        self._rng: bytes | None = None
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, models: Sequence[nn.Module]) -> None:
        """Remember this moment."""
        self._rng = randomness.capture()
        self._buffers = [
            (buffer, buffer.detach().clone()) for model in models for buffer in model.buffers()
        ]

    def put_back(self) -> None:
        """Return to it."""
        if self._rng is not None:
            randomness.restore(self._rng)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What an applier works with."""

    loop: Loop
    report: Report
    channel: ControlChannel
    guard_store: GuardStateStore
    is_main: bool


@dataclass(slots=True)
class StepAttempt:
    """What the guard knows of the step in hand."""

    prints: list[int] = field(default_factory=list)
    refused: bool = False
    undo: bool = False
    leave: Callable[[], None] | None = None


class Applier:
    """Applies steps, or refuses to. `mean_over_tokens` finishes the sums of `run.backward`."""

    def __init__(
        self,
        context: EngineContext,
        scale: Scale,
        clip: float | None,
        policy: GuardPolicy,
        mean_over_tokens: Callable[[], None],
    ) -> None:
        self.scale = scale
        self.ramp = Ramp()
        self.models: list[nn.Module] = []
        self.norm_of: Callable[[Sequence[torch.Tensor]], torch.Tensor] = gradient_norm
        self._loop, self._report = context.loop, context.report
        self._channel, self._guard_store, self._is_main = (
            context.channel,
            context.guard_store,
            context.is_main,
        )
        self._clip, self._policy = clip, policy
        self._mean_over_tokens = mean_over_tokens
        self._before = StepBackup()
        self.anywhere: Callable[[bool], bool] = _as_seen
        self._trial = StepAttempt()
        self._scaled_fp16 = bool(scale.state_dict())
        self.guards = policy is not GuardPolicy.OFF
        self.attribution: FaultAttribution = (
            OutputSums(context.channel) if self.guards else NoFaultAttribution()
        )

    # -- the step --------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first micro-batch of a step is about to be given out."""
        self.attribution.begin()
        if self.guards:
            self._before.take(self.models)

    def apply(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        """The optimizer's own step, or nothing where the gradients are refused."""
        if self._loop.repeats:
            return None
        parameters = restoring.parameters_of(optimizer)
        self.finish(parameters)
        if self._clip is not None or self.guards or self._scaled_fp16:
            norm = self.norm_of(parameters)
            guarded = self.guards or self._scaled_fp16
            if guarded and self.anywhere(not math.isfinite(whole(norm))):
                self._refuse(parameters)
                return None
            if self._clip is not None:
                clip(parameters, self._clip, norm)
        if self._trial.prints and not self._loop.committed:
            self.attribution.end()
            self.tell("applied", FaultOrigin.HARDWARE, self.attribution.blamed())
        with self._rate(optimizer):
            return step()

    def finish(self, parameters: Iterable[torch.Tensor]) -> None:
        """Make sums means and take the scale out again, once for each step."""
        self._mean_over_tokens()
        self.scale.unscale(parameters)

    @property
    def applied(self) -> bool:
        """Whether the step in hand changed anything."""
        return not self._trial.refused

    @contextmanager
    def _rate(self, optimizer: Optimizer) -> Iterator[None]:
        """The learning rate of one step; schedulers and checkpoints only ever see the script's own."""
        factor = self.ramp.at(self._loop.step)
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

    # -- the guard -------------------------------------------------------------------------------

    def _refuse(self, parameters: Sequence[torch.Tensor]) -> None:
        trial = self._trial
        if self.scale.overflowed():
            trial.refused = True
            return
        if not self.guards:
            trial.refused = True
            return
        trial.prints.append(fingerprint(parameters))
        self.attribution.end()
        # What another optimizer has applied in this step already cannot be made undone.
        trial.undo = not self._loop.committed
        if len(trial.prints) == 1 and self._loop.repeat():
            return
        trial.refused = True
        blame = FaultOrigin.UNKNOWN
        if len(trial.prints) == 2:
            blame = self._agreed(origin(*trial.prints))
        self.tell(str(self._policy), blame, self.attribution.blamed())
        if self._policy is not GuardPolicy.SKIP:
            trial.leave = self._leaving(blame)

    def _agreed(self, mine: FaultOrigin) -> FaultOrigin:
        """Of sharded gradients every rank has seen its own part: one that differs is enough."""
        others = self._channel.total([float(mine is FaultOrigin.HARDWARE)])[0]
        return FaultOrigin.HARDWARE if others else FaultOrigin.DATA

    def tell(
        self,
        action: str,
        blame: FaultOrigin,
        ranks: Sequence[int],
        what: str = "non_finite",
        step: int | None = None,
    ) -> None:
        """Report what the guard found and does; `ranks` are at fault, as far as is known."""
        if not self._is_main:
            return
        step = self._loop.step + 1 if step is None else step
        self._report.write(
            GuardRecord(step=step, what=what, origin=str(blame), action=action, ranks=list(ranks))
        )
        who = f", rank {', '.join(str(rank) for rank in ranks)}" if ranks else ""
        self._report.write(
            WarningRecord(f"step {step}: {_WHAT[what]} ({_BLAME[blame]}{who}): {action}")
        )

    def _leaving(self, blame: FaultOrigin) -> Callable[[], None]:
        step = self._loop.step + 1
        interval = self._loop.interval
        text = f"step {step}: gradients were not finite ({_BLAME[blame]})"

        def leave() -> None:
            if self._policy is GuardPolicy.STOP or interval is None or not self._guard_store.keeps:
                raise DivergedForGood(text, "on_non_finite='skip' or 'rollback' would go on")
            if blame is FaultOrigin.HARDWARE:
                # Nothing is wrong with the batch: another generation computes it once more.
                raise Diverged(f"{text}; the next generation computes this batch again")
            self.roll_back(Skip(*interval, step, "non_finite"), None, text)

        return leave

    def roll_back(self, skip: Skip, undo: Undo | None, text: str) -> None:
        """End this generation; the next one passes the batch over. Every rank comes here.

        Raises Diverged, or DivergedForGood where that could not be written down.
        """
        guard_state = replace(self._loop.guard_state.skipping(skip), undo=undo, suspect=None)
        self.leave_with(guard_state, f"{text}; the next generation passes this batch over")

    def leave_with(self, guard_state: GuardState, text: str) -> None:
        """End this generation and leave `guard_state` to the next one. Every rank comes here.

        Raises Diverged, or DivergedForGood where that could not be written down.
        """
        problem = self.remember(guard_state)
        if problem:
            raise DivergedForGood(f"{text}; rolling back is not possible: {problem}")
        raise Diverged(text)

    def remember(self, guard_state: GuardState) -> str:
        """Have rank 0 write `guard_state` down; returns what went wrong, on all ranks. Collective."""
        problem = ""
        if self._is_main:
            try:
                self._guard_store.keep(guard_state)
            except OSError as error:
                problem = f"{error}"[:500]
        # Nobody goes on before it is written: the first to leave ends everybody.
        return self._channel.broadcast(problem)

    def step_over(self) -> None:
        """A step, or a try, is finished and the user's own lines have run."""
        trial = self._trial
        self.scale.settle()
        if trial.undo:
            trial.undo = False
            self._before.put_back()
        if trial.leave is not None:
            trial.leave()
        if not self._loop.repeats:
            self._trial = StepAttempt()

    @property
    def lasting(self) -> bool:
        """Whether a next generation would know what this one learned."""
        return self._guard_store.keeps


def _as_seen(spoiled: bool) -> bool:
    """Reduced gradients are the same on all ranks: what one sees, all see."""
    return spoiled


_WHAT = {"non_finite": "gradients were not finite", "spike": "the loss jumped"}
_BLAME = {
    FaultOrigin.UNKNOWN: "not computed again",
    FaultOrigin.DATA: "the same again from the same batch: data or model",
    FaultOrigin.HARDWARE: "not the same again from the same batch: hardware",
}
