"""Persistent collections: every change returns a new one that shares nearly all memory with the old.

A study of 10,000 trials is decided on thousands of times; copying a list of all trials each time would
cost more than the decision. Both collections are tuples of tuples with about 128 items each, so that a
change copies two short tuples.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_CHUNK = 128


class SortedItems(Generic[T]):
    """An immutable sorted sequence of distinct comparable items."""

    __slots__ = ("_chunks", "_firsts", "_size")

    def __init__(self, items: Iterable[T] = ()) -> None:
        ordered: list[Any] = sorted(items)
        chunks = [tuple(ordered[at : at + _CHUNK]) for at in range(0, len(ordered), _CHUNK)]
        self._set(tuple(chunks), tuple(chunk[0] for chunk in chunks), len(ordered))

    def _set(self, chunks: tuple[Any, ...], firsts: tuple[Any, ...], size: int) -> None:
        self._chunks = chunks
        self._firsts = firsts
        self._size = size

    def _changed(self, at: int, *chunks: tuple[Any, ...], size: int) -> SortedItems[T]:
        """A copy with chunk number `at` replaced by `chunks`."""
        made: SortedItems[T] = SortedItems.__new__(SortedItems)
        firsts = tuple([chunk[0] for chunk in chunks])
        made._set(
            self._chunks[:at] + chunks + self._chunks[at + 1 :],
            self._firsts[:at] + firsts + self._firsts[at + 1 :],
            size,
        )
        return made

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedItems) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"SortedItems({list(self)!r})"

    def __contains__(self, item: T) -> bool:
        at = self._chunk_of(item)
        if at < 0:
            return False
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        return bool(place < len(chunk) and chunk[place] == item)

    def _chunk_of(self, item: T) -> int:
        """The number of the chunk that the item belongs to; -1 if there is none."""
        if not self._size:
            return -1
        return max(bisect_right(self._firsts, item) - 1, 0)

    def add(self, item: T) -> SortedItems[T]:
        """With the item, which must not be there."""
        at = self._chunk_of(item)
        if at < 0:
            return self._changed(0, (item,), size=1)
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        longer = (*chunk[:place], item, *chunk[place:])
        if len(longer) <= _CHUNK:
            return self._changed(at, longer, size=self._size + 1)
        half = len(longer) // 2
        return self._changed(at, longer[:half], longer[half:], size=self._size + 1)

    def remove(self, item: T) -> SortedItems[T]:
        """Without the item. Raises KeyError if it is not there."""
        at = self._chunk_of(item)
        chunk = self._chunks[at] if at >= 0 else ()
        place = bisect_left(chunk, item)
        if place >= len(chunk) or chunk[place] != item:
            raise KeyError(item)
        shorter = chunk[:place] + chunk[place + 1 :]
        return self._changed(at, *((shorter,) if shorter else ()), size=self._size - 1)

    def first(self) -> T | None:
        """The smallest item; None if there is none."""
        return self._firsts[0] if self._size else None

    def rank(self, item: T) -> int:
        """Number of items that are smaller."""
        at = self._chunk_of(item)
        if at < 0:
            return 0
        return sum(map(len, self._chunks[:at])) + bisect_left(self._chunks[at], item)

    def at(self, index: int) -> T:
        """The item with so many smaller ones. Raises IndexError."""
        for chunk in self._chunks:
            if index < len(chunk):
                item: T = chunk[index]
                return item
            index -= len(chunk)
        raise IndexError(index)

    def from_item(self, item: T) -> Iterator[T]:
        """The items that are not smaller than `item`, in order."""
        at = max(self._chunk_of(item), 0)
        for number in range(at, len(self._chunks)):
            chunk = self._chunks[number]
            yield from chunk[bisect_left(chunk, item) if number == at else 0 :]


class Numbered(Generic[T]):
    """An immutable sequence of items numbered from 0, with cheap replacement and appending."""

    __slots__ = ("_chunks", "_size")

    def __init__(self, items: Iterable[T] = ()) -> None:
        given = tuple(items)
        self._chunks = tuple(given[at : at + _CHUNK] for at in range(0, len(given), _CHUNK))
        self._size = len(given)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def __getitem__(self, number: int) -> T:
        if not 0 <= number < self._size:
            raise IndexError(number)
        return self._chunks[number // _CHUNK][number % _CHUNK]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbered) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Numbered({list(self)!r})"

    def put(self, number: int, item: T) -> Numbered[T]:
        """With the item at a number; the number after the last one appends. Raises IndexError."""
        if not 0 <= number <= self._size:
            raise IndexError(number)
        at, place = divmod(number, _CHUNK)
        chunk = self._chunks[at] if at < len(self._chunks) else ()
        made: Numbered[T] = Numbered.__new__(Numbered)
        made._chunks = (
            *self._chunks[:at],
            (*chunk[:place], item, *chunk[place + 1 :]),
            *self._chunks[at + 1 :],
        )
        made._size = max(self._size, number + 1)
        return made
