"""Loaders with a position: the same global batches in the same order at any world size.

Of the user's DataLoader only the sampler is replaced, and the data set is wrapped so that the randomness of
a sample depends on (seed, pass, index) and nothing else. Workers, collation and the rest stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
)

from phalanx.core.training.batches import BatchPlan, Share, cut
from phalanx.train.data.ordering import (
    Agree,
    SampleOrder,
    agree_locally,
    cuts_by_size,
    order_digest,
    order_of,
)
from phalanx.train.data.streaming import (
    PositionCollate,
    PositionedBatch,
    StreamDataset,
    StreamPosition,
    length_of,
    verified_digest,
)
from phalanx.train.gang import randomness

_SAMPLE, _BATCH, _WORKERS = 2, 3, 4
EVALUATION_PASS = (1 << 63) - 1

Key = tuple[int, int]
"""(pass, index): all that a sample's randomness depends on, beside the seed."""


Skips = Callable[[int], Sequence[tuple[int, int]]]
"""Intervals of a pass's positions that no step may use."""

Parts = Callable[[], tuple[int, ...]]
"""The ranks' relative shares of every batch; empty: even ones."""


def no_skips(total_passes: int) -> Sequence[tuple[int, int]]:
    """Skip no position."""
    return ()


class SeededDataset(Dataset[Any]):
    """The user's data set, with the global generators seeded before each sample.

    They are left seeded for the batch's collation; the caller restores them.
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
        """Read one batch, sample by sample, because a sample's randomness must not depend on its batch."""
        items = [self[key] for key in keys]
        if keys:
            randomness.seed_sample(randomness.mix(self.seed, _BATCH, *keys[0]))
        return items


class FixedDataset(Dataset[Any]):
    """A data set that draws no random numbers: the same keys, without seeding."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Any:
        return self.dataset[key[1]]


class ShareSampler(Sampler[list[Key]]):
    """A sampler of this rank's part of each global batch, from a given position on."""

    def __init__(
        self,
        order: SampleOrder,
        plan: BatchPlan,
        place: tuple[int, int],
        skips: Skips = no_skips,
        agree: Agree = agree_locally,
        parts: Parts = tuple,
    ) -> None:
        """Create the sampler; `place` is (rank, world size)."""
        self.plan = plan
        self._order, self._skips, self._agree, self._parts = order, skips, agree, parts
        self._rank, self._world_size = place
        self._at = (0, 0)

    def point_to(self, total_passes: int, start: int) -> None:
        """Set where the next iteration begins. Collective; raises RankDesync and NotSupported."""
        self._at = (total_passes, start)
        bounds = self._order.bounds(total_passes)
        sizes = (hi - lo for lo, hi in pairwise((0, *bounds)))
        largest = max(sizes, default=self.plan.micro_batch)
        self.plan = replace(self.plan, bounds=bounds, micro_batch=largest, parts=self._parts())
        if self._order.captured:
            values = self._order(total_passes)
            self._agree("the order that the sampler gives", order_digest(values, bounds))

    def shares(self) -> Iterator[Share]:
        """Return the shares of the next iteration, one per batch."""
        skip = self._skips(self._at[0])
        return self.plan.shares(self._at[1], self._rank, self._world_size, skip)

    def __iter__(self) -> Iterator[list[Key]]:
        total_passes = self._at[0]
        order = self._order(total_passes)
        for share in self.shares():
            yield [(total_passes, index) for index in _indices(order, share.lo, share.hi)]

    def __len__(self) -> int:
        return self.plan.num_micro_batches


def _indices(order: Sequence[int] | torch.Tensor, lo: int, hi: int) -> list[int]:
    part = order[lo:hi]
    return part.tolist() if isinstance(part, torch.Tensor) else list(part)


class EvaluationSampler(Sampler[list[Key]]):
    """A sampler of a contiguous part of the data set for each rank.

    Of a batch sampler's batches, a contiguous part of those.
    """

    def __init__(self, order: SampleOrder, batch_size: int, rank: int, world_size: int) -> None:
        bounds = order.bounds(0)
        edges = (0, *bounds)
        if bounds:
            first, end = cut(0, len(bounds), rank, world_size)
            self._cuts = list(pairwise(edges[first : end + 1]))
        else:
            lo, hi = cut(0, len(order), rank, world_size)
            starts = range(lo, hi, batch_size)
            self._cuts = [(at, min(at + batch_size, hi)) for at in starts]
        self._order = order

    def __iter__(self) -> Iterator[list[Key]]:
        order = self._order(0)
        for lo, hi in self._cuts:
            yield [(EVALUATION_PASS, index) for index in _indices(order, lo, hi)]

    def __len__(self) -> int:
        return len(self._cuts)


class PassController(Protocol):
    """The calls of a positioned loader on the training loop, around every micro-batch and pass."""

    keeps_batches: bool

    def start_pass(self) -> tuple[int, int] | None:
        """Return (pass, position) to begin at, or None when an earlier generation finished this pass."""
        ...

    def boundary(self) -> None:
        """End the previous micro-batch; may save, may end the script."""
        ...

    def finish_pass(self) -> None:
        """End the pass."""
        ...

    def begin(self, share: Share) -> None:
        """Begin a micro-batch."""
        ...

    def again(self) -> bool:
        """Return whether the micro-batches of the last step must be repeated."""
        ...


class WrappedLoader:
    """The user's loader with another sampler and data set; its other attributes are the user's."""

    def __init__(
        self,
        loader: DataLoader[Any],
        dataset: Dataset[Any],
        sampler: Sampler[list[Key]],
        seed: int,
        device: torch.device,
    ) -> None:
        self.original = loader
        self._device = device
        self._inner = _rebuilt(loader, dataset, sampler, seed)

    def __getattr__(self, name: str) -> Any:
        if name == "original":
            raise AttributeError(name)
        return getattr(self.original, name)


class PositionedLoader(WrappedLoader):
    """The training loader: iterating it advances the position of the run."""

    def __init__(
        self,
        loader: DataLoader[Any],
        dataset: Dataset[Any],
        sampler: ShareSampler,
        course: PassController,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(loader, dataset, sampler, seed, device)
        self.plan = sampler.plan
        self._course = course
        self._sampler = sampler
        self._dataset = dataset
        self._mark: StreamPosition | None = None

    @property
    def stream_state(self) -> str | None:
        """The position of a stateful iterable data set at the last batch, for a checkpoint."""
        return None if self._mark is None else self._mark.to_json()

    def take_up(self, stream_state: str | None) -> None:
        """Begin the first pass near the position that an earlier generation saved."""
        if stream_state is not None and isinstance(self._dataset, StreamDataset):
            self._dataset.resume_from(StreamPosition.from_json(stream_state))

    def __len__(self) -> int:
        """Micro-batches of a whole pass."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        start = self._course.start_pass()
        if start is None:
            return
        self._sampler.point_to(*start)
        fetch = _fetcher(self._inner)
        step: list[tuple[Share, Any]] = []
        for share in self._sampler.shares():
            self._course.boundary()
            found = fetch()
            if type(found) is PositionedBatch:
                self._mark, found = found.mark, found.batch
            batch = to_device(found, self._device)
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


class EvaluationLoader(WrappedLoader):
    """An evaluation loader over this rank's part of the data, without a position."""

    def __init__(
        self,
        loader: DataLoader[Any],
        place: tuple[int, int],
        seed: int,
        device: torch.device,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the loader; `place` is (rank, world size), `on_begin` runs before every pass."""
        dataset = seeded(loader, seed)
        order = order_of(loader, len(dataset), seed)  # type: ignore[arg-type]
        size = (loader.batch_size or 0) if cuts_by_size(loader) else 0
        self._sampler = EvaluationSampler(order, size, *place)
        self._on_begin = on_begin
        super().__init__(loader, dataset, self._sampler, seed, device)

    def __len__(self) -> int:
        """Batches on this rank."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self._on_begin()
        fetch = _fetcher(self._inner)
        for _ in range(len(self._sampler)):
            found = fetch()
            yield to_device(found.batch if type(found) is PositionedBatch else found, self._device)


def positioned(  # noqa: PLR0913 - the inputs of a batch plan, by keyword
    loader: DataLoader[Any],
    course: PassController,
    *,
    seed: int,
    place: tuple[int, int],
    reference_world: int,
    accumulate: int,
    device: torch.device,
    pieces: Callable[[int], int] = lambda local_batch: 1,
    skips: Skips = no_skips,
    agree: Agree = agree_locally,
    parts: Parts = tuple,
    num_samples: int | None = None,
) -> PositionedLoader:
    """Wrap the user's training loader with a position. Collective; raises NotSupported, RankDesync.

    `pieces` returns into how many pieces a micro-batch is divided, given the samples of the largest
    rank; `parts` is called at every pass. `num_samples` is an iterable's length where it is known.
    """
    dataset = seeded(loader, seed, num_samples)
    if isinstance(dataset, StreamDataset):
        agree("what the iterable data set yields", f"{len(dataset)} {verified_digest(dataset)}")
    order = order_of(loader, len(dataset), seed)  # type: ignore[arg-type]
    bounds = order.bounds(0)
    if cuts_by_size(loader):
        micro_batch = (loader.batch_size or 0) * reference_world
    else:
        micro_batch = max((hi - lo for lo, hi in pairwise((0, *bounds))), default=1)
    plan = BatchPlan(
        len(order), micro_batch, accumulate, loader.drop_last, bounds=bounds, parts=parts()
    )
    plan = replace(plan, pieces=pieces(plan.largest_share(place[1])))
    sampler = ShareSampler(order, plan, place, skips, agree, parts)
    return PositionedLoader(loader, dataset, sampler, course, seed, device)


def draws_nothing(dataset: Any) -> bool:
    """Return whether a data set declares that it uses no random numbers.

    One may say so of itself by an attribute `draws_nothing`.
    """
    if type(dataset) is Subset:
        return draws_nothing(dataset.dataset)
    return type(dataset) is TensorDataset or getattr(dataset, "draws_nothing", False) is True


def seeded(loader: DataLoader[Any], seed: int, num_samples: int | None = None) -> Dataset[Any]:
    """Wrap the loader's data set so that samples are read by (pass, position or index)."""
    if isinstance(loader.dataset, IterableDataset):
        cuts_by_size(loader)
        length = length_of(loader.dataset) if num_samples is None else num_samples
        return StreamDataset(loader.dataset, length, seed, not draws_nothing(loader.dataset))
    if draws_nothing(loader.dataset):
        return FixedDataset(loader.dataset)
    return SeededDataset(loader.dataset, seed)


def _rebuilt(
    loader: DataLoader[Any], dataset: Dataset[Any], sampler: Sampler[list[Key]], seed: int
) -> DataLoader[Any]:
    collate: Any = loader.collate_fn
    if isinstance(dataset, StreamDataset):
        collate = PositionCollate(collate)
    generator = torch.Generator()
    generator.manual_seed(randomness.mix(seed, _WORKERS))
    many = loader.num_workers > 0
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=collate,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if many else None,
        generator=generator,
        prefetch_factor=loader.prefetch_factor if many else None,
        persistent_workers=loader.persistent_workers,
    )


def _fetcher(inner: DataLoader[Any]) -> Callable[[], Any]:
    """Return a function that gets the next batch and preserves the global generators."""
    with randomness.undisturbed():
        batches = iter(inner)
    # Restoring the generators costs tenths of a millisecond: not done where no random number is drawn.
    draws_nothing = type(inner.dataset) is FixedDataset and inner.collate_fn is default_collate
    if inner.num_workers > 0 or draws_nothing:
        return batches.__next__

    def fetch() -> Any:
        with randomness.undisturbed():
            return next(batches)

    return fetch


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch's tensors to the device; other objects stay."""
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
