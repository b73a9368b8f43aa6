"""The order of every pass over the data: a function of (seed, pass), equal on all ranks.

The order of torch's sequential and shuffling samplers is computed. The order of any other sampler is
captured: drawn under a seed of the pass, the first pass twice to see whether it can be repeated, and
compared over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from phalanx.checkpoint.digest import digest_of
from phalanx.errors import NotSupported, RankDesync, RestoreMismatch
from phalanx.train.gang import randomness
from phalanx.train.gang.groups import ControlChannel

_ORDER = 1

Agree = Callable[[str, str], None]
"""Raises RankDesync unless every rank passes the same text about the same thing. Collective."""


def agree_locally(what: str, text: str) -> None:
    """The agreement of a run with one rank."""


def agreement_over(channel: ControlChannel) -> Agree:
    """Return a function that compares texts over the ranks of a channel."""

    def agree(what: str, text: str) -> None:
        rows = channel.gather(text.encode())
        same = channel.broadcast("same" if len(set(rows)) == 1 else "") == "same"
        if not same:
            raise RankDesync(
                f"{what} is not the same on all ranks",
                "the library splits every batch over the ranks itself: give each rank the whole data and"
                " a sampler that does not depend on the rank",
            )

    return agree


class SampleOrder:
    """The order of every pass. `captured` orders are compared over the ranks before each pass."""

    captured = False
    _num_samples = 0

    def __len__(self) -> int:
        """Positions of a pass."""
        return self._num_samples

    def __call__(self, total_passes: int) -> Sequence[int] | torch.Tensor:
        """The indices of one pass, in order."""
        raise NotImplementedError

    def bounds(self, total_passes: int) -> tuple[int, ...]:
        """Ends of the micro-batches of one pass; empty where they are cut by size."""
        return ()


class SamplerOrder(SampleOrder):
    """The order of every pass from the sampler of a loader."""

    def __init__(self, sampler: Any, num_samples: int, seed: int) -> None:
        self._num_samples, self._seed = num_samples, seed
        if type(sampler) is SequentialSampler:
            self._draw: Callable[[int], Sequence[int] | torch.Tensor] = self._sequential
        elif _is_plain_shuffle(sampler):
            self._draw = self._shuffled
        else:
            self.captured = True
            self._num_samples = _length_of(sampler)
            self._capture = CapturedSampler(sampler, seed)
            self._draw = self._sampled

    def __call__(self, total_passes: int) -> Sequence[int] | torch.Tensor:
        """The indices of one pass, in order."""
        return self._draw(total_passes)

    def _sequential(self, total_passes: int) -> Sequence[int]:
        return range(self._num_samples)

    def _shuffled(self, total_passes: int) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed(randomness.mix(self._seed, _ORDER, total_passes))
        return torch.randperm(self._num_samples, generator=generator)

    def _sampled(self, total_passes: int) -> torch.Tensor:
        order = torch.tensor(self._capture(total_passes), dtype=torch.int64)
        _same_length(self._capture.name, len(order), self._num_samples)
        return order


class BatchSamplerOrder(SampleOrder):
    """The order of every pass from a user's batch sampler: each of its batches is a global micro-batch."""

    captured = True

    def __init__(self, batch_sampler: Any, seed: int) -> None:
        """Draw the first pass. Raises NotSupported."""
        self._capture = CapturedSampler(batch_sampler, seed)
        self._num_samples = sum(len(batch) for batch in self._capture(0))

    def __call__(self, total_passes: int) -> torch.Tensor:
        """The indices of one pass, batch after batch."""
        flat = [index for batch in self._capture(total_passes) for index in batch]
        _same_length(self._capture.name, len(flat), self._num_samples)
        return torch.tensor(flat, dtype=torch.int64)

    def bounds(self, total_passes: int) -> tuple[int, ...]:
        """Ends of its batches."""
        return tuple(accumulate(len(batch) for batch in self._capture(total_passes)))


class CapturedSampler:
    """The output of a user's sampler in each pass; the last pass is cached."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self.name = type(sampler).__name__
        self._sampler, self._seed = sampler, seed
        self._known: tuple[int, list[Any]] | None = None
        self._checked = False

    def __call__(self, total_passes: int) -> list[Any]:
        """Indices, or lists of them. Raises NotSupported when they cannot be drawn a second time."""
        if self._known is not None and self._known[0] == total_passes:
            return self._known[1]
        drawn = self._draw(total_passes)
        if not self._checked:
            self._checked = True
            if self._draw(total_passes) != drawn:
                raise NotSupported(
                    f"{self.name} gives another order each time it is iterated, so a resume could not find"
                    " its position",
                    "draw from torch's, numpy's or Python's global generators, from an attribute"
                    " `generator`, or as a function of set_epoch(epoch)",
                )
        self._known = (total_passes, drawn)
        return drawn

    def _draw(self, total_passes: int) -> list[Any]:
        seed = randomness.mix(self._seed, _ORDER, total_passes)
        with randomness.undisturbed():
            randomness.seed_sample(seed)
            for one in (self._sampler, getattr(self._sampler, "sampler", None)):
                generator = getattr(one, "generator", None)
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(seed)
                set_epoch = getattr(one, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(total_passes)
            try:
                return [_plain(one) for one in self._sampler]
            except (TypeError, ValueError) as error:
                raise NotSupported(
                    f"{self.name} yields a value that is not an index: {error}",
                    "a sampler yields whole numbers, a batch sampler lists of them",
                ) from error


def _plain(one: Any) -> int | list[int]:
    if isinstance(one, list | tuple):
        return [int(index) for index in one]
    if isinstance(one, torch.Tensor) and one.ndim:
        return [int(index) for index in one.tolist()]
    return int(one)


def order_digest(values: Sequence[int] | torch.Tensor, bounds: Sequence[int]) -> str:
    """Return a digest of one pass's order and of its batch boundaries."""
    flat = torch.as_tensor(values, dtype=torch.int64)
    cuts = torch.tensor(bounds, dtype=torch.int64)
    return digest_of(flat.numpy().tobytes() + b"|" + cuts.numpy().tobytes())


def order_of(loader: DataLoader[Any], num_samples: int, seed: int) -> SampleOrder:
    """Return the order of a loader over `num_samples` samples. Raises NotSupported."""
    if isinstance(loader.dataset, IterableDataset):
        return SamplerOrder(SequentialSampler(range(num_samples)), num_samples, seed)
    if cuts_by_size(loader):
        return SamplerOrder(loader.sampler, num_samples, seed)
    return BatchSamplerOrder(loader.batch_sampler, seed)


def cuts_by_size(loader: DataLoader[Any]) -> bool:
    """Return whether batches are cut by size, not by a batch sampler of the user.

    Raises NotSupported for a loader without batches.
    """
    if loader.batch_sampler is None and loader.batch_size is None:
        raise NotSupported(
            "a loader with batch_size=None yields what its data set yields: batches that the data set"
            " makes itself cannot be split over ranks",
            "let the data set yield single samples and give DataLoader a batch_size",
        )
    # With a batch sampler of the user's, batch_size is None.
    return loader.batch_size is not None


def _is_plain_shuffle(sampler: Any) -> bool:
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


def _length_of(sampler: Any) -> int:
    try:
        return len(sampler)
    except TypeError as error:
        raise NotSupported(
            f"{type(sampler).__name__} has no length, so the end of an epoch is not known",
            "give the sampler a __len__ that is true for every epoch",
        ) from error


def _same_length(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise NotSupported(
            f"{name} yielded {found} indices, but an epoch has {expected}",
            "a sampler must have the same length in every epoch",
        )


def require_seed(saved: int, live: int, where: str) -> None:
    """Raise RestoreMismatch for another seed: it gives another order of the data."""
    if saved != live:
        raise RestoreMismatch(
            f"{where} was written with seed {saved}, this run has {live}",
            "another seed gives another order of the data, in which the saved position means nothing:"
            " use the same seed",
        )
