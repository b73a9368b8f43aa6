"""Conversion of frozen dataclasses to JSON values and back, by their type hints.

What a type's hints say is worked out once, into small functions: a control plane decodes thousands of
jobs a second.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
_Read = Callable[[Any], Any]
_Write = Callable[[Any], Any]
_PLAIN = frozenset({str, int, float, bool, type(None)})
_WRITTEN_ONCE: set[type] = set()
_EARLIER_NAMES: dict[type, dict[str, str]] = {}
_KEPT = 1024
_KEPT_BY_NAME = 4096


def encode(value: Any) -> Any:
    """A value made of dataclasses, enums, tuples and plain values, as JSON-ready data.

    Not to be changed by the caller: values of `@written_once` types share theirs.
    """
    kind: Any = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)


def earlier_names(**names: str) -> Callable[[type[T]], type[T]]:
    """Say under which earlier name a field may be stored: `@earlier_names(policy="terms")`.

    `decode` reads both names; where data hold both, the present name counts. `encode` writes the
    present name only. An entry stays for as long as data of the release that wrote it may be read.
    """

    def mark(kind: type[T]) -> type[T]:
        known = {one.name for one in dataclasses.fields(typing.cast("Any", kind))}
        if unknown := sorted(set(names) - known):
            raise TypeError(f"{kind.__name__} has no field {unknown[0]}")
        if taken := sorted(known & set(names.values())):
            raise TypeError(f"{kind.__name__} still has a field {taken[0]}")
        _EARLIER_NAMES[kind] = {earlier: name for name, earlier in names.items()}
        return kind

    return mark


def written_once(kind: type[T]) -> type[T]:
    """For frozen dataclasses that stay as they are inside a record that is written again and again.

    What they are written as is kept for the newest thousand values, which must be hashable and small;
    a value that comes again and again as the same object is not even hashed.
    """
    _WRITTEN_ONCE.add(kind)
    return kind


@functools.cache
def _writer(kind: Any) -> _Write:
    """The function that writes values of exactly this type."""
    if issubclass(kind, Enum):
        return lambda value: value.value
    if dataclasses.is_dataclass(kind):
        return _record_writer(kind)
    if issubclass(kind, tuple | list):
        return lambda value: [encode(item) for item in value]
    if issubclass(kind, dict):
        return lambda value: {str(key): encode(item) for key, item in value.items()}
    return _as_it_is


def _record_writer(kind: Any) -> _Write:
    write = _field_writer(kind)
    return _kept(write) if kind in _WRITTEN_ONCE else write


def _kept(write: _Write) -> _Write:
    """Cache the result of `write` by value; hashing a nested record costs as much as a write."""
    of_value = functools.lru_cache(maxsize=_KEPT)(write)
    of_object: dict[int, tuple[Any, Any]] = {}  # keeps the objects alive, so that ids stay unique

    def kept(value: Any) -> Any:
        known = of_object.get(id(value))
        if known is not None:
            return known[1]
        if len(of_object) >= _KEPT_BY_NAME:
            of_object.clear()
        written = of_value(value)
        of_object[id(value)] = (value, written)
        return written

    return kept


def _field_writer(kind: Any) -> _Write:
    names = tuple(field.name for field in dataclasses.fields(kind))
    if len(names) < 2:
        return lambda value: {name: encode(getattr(value, name)) for name in names}
    values = operator.attrgetter(*names)

    def write(value: Any) -> Any:
        # Most fields are plain: a call for each would be most of the time.
        return {
            name: item if type(item) in _PLAIN else encode(item)
            for name, item in zip(names, values(value), strict=True)
        }

    return write


def decode(kind: type[T], data: Any) -> T:
    """The reverse of `encode` for a known type.

    Fields missing from `data` take their defaults, so that old records stay readable; unknown fields
    are dropped. Raises TypeError or ValueError when the data cannot be of that type.
    """
    wanted: Any = kind
    return typing.cast("T", _reader(wanted)(data))


def _as_it_is(data: Any) -> Any:
    return data


@functools.cache
def _reader(kind: Any) -> _Read:
    """The function that reads values of a type."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(typing.get_args(kind))
    if origin is tuple:
        return _tuple_reader(typing.get_args(kind))
    if origin is dict:
        read = _reader(typing.get_args(kind)[1])
        return lambda data: {key: read(item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if dataclasses.is_dataclass(kind):
        return _record_reader(typing.cast("type", kind))
    if kind is float:
        return lambda data: float(data) if isinstance(data, int) else data
    return _as_it_is


# Hints that compiled classes lose; reading their values unconverted would be wrong.
_BARE = (tuple, dict, list, type)


def _record_reader(kind: type) -> _Read:
    hints = typing.get_type_hints(kind)
    readers: dict[str, _Read] = {}
    earlier = _EARLIER_NAMES.get(kind, {})

    def read(data: Any) -> Any:
        if not readers:  # only now, because a type may hold itself
            for one in dataclasses.fields(kind):
                if hints[one.name] in _BARE:
                    raise TypeError(f"{kind.__name__}.{one.name} does not say what it is made of")
            readers.update({f.name: _reader(hints[f.name]) for f in dataclasses.fields(kind)})
        if earlier and not earlier.keys().isdisjoint(data):
            present = {earlier[name]: item for name, item in data.items() if name in earlier}
            data = present | {name: item for name, item in data.items() if name not in earlier}
        return kind(**{name: readers[name](item) for name, item in data.items() if name in readers})

    return read


def _tuple_reader(args: tuple[Any, ...]) -> _Read:
    if len(args) == 2 and args[1] is Ellipsis:
        read = _reader(args[0])
        if read is _as_it_is:
            return tuple
        return lambda data: tuple([read(item) for item in data])
    readers = [_reader(arg) for arg in args]
    return lambda data: tuple(one(item) for one, item in zip(readers, data, strict=True))


def _union_reader(args: tuple[Any, ...]) -> _Read:
    inner = [arg for arg in args if arg is not type(None)]
    read = _reader(inner[0]) if len(inner) == 1 else _alternatives_reader(inner)
    if type(None) not in args:
        return read
    return lambda data: None if data is None else read(data)


def _alternatives_reader(kinds: list[Any]) -> _Read:
    """Reads one of several plain types, or of several records with a `kind` field."""
    # The default of that field is the name of the record.
    if _PLAIN.issuperset(kinds):
        return _as_it_is
    readers = {kind.__dataclass_fields__["kind"].default: _reader(kind) for kind in kinds}
    return lambda data: readers[data["kind"]](data)
