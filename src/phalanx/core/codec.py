"""Frozen dataclasses to plain JSON values and back, by their type hints. No pickle, no registry."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A value made of dataclasses, enums, tuples and plain values, as JSON-ready data."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def decode(kind: type[T], data: Any) -> T:
    """The reverse of `encode` for a known type.

    Fields missing from `data` take their defaults, so that old records stay readable; unknown fields
    are dropped. Raises TypeError or ValueError when the data cannot be of that type.
    """
    return typing.cast("T", _decode(kind, data))


def _decode(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), data)
    if origin is tuple:
        args = typing.get_args(kind)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], item) for item in data)
        return tuple(_decode(arg, item) for arg, item in zip(args, data, strict=True))
    if origin is dict:
        return {key: _decode(typing.get_args(kind)[1], item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast("type", kind))
        known = {f.name for f in dataclasses.fields(kind)}
        return kind(**{k: _decode(hints[k], v) for k, v in data.items() if k in known})  # type: ignore[operator]
    if kind is float and isinstance(data, int):
        return float(data)
    return data


def _decode_union(args: tuple[Any, ...], data: Any) -> Any:
    if data is None and type(None) in args:
        return None
    (inner,) = (arg for arg in args if arg is not type(None))
    return _decode(inner, data)
