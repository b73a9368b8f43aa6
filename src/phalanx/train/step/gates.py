"""The user's own optimizer and scheduler, with `step` and `zero_grad` replaced on the instance.

torch's step hooks cannot cancel a step; a replaced method can, and `isinstance` still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from phalanx.train.step.progress import Progress


class ClearGate:
    """A `zero_grad` that does nothing inside an accumulation.

    Gradients may go once a step has used them, and only once: what comes after the first clearing
    belongs to the next step, whether the user clears before the backward pass or after the step.
    """

    def __init__(self, zero_grad: Callable[..., None], progress: Progress) -> None:
        self._spent = False
        self._zero_grad = zero_grad
        self._progress = progress

    def mark_spent(self) -> None:
        """Let the next call clear: a step has used the gradients."""
        self._spent = True

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Clear, if the gradients in memory have been used."""
        if self._spent or not self._progress.accumulates:
            self._spent = False
            self._zero_grad(*args, **kwargs)


def gate_optimizer(
    optimizer: Optimizer,
    progress: Progress,
    take_step: Callable[[Optimizer, Callable[[], Any]], Any],
) -> ClearGate:
    """Replace `step` by `take_step`, and make `zero_grad` respect accumulation; returns its gate.

    `take_step` receives the optimizer and its own step, and decides whether and how to take it.
    """
    step = optimizer.step
    gate = ClearGate(optimizer.zero_grad, progress)

    def commit(*args: Any, **kwargs: Any) -> Any:
        return take_step(optimizer, lambda: step(*args, **kwargs))

    # Schedulers check this mark to detect that `step` has been replaced.
    commit._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = commit  # type: ignore[method-assign]
    optimizer.zero_grad = gate  # type: ignore[method-assign]
    return gate


def gate_model(model: nn.Module, progress: Progress) -> ClearGate:
    """Make the model's own `zero_grad` respect an accumulation too."""
    gate = ClearGate(model.zero_grad, progress)
    object.__setattr__(model, "zero_grad", gate)
    return gate


class ScheduleGate:
    """A scheduler that skips `step` unless an optimizer stepped since the last call."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler
        self.due = False
        self._step = scheduler.step
        self._state_dict = scheduler.state_dict
        # The instance's dictionary is what a scheduler saves: both replacements stay out of it.
        scheduler.step = self._gated  # type: ignore[method-assign]
        scheduler.state_dict = self._plain_state  # type: ignore[method-assign]

    def allow(self, applied: bool) -> None:
        """Let the next call step, where a step changed the weights."""
        self.due = self.due or applied

    def restore(self, due: bool) -> None:
        """Restore whether the next call steps."""
        self.due = due

    def _gated(self, *args: Any, **kwargs: Any) -> None:
        if self.due:
            self.due = False
            self._step(*args, **kwargs)

    def _plain_state(self) -> dict[str, Any]:
        state = self._state_dict()
        return {key: value for key, value in state.items() if key not in ("step", "state_dict")}
