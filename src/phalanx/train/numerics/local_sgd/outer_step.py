"""The outer step at the end of a round, by all ranks together; `worker` has that of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.sgd import sgd

from phalanx.train.numerics.local_sgd.exchange import EXCHANGES
from phalanx.train.settings import OuterSettings
from phalanx.train.state import per_rank, tree

Named = Mapping[str, torch.Tensor]


class OuterStep:
    """A step from the outer weights along the mean change of the ranks."""

    averages_buffers = True
    lags = False
    """Whether ranks may continue from different outer weights."""

    def step(self, at: str, done: Named, outer: Named) -> int:
        """Update `outer` in place; `done` is outer minus this rank's weights. Returns bytes sent.

        `at` names the fragment. Every rank calls it.
        """
        raise NotImplementedError

    def shared(self, outer: Named) -> Named:
        """Return the outer weights for a checkpoint; `outer` is this rank's copy. Collective."""
        return outer

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next steps depend on, beside the weights of the last `shared`."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any], outer: Named) -> None:
        """Start from these outer weights, and from this state if it is not empty."""
        raise NotImplementedError


class AllReducedOuterStep(OuterStep):
    """The outer step by all ranks: each applies the same mean, so their outer weights are equal."""

    def __init__(self, wishes: OuterSettings, quantize: str) -> None:
        self._wishes, self._exchange = wishes, EXCHANGES[quantize]
        self._momentum: dict[str, torch.Tensor] = {}
        self._owed: dict[str, torch.Tensor] = {}
        self._keeps = quantize != "none"

    def step(self, at: str, done: Named, outer: Named) -> int:
        """Make one step of SGD along the mean."""
        names = list(done)
        flat = torch.cat([done[name].reshape(-1).float() for name in names])
        zeros = {name: torch.zeros_like(one, dtype=torch.float32) for name, one in done.items()}
        owed = torch.cat([self._owed.get(name, zeros[name]).reshape(-1) for name in names])
        mean = self._exchange.mean(flat, owed)
        shapes = list(done.values())
        gradients = dict(zip(names, split(mean, shapes), strict=True))
        if self._keeps:
            self._owed.update(zip(names, split(owed, shapes), strict=True))
        outer_step(self._wishes, outer, gradients, self._momentum)
        return self._exchange.sent_bytes(flat.numel())

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum, equal on all ranks, and each rank's residuals."""
        return {"momentum": dict(self._momentum), "owed": per_rank.spread(self._owed)}

    def load_state_dict(self, state: Mapping[str, Any], outer: Named) -> None:
        """Restore the state of parameters that still exist."""
        self._momentum, self._owed = {}, {}
        for name, saved in state.get("momentum", {}).items():
            if name in outer:
                self._momentum[name] = tree.cloned(saved).to(outer[name].device)
        for name, saved in state.get("owed", {}).items() if self._keeps else ():
            if name in outer:
                self._owed[name] = per_rank.mine(saved).to(outer[name].device)


def outer_step(
    wishes: OuterSettings, outer: Named, gradients: Named, momentum: dict[str, torch.Tensor]
) -> None:
    """Apply torch's SGD to `outer` in place; `momentum` is updated by name."""
    names = list(gradients)
    kept = [momentum.get(name) for name in names]
    with torch.no_grad():
        sgd(
            [outer[name] for name in names],
            [gradients[name].to(outer[name].dtype) for name in names],
            kept,
            weight_decay=0.0,
            momentum=wishes.momentum,
            lr=wishes.lr,
            dampening=0.0,
            nesterov=wishes.nesterov,
            maximize=False,
            foreach=False,
        )
    momentum.update({name: one for name, one in zip(names, kept, strict=True) if one is not None})


def split(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Split a flat tensor into parts shaped as `like`."""
    parts = torch.split(flat, [one.numel() for one in like])
    return [part.view(one.shape) for part, one in zip(parts, like, strict=True)]
