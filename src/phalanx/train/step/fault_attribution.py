"""What each rank computed by itself in a step, so that a fault can be laid at one rank's door.

Gradients are looked at after the ranks have reduced them, when nobody can tell any more whose they were.
The sums of a rank's own outputs, and of the gradients that arrive at its first parameter, still can.
"""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from phalanx.train.gang.groups import ControlChannel


class FaultAttribution(Protocol):
    """Remembers one try of one step."""

    def watch(self, model: nn.Module) -> None:
        """Look at this model's outputs and gradients."""
        ...

    def begin(self) -> None:
        """A step, or another try of it, begins."""
        ...

    def end(self) -> None:
        """The try is over: what was seen counts."""
        ...

    def blamed(self) -> list[int]:
        """Ranks at fault, on rank 0: from both tries, or the one there was. Collective."""
        ...


class NoFaultAttribution:
    """Nobody looks."""

    def watch(self, model: nn.Module) -> None:
        """Nothing."""

    def begin(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def blamed(self) -> list[int]:
        """Nobody."""
        return []


class OutputSums:
    """OutputSums of outputs and of the first parameter's gradients, read only when they are asked for."""

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._now: list[torch.Tensor] = []
        self._tries: list[list[torch.Tensor]] = []

    def watch(self, model: nn.Module) -> None:
        """Look at this model's outputs, and at the last gradient of its backward pass."""
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
        """A step, or another try of it, begins."""
        self._now.clear()

    def end(self) -> None:
        """The try is over: what was seen counts."""
        self._tries.append(self._now)
        self._now = []

    def blamed(self) -> list[int]:
        """Ranks that computed something else the second time; else those with what is not finite."""
        tries, self._tries = [[float(one) for one in row] for row in self._tries], []
        texts = [[value.hex() for value in row] for row in tries]
        other = len(texts) > 1 and texts[0] != texts[-1]
        wrong = any(not math.isfinite(value) for value in (tries[-1] if tries else ()))
        rows = self._channel.gather(json.dumps([other, wrong]).encode())
        told = [json.loads(row) for row in rows]
        others = [rank for rank, row in enumerate(told) if row[0]]
        return others or [rank for rank, row in enumerate(told) if row[1]]
