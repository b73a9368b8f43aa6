"""Attribution of a faulty step to the ranks that caused it.

Gradients are checked after the reduction, which hides the rank they came from. The sums of a rank's
own outputs, and of the gradients that arrive at its first parameter, identify it.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from phalanx.train.gang.groups import ControlChannel


class FaultAttribution:
    """Records what this rank computed in each try of a step. This one is switched off."""

    def watch(self, model: nn.Module) -> None:
        """Record this model's outputs and gradients."""

    def begin(self) -> None:
        """Begin a step, or another try of it."""

    def end(self) -> None:
        """End the try and keep what was recorded."""

    def blamed(self) -> list[int]:
        """Return the ranks at fault, on rank 0, from the tries recorded so far. Collective."""
        return []


class OutputSums(FaultAttribution):
    """Sums of outputs and the first parameter's gradients; only `blamed` waits for the device."""

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._now: list[torch.Tensor] = []
        self._tries: list[list[torch.Tensor]] = []

    def watch(self, model: nn.Module) -> None:
        """Record the sums of this model's outputs and of the last gradient of its backward pass."""
        model.register_forward_hook(self._left)
        first = next((one for one in model.parameters() if one.requires_grad), None)
        if first is not None:
            first.register_hook(self._add)  # type: ignore[no-untyped-call]

    def _left(self, model: nn.Module, args: Any, output: Any) -> None:
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                self._add(leaf)
                if leaf.requires_grad:
                    leaf.register_hook(self._add)  # type: ignore[no-untyped-call]

    def _add(self, value: torch.Tensor) -> None:
        self._now.append(value.detach().sum(dtype=torch.float64))

    def begin(self) -> None:
        """Begin a step, or another try of it."""
        self._now.clear()

    def end(self) -> None:
        """End the try and keep what was recorded."""
        self._tries.append(self._now)
        self._now = []

    def blamed(self) -> list[int]:
        """Return the ranks with other sums in the second try, or else with non-finite sums."""
        tries, self._tries = [[float(one) for one in row] for row in self._tries], []
        texts = [[value.hex() for value in row] for row in tries]
        other = len(texts) > 1 and texts[0] != texts[-1]
        wrong = any(not math.isfinite(value) for value in (tries[-1] if tries else ()))
        rows = self._channel.gather(json.dumps([other, wrong]).encode())
        told = [json.loads(row) for row in rows]
        others = [rank for rank, row in enumerate(told) if row[0]]
        return others or [rank for rank, row in enumerate(told) if row[1]]
