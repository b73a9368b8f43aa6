"""Compression methods that replace all gradients of a step together by an approximate mean.

All ranks end with the same bits: everything after a collective is computed from its result, which is equal
on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from phalanx.train.gang import randomness
from phalanx.train.numerics.compression.error_feedback import Residuals
from phalanx.train.settings import CompressionSettings
from phalanx.train.state import tree

Named = tuple[str, torch.Tensor]
# Smaller tensors cost more as messages than as bytes.
_SPARSE_FROM = 1024
_TINY = 1e-30
_FIRST, _CHOICE = 11, 12


class NoErrorFeedback(Residuals):
    """Residuals without error feedback: what is not sent is lost. For comparisons."""

    def settle(self, applied: bool) -> None:
        """Keep nothing."""
        super().settle(applied=False)


def residuals_for(wishes: CompressionSettings) -> Residuals:
    """Return the residuals for these settings."""
    return Residuals() if wishes.error_feedback else NoErrorFeedback()


class Codec:
    """A compression method with the residuals of error feedback.

    All ranks make the same calls with the same names in the same order.
    """

    def __init__(self, wishes: CompressionSettings, seed: int) -> None:
        self._wishes, self._seed = wishes, seed
        self._owed = residuals_for(wishes)

    def reduce(self, gradients: Sequence[Named], scale: float, step: int) -> None:
        """Replace the gradients, which a loss scale has multiplied by `scale`, by their mean."""
        raise NotImplementedError

    def _divided(self, gradients: Sequence[Named]) -> tuple[list[torch.Tensor], list[Named]]:
        """Return the gradients that are sent whole, and those that are compressed."""
        small = [grad for _, grad in gradients if not self._pays(grad)]
        return small, [(name, grad) for name, grad in gradients if self._pays(grad)]

    def _pays(self, grad: torch.Tensor) -> bool:
        """Return whether compression makes a gradient smaller."""
        return grad.numel() >= _SPARSE_FROM

    def _count(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's elements that are sent."""
        return max(1, math.ceil(tensor.numel() * self._wishes.fraction))

    def settle(self, applied: bool) -> None:
        """End the step; `applied` says whether it changed the parameters."""
        self._owed.settle(applied)

    def state_dict(self) -> dict[str, Any]:
        """Return every rank's residuals, and what else the next steps depend on."""
        return {"owed": self._owed.state_dict()}

    def load_state_dict(
        self, state: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Restore the state."""
        self._owed.load_state_dict(state["owed"], parameters)


def mean_together(tensors: Sequence[torch.Tensor]) -> None:
    """Replace tensors by their means over all ranks in one collective."""
    if not tensors:
        return
    flat = torch.cat([one.reshape(-1) for one in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for one in tensors:
        one.copy_(flat[at : at + one.numel()].view_as(one))
        at += one.numel()


class PowerSGD(Codec):
    """Low-rank approximation of each matrix (Vogels et al. 2019, algorithm 1), with warm start.

    A matrix M of n × m travels as P (n × r) and Q (m × r) where that is less. All P of a step travel
    together with what is not compressed, then all Q: two collectives a step.
    """

    def __init__(self, wishes: CompressionSettings, seed: int) -> None:
        super().__init__(wishes, seed)
        self._rank = wishes.rank
        self._q: dict[str, torch.Tensor] = {}
        self._next_q: dict[str, torch.Tensor] = {}

    def reduce(self, gradients: Sequence[Named], scale: float, step: int) -> None:
        """Replace the gradients by low-rank approximations of their mean."""
        small, large = self._divided(gradients)
        matrices = [
            self._owed.add(name, grad, scale).view(grad.shape[0], -1) for name, grad in large
        ]
        lefts = [m @ self._right(name, m) for (name, _), m in zip(large, matrices, strict=True)]
        mean_together([*lefts, *small])
        for left in lefts:
            orthogonalize(left)
        rights = [m.t() @ left for m, left in zip(matrices, lefts, strict=True)]
        mine = [one.clone() for one in rights]
        mean_together(rights)
        rows = zip(large, matrices, lefts, rights, mine, strict=True)
        for (name, grad), matrix, left, right, own in rows:
            matrix.addmm_(left, own.t(), alpha=-1.0)
            _put_product(left * scale, right.t(), grad)
            self._next_q[name] = right

    def _pays(self, grad: torch.Tensor) -> bool:
        if grad.dim() < 2 or not grad.numel():
            return False
        n, m = grad.shape[0], grad.numel() // grad.shape[0]
        return (n + m) * min(self._rank, n, m) < n * m

    def _right(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        found = self._next_q.get(name)
        if found is None:
            found = self._q.get(name)
        if found is None:
            columns = min(self._rank, *matrix.shape)
            seed = randomness.mix(self._seed, _FIRST, *name.encode())
            generator = torch.Generator().manual_seed(seed)
            found = torch.randn(matrix.shape[1], columns, generator=generator).to(matrix)
        return found

    def settle(self, applied: bool) -> None:
        """Keep the step's residuals and factors, or discard them."""
        super().settle(applied)
        if applied:
            self._q.update(self._next_q)
        self._next_q.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return every rank's residuals, and the factors that the next step starts from."""
        return {**super().state_dict(), "q": dict(sorted(self._q.items()))}

    def load_state_dict(
        self, state: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Restore the state; factors of another rank start anew."""
        super().load_state_dict(state, parameters)
        for name, saved in state["q"].items():
            factor = tree.cloned(saved).to(parameters[name])
            if factor.shape[1] == min(self._rank, factor.shape[0], parameters[name].shape[0]):
                self._q[name] = factor


def orthogonalize(matrix: torch.Tensor) -> None:
    """Make the columns orthonormal in place (modified Gram-Schmidt; there are few)."""
    for at in range(matrix.shape[1]):
        column = matrix[:, at : at + 1]
        column.div_(column.norm() + _TINY)
        rest = matrix[:, at + 1 :]
        if rest.numel():
            rest.sub_(column @ (column.t() @ rest))


def _put_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Matrix product into a tensor of any shape and layout, without a copy where it lies in order."""
    if out.is_contiguous():
        torch.mm(left, right, out=out.view(left.shape[0], -1))
    else:
        out.copy_((left @ right).view(out.shape))


class TopK(Codec):
    """Sparsification to each rank's largest elements of each tensor, sent as (index, value) pairs."""

    def reduce(self, gradients: Sequence[Named], scale: float, step: int) -> None:
        """Replace the gradients by the mean of what all ranks send."""
        small, large = self._divided(gradients)
        mean_together(small)
        if not large:
            return
        values, places, at = [], [], [0]
        for name, grad in large:
            owed = self._owed.add(name, grad, scale).view(-1)
            best = owed.abs().topk(self._count(owed), sorted=False).indices
            values.append(owed[best].float())
            places.append(best.to(torch.int32))
            owed[best] = 0
            at.append(at[-1] + best.numel())
        mine = torch.cat([torch.cat(values).view(torch.int32), torch.cat(places)])
        received = mine.new_empty(dist.get_world_size() * mine.numel())
        dist.all_gather_single(received, mine)
        rows = received.view(dist.get_world_size(), 2, -1)
        for number, (_, grad) in enumerate(large):
            part = slice(at[number], at[number + 1])
            mean = torch.zeros(grad.numel(), dtype=torch.float32, device=grad.device)
            for row in rows:  # in the order of ranks, so that sums come out alike
                mean.index_add_(0, row[1, part].long(), row[0, part].view(torch.float32))
            grad.copy_(mean.div_(len(rows)).mul_(scale).view_as(grad))


class RandomK(Codec):
    """Sparsification to random elements, the same on all ranks, so that only values are sent."""

    def reduce(self, gradients: Sequence[Named], scale: float, step: int) -> None:
        """Replace the gradients by the mean of what all ranks send."""
        small, large = self._divided(gradients)
        sent, places = [], []
        for name, grad in large:
            owed = self._owed.add(name, grad, scale).view(-1)
            seed = randomness.mix(self._seed, _CHOICE, step, *name.encode())
            generator = torch.Generator().manual_seed(seed)
            draw = torch.randint(owed.numel(), (self._count(owed),), generator=generator)
            place = torch.unique(draw).to(owed.device)
            sent.append(owed[place])
            places.append(place)
            owed[place] = 0
        mean_together([*sent, *small])
        for (_, grad), place, values in zip(large, places, sent, strict=True):
            dense = torch.zeros(grad.numel(), dtype=grad.dtype, device=grad.device)
            dense[place] = values.to(grad.dtype) * scale
            grad.copy_(dense.view_as(grad))


CODECS: Mapping[str, type[Codec]] = {"powersgd": PowerSGD, "topk": TopK, "randomk": RandomK}
