"""The guard against gradients that are not finite: accept the step, repeat it, or refuse it.

It looks at *reduced* gradients, which are the same on all ranks, so all ranks decide alike without a
message. A step that is not finite is computed a second time from the same batch: the result shows
whether data or hardware is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto

import torch
from torch import nn

from phalanx.core.contract.records import GuardRecord, WarningRecord
from phalanx.core.training.guards import FaultOrigin, GuardPolicy, GuardState, Skip, Undo, origin
from phalanx.errors import Diverged, DivergedForGood
from phalanx.train.gang import randomness
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Report
from phalanx.train.numerics.gradients import own_part, whole
from phalanx.train.numerics.precision import Scale
from phalanx.train.step.fault_attribution import FaultAttribution, OutputSums
from phalanx.train.step.guard_state import GuardStateStore
from phalanx.train.step.progress import Progress


class StepVerdict(Enum):
    """What happens to a step after its gradients were reduced."""

    ACCEPT = auto()
    REPEAT = auto()
    REFUSE = auto()


def verdict(
    *, finite: bool, rescaled: bool, guarded: bool, tries: int, repeatable: bool
) -> StepVerdict:
    """Judge a step. The same on every rank, for the arguments are.

    `rescaled` says that a smaller fp16 scale may cure it, `guarded` that `on_non_finite` is on, `tries`
    how often the step was computed before, `repeatable` that its batch can be computed again.
    """
    if finite:
        return StepVerdict.ACCEPT
    if rescaled or not guarded:
        return StepVerdict.REFUSE
    return StepVerdict.REPEAT if tries == 0 and repeatable else StepVerdict.REFUSE


def fingerprint(parameters: Iterable[torch.Tensor]) -> int:
    """Return a number that any changed bit of the gradients is likely to change; equal for equal NaNs."""
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
    """Generators and buffers as they were when a step began."""

    def __init__(self) -> None:
        self._rng: bytes | None = None
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, models: Sequence[nn.Module]) -> None:
        """Copy them."""
        self._rng = randomness.capture()
        self._buffers = [
            (buffer, buffer.detach().clone()) for model in models for buffer in model.buffers()
        ]

    def put_back(self) -> None:
        """Restore them."""
        if self._rng is not None:
            randomness.restore(self._rng)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


class StepGuard:
    """Judges steps, and ends the generation where `on_non_finite` asks for it."""

    def __init__(
        self,
        progress: Progress,
        report: Report | None,
        channel: ControlChannel,
        store: GuardStateStore,
        policy: GuardPolicy,
        scale: Scale,
        independent: bool = False,
    ) -> None:
        """`report` is None on all ranks but 0; `independent` ranks do not have the same gradients."""
        self.enabled = policy is not GuardPolicy.OFF
        self.needs_norm = self.enabled or bool(scale.state_dict())
        self._progress, self._report, self._channel = progress, report, channel
        self._store, self._policy, self._scale = store, policy, scale
        self._independent = independent
        self._models: list[nn.Module] = []
        self._backup = StepBackup()
        self._forget_step()
        self._attribution = OutputSums(channel) if self.enabled else FaultAttribution()

    def _forget_step(self) -> None:
        self._prints: list[int] = []  # of the gradients of each try that was not finite
        self._refused = self._undo = False
        self._leave: Callable[[], None] | None = None

    def watch(self, model: nn.Module) -> None:
        """Include a model."""
        self._models.append(model)
        self._attribution.watch(model)

    # -- one step --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Prepare for a step: its first micro-batch is about to be given out."""
        self._attribution.begin()
        if self.enabled:
            self._backup.take(self._models)

    def judge(self, parameters: Sequence[torch.Tensor], norm: torch.Tensor) -> StepVerdict:
        """Accept, repeat or refuse the step, from the norm of its gradients."""
        finite = math.isfinite(whole(norm))
        if self._independent:
            finite = self._channel.total([float(not finite)])[0] == 0
        if finite:
            if self._prints and not self._progress.committed:
                self._attribution.end()
                self.tell("applied", FaultOrigin.HARDWARE, self._attribution.blamed())
            return StepVerdict.ACCEPT
        rescaled, tries = self._scale.overflowed(), len(self._prints)
        if self.enabled and not rescaled:
            self._prints.append(fingerprint(parameters))
            self._attribution.end()
            # What another optimizer has applied in this step already cannot be undone.
            self._undo = not self._progress.committed
        found = verdict(
            finite=False,
            rescaled=rescaled,
            guarded=self.enabled,
            tries=tries,
            repeatable=self._progress.share is not None and not self._progress.committed,
        )
        if found is StepVerdict.REPEAT:
            self._progress.repeat()
            return found
        self._refused = True
        if self.enabled and not rescaled:
            self._refuse()
        return found

    def _refuse(self) -> None:
        blame = FaultOrigin.UNKNOWN
        if len(self._prints) == 2:
            blame = self._agreed(origin(*self._prints))
        self.tell(str(self._policy), blame, self._attribution.blamed())
        if self._policy is not GuardPolicy.SKIP:
            self._leave = self._leaving(blame)

    def _agreed(self, mine: FaultOrigin) -> FaultOrigin:
        """Of sharded gradients every rank has seen its own part: one that differs is enough."""
        others = self._channel.total([float(mine is FaultOrigin.HARDWARE)])[0]
        return FaultOrigin.HARDWARE if others else FaultOrigin.DATA

    @property
    def applied(self) -> bool:
        """Return whether the current step changed the weights."""
        return not self._refused

    def settle(self) -> None:
        """End a step, or a try of it, after the script's own lines. Raises Diverged, DivergedForGood."""
        self._scale.settle()
        if self._undo:
            self._undo = False
            self._backup.put_back()
        if self._leave is not None:
            self._leave()
        if not self._progress.repeating:
            self._forget_step()

    # -- what follows ----------------------------------------------------------------------------

    def tell(
        self,
        action: str,
        blame: FaultOrigin,
        ranks: Sequence[int],
        what: str = "non_finite",
        step: int | None = None,
    ) -> None:
        """Report what a guard found and does; `ranks` are at fault, as far as is known."""
        if self._report is None:
            return
        step = self._progress.step + 1 if step is None else step
        self._report.write(
            GuardRecord(step=step, what=what, origin=str(blame), action=action, ranks=list(ranks))
        )
        at = f", rank {', '.join(str(rank) for rank in ranks)}" if ranks else ""
        message = f"step {step}: {_WHAT[what]} ({_BLAME[blame]}{at}): {action}"
        self._report.write(WarningRecord(message))

    def _leaving(self, blame: FaultOrigin) -> Callable[[], None]:
        step = self._progress.step + 1
        interval = self._progress.interval
        text = f"step {step}: gradients were not finite ({_BLAME[blame]})"

        def leave() -> None:
            if self._policy is GuardPolicy.STOP or interval is None or not self._store.keeps:
                raise DivergedForGood(text, "on_non_finite='skip' or 'rollback' would continue")
            if blame is FaultOrigin.HARDWARE:
                # Nothing is wrong with the batch: another generation computes it once more.
                raise Diverged(f"{text}; the next generation computes this batch again")
            self.roll_back(Skip(*interval, step, "non_finite"), None, text)

        return leave

    def roll_back(self, skip: Skip, undo: Undo | None, text: str) -> None:
        """End this generation; the next one skips the batch. Collective.

        Raises Diverged, or DivergedForGood where that could not be written down.
        """
        state = replace(self._progress.guard_state.skipping(skip), undo=undo, suspect=None)
        self.leave_with(state, f"{text}; the next generation skips this batch")

    def leave_with(self, state: GuardState, text: str) -> None:
        """End this generation and leave `state` to the next one. Collective.

        Raises Diverged, or DivergedForGood where that could not be written down.
        """
        problem = self.store(state)
        if problem:
            raise DivergedForGood(f"{text}; rolling back is not possible: {problem}")
        raise Diverged(text)

    def store(self, state: GuardState) -> str:
        """Store `state` on rank 0; returns the error, on all ranks. Collective."""
        problem = ""
        if self._report is not None:
            try:
                self._store.keep(state)
            except OSError as error:
                problem = f"{error}"[:500]
        # No rank leaves before it is written: the first one to exit ends the others.
        return self._channel.broadcast(problem)

    @property
    def lasting(self) -> bool:
        """Return whether the next generation can read what this one stores."""
        return self._store.keeps


_WHAT = {"non_finite": "gradients were not finite", "spike": "the loss jumped"}
_BLAME = {
    FaultOrigin.UNKNOWN: "not computed again",
    FaultOrigin.DATA: "the same result from the same batch: data or model",
    FaultOrigin.HARDWARE: "another result from the same batch: hardware",
}
