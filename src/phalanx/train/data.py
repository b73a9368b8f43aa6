"""Loaders that know where they are: the same global batches in the same order at any world size.

The user's DataLoader keeps its workers, its collation and everything else; only its sampler is replaced,
and its data set is wrapped so that each sample's randomness depends on (seed, pass, index)
and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from phalanx.core.batches import Plan, Share, cut
from phalanx.errors import NotSupported
from phalanx.train import randomness

_ORDER, _SAMPLE, _BATCH, _WORKERS = 1, 2, 3, 4
EVALUATION_PASS = (1 << 63) - 1

Key = tuple[int, int]
"""(pass, index): all that a sample's randomness depends on, beside the seed."""


Skips = Callable[[int], Sequence[tuple[int, int]]]
"""Intervals of a pass's positions that no step may use."""


def no_skips(total_passes: int) -> Sequence[tuple[int, int]]:
    """Every position counts."""
    return ()


class SeededDataset(Dataset[Any]):
    """The user's data set, with the global generators seeded before each sample.

    They are left seeded for the batch's collation; whoever asks puts them back.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        many = getattr(dataset, "__getitems__", None)
        self._many = many if callable(many) else None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Any:
        total_passes, index = key
        randomness.seed_sample(randomness.mix(self.seed, _SAMPLE, total_passes, index))
        return self.dataset[index] if self._many is None else self._many([index])[0]

    def __getitems__(self, keys: list[Key]) -> list[Any]:
        """One batch. Samples are asked for one by one: their randomness must not depend on company."""
        items = [self[key] for key in keys]
        if keys:
            randomness.seed_sample(randomness.mix(self.seed, _BATCH, *keys[0]))
        return items


class FixedDataset(Dataset[Any]):
    """A data set that is known to draw nothing: no seeding, the same keys."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Any:
        return self.dataset[key[1]]


class EpochOrder:
    """Every pass's order of the data set's indices, a function of (seed, pass) alone."""

    def __init__(self, sampler: Any, num_samples: int, seed: int) -> None:
        self._sampler = sampler
        self._num_samples = num_samples
        self._seed = seed
        if type(sampler) is SequentialSampler:
            self._draw: Callable[[int], torch.Tensor] = self._sequential
        elif _is_plain_shuffle(sampler):
            self._draw = self._shuffled
        else:
            self._draw = self._sampled
            self._num_samples = len(sampler)

    def __len__(self) -> int:
        return self._num_samples

    def __call__(self, total_passes: int) -> torch.Tensor:
        """The indices of one pass, in order."""
        return self._draw(total_passes)

    def _sequential(self, total_passes: int) -> torch.Tensor:
        return torch.arange(self._num_samples)

    def _shuffled(self, total_passes: int) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed(randomness.mix(self._seed, _ORDER, total_passes))
        return torch.randperm(self._num_samples, generator=generator)

    def _sampled(self, total_passes: int) -> torch.Tensor:
        seed = randomness.mix(self._seed, _ORDER, total_passes)
        with randomness.undisturbed():
            randomness.seed_sample(seed)
            generator = getattr(self._sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
            set_epoch = getattr(self._sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(total_passes)
            order = torch.tensor([int(index) for index in self._sampler])
        if len(order) != self._num_samples:
            raise NotSupported(
                f"{type(self._sampler).__name__} gave {len(order)} indices, its length is"
                f" {self._num_samples}",
                "a sampler's length must hold for every epoch",
            )
        return order


def _is_plain_shuffle(sampler: Any) -> bool:
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


class ShareSampler(Sampler[list[Key]]):
    """This rank's part of each global batch, from where it was last pointed to."""

    def __init__(
        self, order: EpochOrder, plan: Plan, rank: int, world_size: int, skips: Skips
    ) -> None:
        self.plan = plan
        self._order, self._skips = order, skips
        self._rank, self._world_size = rank, world_size
        self._at = (0, 0)

    def point_to(self, total_passes: int, start: int) -> None:
        """Where the next iteration begins."""
        self._at = (total_passes, start)

    def shares(self) -> Iterator[Share]:
        """The shares of the next iteration, in step with its batches."""
        skip = self._skips(self._at[0])
        return self.plan.shares(self._at[1], self._rank, self._world_size, skip)

    def __iter__(self) -> Iterator[list[Key]]:
        total_passes = self._at[0]
        order = self._order(total_passes)
        for share in self.shares():
            yield [(total_passes, index) for index in order[share.lo : share.hi].tolist()]

    def __len__(self) -> int:
        return self.plan.num_micro_batches


class EvaluationSampler(Sampler[list[Key]]):
    """A contiguous part of the data set per rank, in batches of the loader's size."""

    def __init__(self, order: EpochOrder, batch_size: int, rank: int, world_size: int) -> None:
        self._order, self._batch_size = order, batch_size
        self._lo, self._hi = cut(0, len(order), rank, world_size)

    def __iter__(self) -> Iterator[list[Key]]:
        indices = self._order(0)[self._lo : self._hi].tolist()
        for at in range(0, len(indices), self._batch_size):
            yield [(EVALUATION_PASS, index) for index in indices[at : at + self._batch_size]]

    def __len__(self) -> int:
        return -(-(self._hi - self._lo) // self._batch_size)


class Course(Protocol):
    """What a positioned loader tells the run: it is the only object called once per micro-batch."""

    keeps_batches: bool

    def start_pass(self) -> tuple[int, int] | None:
        """(pass, position) to begin at, or None when an earlier generation already did this pass."""
        ...

    def boundary(self) -> None:
        """The previous micro-batch is finished; may save, may leave."""
        ...

    def finish_pass(self) -> None:
        """The data came to its end."""
        ...

    def begin(self, share: Share) -> None:
        """A micro-batch is about to be given out."""
        ...

    def again(self) -> bool:
        """Whether the micro-batches of the last step are to be given out once more."""
        ...


class PositionedLoader:
    """The training loader: iterating it moves the run through its data."""

    def __init__(
        self, loader: DataLoader[Any], sampler: ShareSampler, course: Course, seed: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.plan = sampler.plan
        self.original = loader
        self._course = course
        self._device = device
        self._sampler = sampler
        self._inner = _rebuilt(loader, self._sampler, seed)

    def __len__(self) -> int:
        """Micro-batches of a whole pass."""
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "original":
            raise AttributeError(name)
        return getattr(self.original, name)

    def __iter__(self) -> Iterator[Any]:
        start = self._course.start_pass()
        if start is None:
            return
        self._sampler.point_to(*start)
        fetch = _fetcher(self._inner)
        step: list[tuple[Share, Any]] = []
        for share in self._sampler.shares():
            self._course.boundary()
            batch = to_device(fetch(), self._device)
            if self._course.keeps_batches:
                step.append((share, batch))
            self._course.begin(share)
            yield batch
            if share.last:
                while self._course.again():
                    yield from self._once_more(step)
                step.clear()
        self._course.boundary()
        self._course.finish_pass()

    def _once_more(self, step: list[tuple[Share, Any]]) -> Iterator[Any]:
        for share, batch in step:
            self._course.begin(share)
            yield batch


class EvaluationLoader:
    """A loader over this rank's part of the data; owns no position and disturbs no generator."""

    def __init__(
        self, loader: DataLoader[Any], place: tuple[int, int], seed: int, device: torch.device
    ) -> None:
        """`place` is (rank, world size)."""
        self.original = loader
        self._device = device
        size = batch_size_of(loader)
        order = EpochOrder(loader.sampler, len(loader.dataset), seed)  # type: ignore[arg-type]
        self._sampler = EvaluationSampler(order, size, *place)
        self._inner = _rebuilt(loader, self._sampler, seed)

    def __len__(self) -> int:
        """Batches on this rank."""
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "original":
            raise AttributeError(name)
        return getattr(self.original, name)

    def __iter__(self) -> Iterator[Any]:
        fetch = _fetcher(self._inner)
        for _ in range(len(self._sampler)):
            yield to_device(fetch(), self._device)


def batch_size_of(loader: DataLoader[Any]) -> int:
    """The loader's batch size. Raises NotSupported for loaders that cannot be cut by position."""
    if isinstance(loader.dataset, IterableDataset):
        raise NotSupported(
            "a loader over an IterableDataset has no positions to resume at",
            "use a map-style data set (with __len__ and __getitem__)",
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise NotSupported(
            "a loader with its own batch_sampler, or without batches, cannot be cut by position",
            "give DataLoader a batch_size and, if need be, a sampler",
        )
    return loader.batch_size


def positioned(  # noqa: PLR0913 - all that a plan is made of, by keyword
    loader: DataLoader[Any], course: Course, *, seed: int, place: tuple[int, int],
    reference_world: int, accumulate: int, device: torch.device,
    pieces: Callable[[int], int] = lambda local_batch: 1, skips: Skips = no_skips,
) -> PositionedLoader:  # fmt: skip
    """The user's training loader with a position. Raises NotSupported where there can be none.

    `pieces` says in how many a micro-batch is given out, from what the largest rank would get.
    """
    micro_batch = batch_size_of(loader) * reference_world
    order = EpochOrder(loader.sampler, len(loader.dataset), seed)  # type: ignore[arg-type]
    in_pieces = pieces(-(-micro_batch // place[1]))
    plan = Plan(len(order), micro_batch, accumulate, loader.drop_last, in_pieces)
    sampler = ShareSampler(order, plan, *place, skips)
    return PositionedLoader(loader, sampler, course, seed, device)


def draws_nothing(dataset: Any) -> bool:
    """Whether a data set is known to use no random numbers: then its samples need no seed.

    One may say so of itself by an attribute `draws_nothing`.
    """
    if type(dataset) is Subset:
        return draws_nothing(dataset.dataset)
    return type(dataset) is TensorDataset or getattr(dataset, "draws_nothing", False) is True


def _rebuilt(loader: DataLoader[Any], sampler: Sampler[list[Key]], seed: int) -> DataLoader[Any]:
    if draws_nothing(loader.dataset):
        dataset: Dataset[Any] = FixedDataset(loader.dataset)
    else:
        dataset = SeededDataset(loader.dataset, seed)
    generator = torch.Generator()
    generator.manual_seed(randomness.mix(seed, _WORKERS))
    many = loader.num_workers > 0
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if many else None,
        generator=generator,
        prefetch_factor=loader.prefetch_factor if many else None,
        persistent_workers=loader.persistent_workers,
    )


def _fetcher(inner: DataLoader[Any]) -> Callable[[], Any]:
    """A function that gets the next batch and leaves the global generators as they were."""
    with randomness.undisturbed():
        batches = iter(inner)
    # Putting the generators back costs tenths of a millisecond: not where nobody draws.
    draws_nothing = type(inner.dataset) is FixedDataset and inner.collate_fn is default_collate
    if inner.num_workers > 0 or draws_nothing:
        return batches.__next__

    def fetch() -> Any:
        with randomness.undisturbed():
            return next(batches)

    return fetch


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device; other things as they are."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
