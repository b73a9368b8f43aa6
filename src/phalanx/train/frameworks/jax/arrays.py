"""Conversion of JAX pytrees to JSON rows with raw arrays, and back into arrays of any sharding.

Every array of a tree has a number. A process writes the shards of which it holds the first copy,
each with its region, so a tree is restored under any number of processes and any sharding. Typed
random keys are stored as integers. Plain numbers, text and None are stored in the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from phalanx.checkpoint.tensorfile import ByteSource, TensorBytes, TensorEntry, TensorRegion
from phalanx.errors import CheckpointCorrupt, RestoreMismatch, TrainingError
from phalanx.train.state.regions import StoredPart, index_in, stored_overlaps

_HINT = "restore into the tree that was saved, or start a new job"
_SHOWN = 6
Rows = list[dict[str, Any]]


def taken(tree: Any, rank: int) -> tuple[Rows, list[TensorBytes]]:
    """Return a row for each leaf of a tree, and copies of the parts that this process writes.

    Raises TrainingError for a leaf that only a pickle could hold.
    """
    rows: Rows = []
    blobs: list[TensorBytes] = []
    for path, leaf in _leaves(tree):
        if _is_plain(leaf):
            rows.append({"path": path, "value": _to_json(leaf)})
            continue
        row, array = _as_array(path, leaf)
        blobs += _parts(array, len(rows), rank)
        rows.append({**row, "shape": list(array.shape), "dtype": str(array.dtype)})
    return rows, blobs


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    # None is a leaf here: JAX omits it, and different trees would then have the same rows.
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda one: one is None)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]


def _is_plain(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, bool | int | float | str)


def _to_json(leaf: Any) -> Any:
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return {"$float": str(leaf)}
    return leaf


def _from_json(value: Any) -> Any:
    return float(value["$float"]) if isinstance(value, dict) else value


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_array(path: str, leaf: Any) -> tuple[dict[str, Any], Any]:
    if _is_key(leaf):
        return {"path": path, "key": str(jax.random.key_impl(leaf))}, jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array):
        return {"path": path}, leaf
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != object:
        return {"path": path}, np.asarray(leaf)
    raise TrainingError(
        f"{path or 'the state'} is a {type(leaf).__name__}, which a checkpoint cannot hold",
        "keep arrays, numbers and text in what is committed",
    )


def _parts(array: Any, number: int, rank: int) -> list[TensorBytes]:
    whole = tuple(array.shape)
    if not isinstance(array, jax.Array):
        start = (0,) * len(whole)
        return [_blob(array, TensorRegion(number, whole, start))] if rank == 0 else []
    found = []
    for shard in array.addressable_shards:
        # Of a shard with several replicas, only the first is written.
        if shard.replica_id == 0:
            start = tuple(one.start or 0 for one in shard.index)
            found.append(_blob(np.asarray(shard.data), TensorRegion(number, whole, start)))
    return found


def _blob(array: np.ndarray[Any, Any], part: TensorRegion) -> TensorBytes:
    # A copy: the next step may reuse the memory of this array.
    own = np.array(array, order="C", copy=True)
    data = own.reshape(-1).view(np.uint8) if own.size else b""
    return TensorBytes(str(own.dtype), tuple(own.shape), data, own.nbytes, part)


@dataclass(slots=True)
class StoredArray:
    """An array of a checkpoint, stored in one or several files and read on demand."""

    where: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: list[StoredPart] = field(default_factory=list)

    def read(self, shape: Sequence[int], start: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return one region of the array. Raises CheckpointCorrupt."""
        target = np.empty(tuple(shape), dtype=self.dtype)
        for source, row, at, size in stored_overlaps(self.parts, start, shape, self.where):
            saved = np.empty(row.shape, dtype=self.dtype)
            if saved.size:
                source.read_into(row.at, memoryview(saved.reshape(-1).view(np.uint8).data))
            target[index_in(start, at, size)] = saved[index_in(row.part.start, at, size)]
        return target


def stored_arrays(
    rows: Rows, files: Sequence[tuple[ByteSource, Sequence[TensorEntry]]], where: str
) -> dict[int, StoredArray]:
    """Return a checkpoint's arrays by number. Raises CheckpointCorrupt if parts do not match."""
    try:
        found = {
            number: StoredArray(where, jax.numpy.dtype(row["dtype"]), tuple(row["shape"]))
            for number, row in enumerate(rows)
            if "shape" in row
        }
        for source, placed in files:
            for row in placed:
                one = found[row.part.id]
                size = math.prod(row.shape) * one.dtype.itemsize
                if (row.part.of, size) != (one.shape, row.size_bytes):
                    raise ValueError(f"the parts of array {row.part.id} do not fit together")
                one.parts.append((source, row))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error
    return found


def put_back(like: Any, rows: Rows, stored: Mapping[int, StoredArray], where: str) -> Any:
    """Return the saved tree with the structure and shardings of `like`.

    Raises RestoreMismatch, which names what does not fit, and CheckpointCorrupt.
    """
    leaves = _leaves(like)
    _require_same(leaves, rows, where)
    values = [
        _from_json(row["value"]) if "value" in row else _array(leaf, row, stored[number])
        for number, ((_, leaf), row) in enumerate(zip(leaves, rows, strict=True))
    ]
    form = jax.tree_util.tree_structure(like, is_leaf=lambda one: one is None)
    return jax.tree_util.tree_unflatten(form, values)


def read_local(like: Any, rows: Rows, stored: Mapping[int, StoredArray], where: str) -> None:
    """Read all that this process needs of the saved tree, to find damage before anything is placed.

    Raises RestoreMismatch and CheckpointCorrupt, as `put_back` does.
    """
    leaves = _leaves(like)
    _require_same(leaves, rows, where)
    for number, ((_, leaf), row) in enumerate(zip(leaves, rows, strict=True)):
        if "value" not in row:
            for shape, start in _local_regions(leaf, row, stored[number]):
                stored[number].read(shape, start)


def _local_regions(
    leaf: Any, row: Mapping[str, Any], stored: StoredArray
) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(shape, start) of the regions of an array that this process holds."""
    if not isinstance(leaf, jax.Array):
        return {(stored.shape, (0,) * len(stored.shape))}
    live = jax.random.key_data(leaf) if "key" in row else leaf
    indices = live.sharding.addressable_devices_indices_map(stored.shape).values()
    return {_region(index, stored.shape) for index in indices}


def _region(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bounds = [one.indices(size) for one, size in zip(index, shape, strict=True)]
    return tuple(hi - lo for lo, hi, _ in bounds), tuple(lo for lo, _, _ in bounds)


def _require_same(leaves: Sequence[tuple[str, Any]], rows: Rows, where: str) -> None:
    saved = {row["path"]: row for row in rows}
    live = dict(leaves)
    problems = [f"{path} is missing in the checkpoint" for path in live if path not in saved]
    problems += [f"{path} is not in the tree" for path in saved if path not in live]
    for path, leaf in leaves:
        if path in saved and (why := _unlike(leaf, saved[path])):
            problems.append(f"{path} {why}")
    if [path for path, _ in leaves] != [row["path"] for row in rows] and not problems:
        problems.append("the leaves are in another order")
    if problems:
        shown = "\n  ".join(problems[:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise RestoreMismatch(f"the tree does not fit {where}:\n  {shown}{more}", _HINT)


def _unlike(leaf: Any, row: Mapping[str, Any]) -> str:
    if _is_plain(leaf) or "value" in row:
        return "" if _is_plain(leaf) and "value" in row else "is an array on one side only"
    key = str(jax.random.key_impl(leaf)) if _is_key(leaf) else None
    if key != row.get("key"):
        return f"is a random key of type {key}, the checkpoint has {row.get('key')}"
    array = jax.random.key_data(leaf) if key else leaf
    if list(array.shape) != row["shape"]:
        return f"has shape {list(array.shape)}, the checkpoint has {row['shape']}"
    if str(array.dtype) != row["dtype"]:
        return f"is {array.dtype}, the checkpoint has {row['dtype']}"
    return ""


def _array(leaf: Any, row: Mapping[str, Any], stored: StoredArray) -> Any:
    if not isinstance(leaf, jax.Array):
        return stored.read(stored.shape, (0,) * len(stored.shape))
    live = jax.random.key_data(leaf) if "key" in row else leaf

    def box(index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return stored.read(*_region(index, stored.shape))

    array = jax.make_array_from_callback(stored.shape, live.sharding, box)
    return jax.random.wrap_key_data(array, impl=row["key"]) if "key" in row else array
