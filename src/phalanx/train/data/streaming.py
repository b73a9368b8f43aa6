"""Iterable data sets with positions: sample number n is the n-th of one whole iteration.

Every rank and worker reads the whole stream and keeps its own samples. A resume finds the position in it by
reading, by the data set's own `skip(n)`, or from a state that the data set returned earlier. Sharding by
worker or rank inside the data set would lose samples, so it is switched off or detected.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.data import _utils as loading

from phalanx.checkpoint.digest import Digest
from phalanx.errors import DataCorrupt, NotSupported, TrainingError
from phalanx.train.gang import randomness
from phalanx.train.state import tree

_ORDER, _SAMPLE, _BATCH = 1, 2, 3
_LOOKED_AT = 8
_MARK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in a stream: `state` is the data set's state after `cursor` samples of a pass."""

    total_passes: int
    cursor: int
    state: Any

    def to_json(self) -> str | None:
        """Return text for a checkpoint; None for a state that is more than plain values."""
        try:
            body, leaves = tree.collect(self.state)
        except TrainingError:
            return None
        row = {"pass": self.total_passes, "cursor": self.cursor, "state": body}
        return None if leaves else json.dumps(row)

    @classmethod
    def from_json(cls, text: str) -> StreamPosition:
        """Read what `to_json` wrote. Raises CheckpointCorrupt, ValueError or KeyError."""
        row = json.loads(text)
        state = tree.rebuild(row["state"], _no_tensors, "the position in the data")
        return cls(row["pass"], row["cursor"], state)


def _no_tensors(at: int) -> torch.Tensor:
    raise ValueError("the state of a data set holds no tensors")


@dataclass(slots=True)
class PositionedBatch:
    """A batch with the position of its stream, sent by a worker."""

    batch: Any
    mark: StreamPosition

    def pin_memory(self, device: Any = None) -> PositionedBatch:
        """Pin the batch's memory; a DataLoader calls it for unknown types of batches."""
        pinned = loading.pin_memory.pin_memory(self.batch, device)  # type: ignore[no-untyped-call]
        return PositionedBatch(pinned, self.mark)


class _Items(list[Any]):
    """The samples of a batch, and the position of the stream after them where it was taken."""

    def __init__(self, samples: list[Any], mark: StreamPosition | None) -> None:
        super().__init__(samples)
        self.mark = mark


class PositionCollate:
    """The user's collation, which keeps the position beside the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, items: list[Any]) -> Any:
        """Collate the samples."""
        mark = getattr(items, "mark", None)
        batch = self.collate(list(items))
        return batch if mark is None else PositionedBatch(batch, mark)


class StreamDataset(Dataset[Any]):
    """An iterable data set, read by position; rising positions are read without a restart."""

    def __init__(self, dataset: Any, num_samples: int, seed: int, draws: bool = True) -> None:
        self.dataset = dataset
        self._resume: StreamPosition | None = None
        self._num_samples, self._seed, self._draws = num_samples, seed, draws
        state, load = (getattr(dataset, name, None) for name in ("state_dict", "load_state_dict"))
        self._stateful = callable(state) and callable(load)
        self._fresh = copy.deepcopy(dataset.state_dict()) if self._stateful else None
        self._iterator: Iterator[Any] | None = None
        self._pass, self._cursor = -1, 0
        self._marked_at = -_MARK_EVERY_S

    def __len__(self) -> int:
        return self._num_samples

    def resume_from(self, position: StreamPosition) -> None:
        """Start the position's pass from there, not from its beginning."""
        self._resume = position

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None, "_pass": -1}

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Any]:
        """Read the samples at consecutive positions of one pass. Raises DataCorrupt at an early end."""
        total_passes, first = keys[0]
        if self._iterator is None or total_passes != self._pass or first < self._cursor:
            self._open(total_passes, first)
        while self._cursor < first:
            self._next()
        items = _Items([self._next() for _ in keys], self._position())
        if self._draws:
            randomness.seed_sample(randomness.mix(self._seed, _BATCH, *keys[0]))
        return items

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self.__getitems__([key])[0]

    def _position(self) -> StreamPosition | None:
        """Return the position of a stateful data set, at most once per half a second."""
        if not self._stateful or time.monotonic() - self._marked_at < _MARK_EVERY_S:
            return None
        self._marked_at = time.monotonic()
        with _no_worker():
            state = copy.deepcopy(self.dataset.state_dict())
        return StreamPosition(self._pass, self._cursor, state)

    def _open(self, total_passes: int, first: int) -> None:
        """Open a pass as close before `first` as the data set allows."""
        dataset, mark = self.dataset, self._resume
        self._pass, self._cursor = total_passes, 0
        set_epoch = getattr(dataset, "set_epoch", None)
        if callable(set_epoch) and total_passes < 1 << 62:  # an evaluation is no epoch
            set_epoch(total_passes)
        skip = getattr(dataset, "skip", None)
        if self._stateful:
            usable = mark is not None and mark.total_passes == total_passes and mark.cursor <= first
            state = mark.state if mark is not None and usable else self._fresh
            dataset.load_state_dict(copy.deepcopy(state))
            self._cursor = mark.cursor if mark is not None and usable else 0
        elif callable(skip) and first:
            dataset, self._cursor = skip(first), first
        randomness.seed_sample(randomness.mix(self._seed, _ORDER, total_passes))
        with _no_worker():
            self._iterator = iter(dataset)

    def _next(self) -> Any:
        assert self._iterator is not None
        if self._draws:
            # What a sample draws depends on its number alone, wherever the reading began.
            randomness.seed_sample(randomness.mix(self._seed, _SAMPLE, self._pass, self._cursor))
        try:
            with _no_worker():
                item = next(self._iterator)
        except StopIteration:
            name = type(self.dataset).__name__
            raise DataCorrupt(
                f"{name} ended after {self._cursor} samples, but an epoch has {self._num_samples}",
                "its __len__ must be the number of samples that every whole iteration yields",
            ) from None
        self._cursor += 1
        return item

    def first_samples(self) -> str:
        """Return a digest of the first few samples of pass 0; leaves the stream closed."""
        digest = Digest()
        with randomness.undisturbed():
            self._open(0, 0)
            for _ in range(min(_LOOKED_AT, self._num_samples)):
                _add(digest, self._next())
        self._iterator = None
        if self._stateful:
            self.dataset.load_state_dict(copy.deepcopy(self._fresh))
        return digest.text


@contextmanager
def _no_worker() -> Iterator[None]:
    """Hide the worker's number from data sets that split themselves: the loader splits."""
    mine = loading.worker._worker_info
    loading.worker._worker_info = None
    try:
        yield
    finally:
        loading.worker._worker_info = mine


def length_of(dataset: Any) -> int:
    """Return the samples of one pass: `len`, or counted by reading the data. Raises NotSupported."""
    try:
        return len(dataset)
    except TypeError:
        pass
    with randomness.undisturbed():
        randomness.seed_sample(0)
        counted = sum(1 for _ in dataset)
    if not counted:
        raise NotSupported(f"{type(dataset).__name__} yields no samples")
    return counted


def verified_digest(stream: StreamDataset) -> str:
    """Return the digest of the first samples. Raises NotSupported when it differs between iterations."""
    first = stream.first_samples()
    if stream.first_samples() != first:
        raise NotSupported(
            f"{type(stream.dataset).__name__} yields other samples each time it is iterated, so a resume"
            " could not find its position",
            "draw from torch's, numpy's or Python's global generators, or as a function of"
            " set_epoch(epoch)",
        )
    return first


def _add(digest: Digest, value: Any) -> None:
    """Add a sample's contents to a digest; of unknown objects only the type."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.float()
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(repr(key).encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for one in value:
            _add(digest, one)
    elif isinstance(value, bytes | bytearray):
        digest.update(bytes(value))
    elif value is None or isinstance(value, str | int | float | np.generic):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())
