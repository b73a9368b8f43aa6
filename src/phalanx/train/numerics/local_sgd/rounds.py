"""Rounds of local SGD: ranks take optimizer steps on their own and exchange weights after each round.

Each rank's model holds weights of its own. Beside them are the *outer* weights, equal on all ranks: the
result of the last exchange of each fragment. An exchange averages (outer - own) weights over the ranks and
gives the mean to the outer optimizer as a gradient (Douillard et al. 2023, DiLoCo; with plain averaging:
Local SGD). Every rank continues from the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from phalanx.core.contract.records import WeightSyncRecord
from phalanx.core.training import rounds as schedule
from phalanx.errors import RestoreMismatch
from phalanx.train.gang.agreement import (
    AdaptiveInterval,
    Agreement,
    DelayedReductionAgreement,
    FixedInterval,
)
from phalanx.train.gang.groups import Connection
from phalanx.train.numerics.local_sgd.outer_step import OuterStep, split
from phalanx.train.settings import SyncSettings
from phalanx.train.state import per_rank, restoring


class ModelRounds:
    """The outer weights and exchanges of one model."""

    def __init__(self, model: nn.Module, wishes: SyncSettings, outside: OuterStep) -> None:
        self.model, self._outside = model, outside
        self._every = wishes.every
        self._inner = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self._names = list(self._inner)
        # A tied parameter has several names; the rounds use the first.
        first = {one: name for name, one in reversed(self._inner.items())}
        every = model.named_parameters(remove_duplicate=False)
        self._aliases = {name: first[one] for name, one in every if one in first}
        sizes = [one.numel() for one in self._inner.values()]
        self._fragments = schedule.fragments(sizes, wishes.fragments) if sizes else []
        self._exchanged = [0] * len(self._fragments)
        self._settled = 0
        self._outer: dict[str, torch.Tensor] = {}
        self._start()
        outside.load_state_dict({}, self._outer)

    def _start(self) -> None:
        self._outer = {name: one.detach().clone() for name, one in self._inner.items()}

    # -- exchanging ------------------------------------------------------------------------------

    def step_over(self, step: int) -> Iterator[tuple[int, int]]:
        """Exchange the fragments due at this step; yields (fragment, bytes sent)."""
        for fragment in schedule.due(step, self._every, len(self._fragments)):
            yield fragment, self._exchange(fragment, step)
            if fragment == 0 and self._outside.averages_buffers:
                self._average_buffers()

    def unfinished(self, step: int) -> bool:
        """Return whether ranks may have different weights."""
        lags = self._outside.lags and self._settled != step
        return lags or any(exchanged < step for exchanged in self._exchanged)

    def finish(self, step: int) -> Iterator[tuple[int, int]]:
        """Exchange every fragment that changed since its last exchange."""
        late = [at for at, exchanged in enumerate(self._exchanged) if exchanged < step]
        for fragment in late:
            yield fragment, self._exchange(fragment, step)
        if self._outside.lags:
            self._settle(step)
        self._average_buffers()

    @torch.no_grad()
    def _settle(self, step: int) -> None:
        """Set the model to the outer weights that all ranks share."""
        for name, one in self._outside.shared(self._outer).items():
            self._outer[name].copy_(one)
            self._inner[name].copy_(one)
        self._settled = step

    @torch.no_grad()
    def _exchange(self, fragment: int, step: int) -> int:
        names = [self._names[at] for at in self._fragments[fragment]]
        outer = {name: self._outer[name] for name in names}
        done = {name: outer[name] - self._inner[name].detach() for name in names}
        sent = self._outside.step(f"{fragment}", done, outer)
        for name in names:
            self._inner[name].copy_(outer[name])
        self._exchanged[fragment] = step
        return sent

    @torch.no_grad()
    def _average_buffers(self) -> None:
        found = [one for one in self.model.buffers() if one.is_floating_point()]
        if not found or per_rank.num_ranks() == 1:
            return
        flat = torch.cat([one.reshape(-1).float() for one in found])
        dist.all_reduce(flat)
        flat /= per_rank.num_ranks()
        for one, mean in zip(found, split(flat, found), strict=True):
            one.copy_(mean)

    @contextmanager
    def outer_weights(self) -> Iterator[None]:
        """Put the outer weights into the model for the duration of the block."""
        own = {name: one.detach().clone() for name, one in self._inner.items()}
        with torch.no_grad():
            for name, one in self._inner.items():
                one.copy_(self._outer[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, one in self._inner.items():
                    one.copy_(own[name])

    # -- state -----------------------------------------------------------------------------------

    def model_state(self) -> dict[str, Any]:
        """Return the model's state for a checkpoint: with the outer weights."""
        shared = self._outside.shared(self._outer)
        outer = {name: shared[first] for name, first in self._aliases.items()}
        return {**self.model.state_dict(), **outer}

    def state_dict(self) -> dict[str, Any]:
        """Return every rank's own weights, and the state that the next exchanges depend on."""
        state = self.model.state_dict()
        own = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
        shared = {name for name, one in self.model.named_parameters() if not one.requires_grad}
        return {
            "own": per_rank.spread({name: one for name, one in own.items() if name not in shared}),
            "outside": self._outside.state_dict(),
            "exchanged": list(self._exchanged),
            "settled": self._settled,
            "base": per_rank.spread(self._outer) if self._outside.lags else {},
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state; the model holds the outer weights already.

        At another number of ranks all of them continue from the mean of their weights, so that no work is
        lost.
        """
        self._start()
        saved = state or {}
        self._outside.load_state_dict(saved.get("outside", {}), self._outer)
        marks = saved.get("exchanged", [])
        oldest = min(marks, default=0)
        same = len(marks) == len(self._fragments)
        self._exchanged = list(marks) if same else [oldest] * len(self._fragments)
        self._settled = saved.get("settled", 0)
        live = self.model.state_dict()
        with torch.no_grad():
            for name, one in saved.get("own", {}).items():
                live[name].copy_(per_rank.mine(one))
            for name, one in saved.get("base", {}).items():
                if per_rank.as_before(one):
                    self._outer[name].copy_(per_rank.mine(one))
                else:
                    # The ranks began at different outer weights: only the change since then counts.
                    self._inner[name].add_(self._outer[name] - per_rank.mine(one))


class Rounds:
    """The exchange of weights for all models of a run. Every rank makes the same calls.

    The methods here are those of a run that reduces gradients in every step: its weights are equal on all
    ranks, so there is nothing to exchange.
    """

    is_local = False
    inexact: str | None = None
    """Why a resumed run is not bit-identical, if it is not."""

    def watch(self, model: nn.Module) -> None:
        """Add a model with weights that are equal on all ranks."""

    def restore(self, at: int, state: Mapping[str, Any] | None) -> None:
        """Restore the state of model number `at`, with weights already loaded; None: no state."""

    def step_over(self, step: int) -> None:
        """End an optimizer step: exchange what is due after it."""

    def finish(self, step: int) -> bool:
        """Make the weights of all ranks equal at the end; returns whether any changed."""
        return False

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the model's state for a checkpoint, equal on all ranks."""
        return dict(model.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return an optimizer's state for a checkpoint."""
        return restoring.optimizer_state(optimizer)

    def saved_optimizer(self, saved: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of a saved optimizer. Raises RestoreMismatch.

        Where the ranks that saved it each had their own, it is the mean of theirs.
        """
        if not saved.get("rows"):
            return saved
        if any(isinstance(one, DTensor) for one in restoring.parameters_of(optimizer)):
            raise RestoreMismatch(
                "the checkpoint was written by independent replicas (sync)",
                "resume the checkpoint with sync, or with strategy ddp",
            )
        return {**saved, "state": _rowwise(saved["state"], per_rank.mean)}

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the further state for a checkpoint, model by model."""
        return []

    def agreement(self, connection: Connection) -> Agreement:
        """Create the agreement for gangs without a shared page. Collective."""
        return DelayedReductionAgreement(connection.private_group())

    def close(self) -> None:
        """End the exchanges."""

    @contextmanager
    def outer_weights(self) -> Iterator[None]:
        """Put the weights of the last exchange into all models for the duration of the block."""
        yield


class LocalRounds(Rounds):
    """Rounds in which ranks train on their own between exchanges."""

    is_local = True

    def __init__(
        self, wishes: SyncSettings, outside: Callable[[int], OuterStep], tell: Callable[..., None]
    ) -> None:
        """Create the rounds; `outside` makes a model's outer step, `tell` gets each exchange."""
        self._wishes, self._outside, self._tell = wishes, outside, tell
        self.inexact = "ranks may lag (staleness)" if wishes.staleness else None
        self._members: list[ModelRounds] = []

    def watch(self, model: nn.Module) -> None:
        """Add a model with weights that are equal on all ranks."""
        self._members.append(ModelRounds(model, self._wishes, self._outside(len(self._members))))

    def restore(self, at: int, state: Mapping[str, Any] | None) -> None:
        """Restore the state of model number `at`, with weights already loaded; None: no state."""
        self._members[at].load_state_dict(state)

    def step_over(self, step: int) -> None:
        """Exchange the fragments that are due after this step."""
        for member in self._members:
            self._do(member.step_over(step), step)

    def finish(self, step: int) -> bool:
        """Exchange everything that changed since its last exchange."""
        unfinished = [member for member in self._members if member.unfinished(step)]
        for member in unfinished:
            self._do(member.finish(step), step)
        return bool(unfinished)

    def _do(self, exchanges: Iterator[tuple[int, int]], step: int) -> None:
        began = time.perf_counter()
        for fragment, sent in exchanges:
            now = time.perf_counter()
            took = round(now - began, 6)
            self._tell(WeightSyncRecord(step=step, fragment=fragment, bytes=sent, seconds=took))
            began = now

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the model's state with the outer weights, equal on all ranks."""
        return next(one for one in self._members if one.model is model).model_state()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state with one row for each rank."""
        saved = restoring.optimizer_state(optimizer)
        return {**saved, "state": _only_state(saved["state"], per_rank.spread), "rows": True}

    def saved_optimizer(self, saved: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's row, or the common state of a checkpoint without rows."""
        if not saved.get("rows"):
            return saved
        return {**saved, "state": _rowwise(saved["state"], per_rank.mine)}

    def state_dict(self) -> list[dict[str, Any]]:
        """Return every rank's own weights, and the state that the next exchanges depend on."""
        return [member.state_dict() for member in self._members]

    def agreement(self, connection: Connection) -> Agreement:
        """Create an agreement by a small reduction every `control_every` steps, or about once a second."""
        every = self._wishes.control_every
        pace = AdaptiveInterval() if every is None else FixedInterval(every)
        return DelayedReductionAgreement(connection.private_group(), pace)

    @contextmanager
    def outer_weights(self) -> Iterator[None]:
        """Put the weights of the last exchange into all models for the duration of the block."""
        with ExitStack() as stack:
            for member in self._members:
                stack.enter_context(member.outer_weights())
            yield


def _only_state(saved: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return an optimizer's state dictionary with its tensors changed and the same groups."""
    return {**saved, "state": change(saved["state"])}


def _rowwise(saved: Mapping[str, Any], take: Callable[[Any], torch.Tensor]) -> dict[str, Any]:
    return _only_state(saved, lambda state: per_rank.gathered(state, take))
