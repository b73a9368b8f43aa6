"""Mixed precision: the model's forward pass under autocast, and the loss scale of fp16.

Only the forward pass is wrapped, and its floating-point outputs come back in fp32, so the user's loss is
computed in full precision and no line of the loop changes. bf16 needs nothing else. fp16 gradients
underflow without a scale: they need `run.backward(loss)` in place of `loss.backward()`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from phalanx.errors import TrainingError
from phalanx.train.numerics.gradients import own_part

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HALVES = (torch.bfloat16, torch.float16)


def cast_forward(model: nn.Module, precision: str, device: torch.device) -> None:
    """Run the model's forward pass in `precision`; fp32 leaves it unchanged."""
    dtype = HALF.get(precision)
    if dtype is None:
        return
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            return full(inner(*args, **kwargs))

    object.__setattr__(model, "forward", forward)


def full(value: Any) -> Any:
    """Return the same value with its half-precision tensors in fp32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALVES else value
    if isinstance(value, Mapping):
        made = {key: full(item) for key, item in value.items()}
        return made if type(value) is dict else _like(value, made)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(full(item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(full(item) for item in value)
    return value


def _like(value: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    # Output classes of model libraries are dictionaries that may be given new values.
    for key, item in made.items():
        value[key] = item  # type: ignore[index]
    return value


class Scale:
    """The loss scale: multiplies a loss before the backward pass and divides its gradients after it.

    This class is the scale of fp32 and bf16: none.
    """

    @property
    def factor(self) -> float:
        """Return the current factor."""
        return 1.0

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to call `backward` on."""
        return loss

    def unscale(self, parameters: Iterable[torch.Tensor]) -> None:
        """Divide gradients by the scale, once per step and parameter."""

    def overflowed(self) -> bool:
        """Record an overflow; return whether a smaller scale can avoid it."""
        return False

    def settle(self) -> None:
        """End the step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; an empty one changes nothing."""


class LossScale(Scale):
    """The dynamic scale of fp16, with the rules and the saved state of `torch.amp.GradScaler`.

    Not that class itself: it decides per rank and optimizer, and cannot share its one pass over the
    gradients with clipping and the guard.
    """

    def __init__(self, initial: float = 65536.0, interval: int = 2000) -> None:
        self.scale, self._interval = initial, interval
        self._tracker = 0
        self._done: set[int] = set()
        self._stepped = self._overflow = self._used = False

    @property
    def factor(self) -> float:
        """Return the scale."""
        return self.scale

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale."""
        self._used = True
        return loss * self.scale

    def unscale(self, parameters: Iterable[torch.Tensor]) -> None:
        """Divide gradients. Raises TrainingError without a scaled backward pass before."""
        if not self._used:
            raise TrainingError(
                "precision='fp16': an optimizer stepped without run.backward(loss)",
                "write run.backward(loss) in place of loss.backward(), or use precision='bf16'",
            )
        self._stepped = True
        todo = [one for one in parameters if one.grad is not None and id(one) not in self._done]
        self._done.update(id(one) for one in todo)
        # One call takes no mixture of whole gradients and sharded ones; it does take their local parts.
        gradients = [own_part(one.grad) for one in todo if one.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def overflowed(self) -> bool:
        """Record an overflow; return False at a scale of 1, where the cause is another."""
        self._overflow = True
        return self.scale > 1.0

    def settle(self) -> None:
        """Halve the scale after an overflow, double it after many good steps."""
        if self._stepped:
            if self._overflow:
                self.scale, self._tracker = max(1.0, self.scale * 0.5), 0
            else:
                self._tracker += 1
                if self._tracker == self._interval:
                    self.scale, self._tracker = self.scale * 2.0, 0
        self._done.clear()
        self._stepped = self._overflow = self._used = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state in GradScaler's format."""
        return {"scale": self.scale, "_growth_tracker": self._tracker}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; an empty one changes nothing."""
        if state:
            self.scale, self._tracker = float(state["scale"]), int(state["_growth_tracker"])


def scale_for(precision: str) -> Scale:
    """Return the loss scale for a precision."""
    return LossScale() if precision == "fp16" else Scale()
