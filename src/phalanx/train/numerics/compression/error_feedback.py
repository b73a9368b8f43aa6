"""The residuals of error feedback: for each parameter, what this rank has not sent yet.

Kept in the units of true gradients, whatever a loss scale multiplies them by, and taken over only when
the step that used it was applied: a step that is skipped or computed again leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from phalanx.train.state import per_rank


class Residuals:
    """The residuals of a rank, one tensor per parameter."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._pending: dict[str, torch.Tensor] = {}
        self._spare: dict[str, torch.Tensor] = {}

    def add(self, name: str, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """Return gradient / scale + residual in a buffer that holds the new residual.

        The caller takes away from it what it sends.
        """
        held = self._pending.get(name)
        if held is not None:
            return held.add_(gradient, alpha=1.0 / scale)
        held = self._spare.pop(name, None)
        if held is None:
            held = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        kept = self._kept.get(name)
        # One pass over memory: these are as large as the model.
        if kept is None:
            torch.mul(gradient, 1.0 / scale, out=held)
        else:
            torch.add(kept, gradient, alpha=1.0 / scale, out=held)
        self._pending[name] = held
        return held

    def settle(self, applied: bool) -> None:
        """Keep the step's residuals when it was applied, else discard them."""
        for name, tensor in self._pending.items():
            other = self._kept.get(name)
            if applied:
                self._kept[name] = tensor
                tensor = other if other is not None else torch.empty_like(tensor)
            self._spare[name] = tensor
        self._pending.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return one tensor per parameter with a row for every rank, laid out over the ranks."""
        return {name: per_rank.row(tensor) for name, tensor in sorted(self._kept.items())}

    def load_state_dict(
        self, state: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Restore the residuals.

        At another number of ranks each gets the mean, so that the mean over all ranks stays the same.
        """
        for name, saved in state.items():
            live = torch.zeros_like(parameters[name], memory_format=torch.contiguous_format)
            self._kept[name] = live.copy_(per_rank.mine(saved))
