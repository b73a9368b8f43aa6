"""Conversion of state dictionaries to JSON trees with raw tensors, and back, without pickle.

Plain JSON values are unchanged. Other values become an object with one key that starts with `$`:
`{"$tensor": 3}`, `{"$tuple": […]}`, `{"$set": […]}`, `{"$map": [[key, value], …]}` for dictionaries with
keys that are not text, `{"$bytes": hex}`, `{"$array": 3}` for numpy, `{"$float": "nan"}`,
`{"$dtype": name}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from phalanx.checkpoint.tensorfile import TensorBytes, TensorRegion
from phalanx.errors import CheckpointCorrupt, TrainingError


def flatten(value: Any) -> tuple[Any, list[TensorBytes]]:
    """Return a JSON tree and the bytes of its tensors; contiguous CPU tensors are not copied.

    Raises TrainingError with the path of any value that only a pickle could hold.
    """
    body, leaves = collect(value)
    return body, [blob_of(leaf) for leaf in leaves]


def collect(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a JSON tree and its live tensors. Raises TrainingError as `flatten` does."""
    leaves: list[torch.Tensor] = []
    return _down(value, "", leaves), leaves


def _down(value: Any, path: str, blobs: list[torch.Tensor]) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, torch.Tensor):
        blobs.append(_dense(value, path))
        return {"$tensor": len(blobs) - 1}
    if isinstance(value, np.ndarray):
        blobs.append(torch.from_numpy(np.ascontiguousarray(value)))
        return {"$array": len(blobs) - 1, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return _down(value.item(), path, blobs)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        return _down_mapping(value, path, blobs)
    if isinstance(value, bytes | bytearray):
        return {"$bytes": bytes(value).hex()}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        down = [_down(item, f"{path}[{at}]", blobs) for at, item in enumerate(items)]
        if isinstance(value, list):
            return down
        return {"$tuple" if isinstance(value, tuple) else "$set": down}
    raise TrainingError(
        f"{path or 'the state'} holds a {type(value).__name__}, which a checkpoint cannot hold",
        "keep numbers, text, lists, dictionaries, tensors and arrays in state dictionaries",
    )


def _down_mapping(value: Mapping[Any, Any], path: str, blobs: list[torch.Tensor]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _down(item, f"{path}.{key}", blobs) for key, item in value.items()}
    rows = []
    for key, item in value.items():
        rows.append([_down(key, f"{path}.{key}", blobs), _down(item, f"{path}.{key}", blobs)])
    return {"$map": rows}


def _dense(tensor: torch.Tensor, path: str) -> torch.Tensor:
    # A meta tensor is allowed: a rank of another pipeline stage holds its data.
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TrainingError(
            f"{path}: a {tensor.layout} tensor on {tensor.device} cannot be saved yet",
            "keep dense tensors in what is checkpointed",
        )
    return tensor.detach()


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name: `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def blob_of(tensor: torch.Tensor, part: TensorRegion | None = None) -> TensorBytes:
    """Return a tensor's bytes; only a tensor that is not contiguous or not on the CPU is copied."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy() if flat.numel() else b""
    size = flat.numel() * flat.element_size()
    return TensorBytes(dtype_name(tensor.dtype), tuple(tensor.shape), data, size, part)


def unflatten(tree: Any, blobs: Sequence[TensorBytes], where: str) -> Any:
    """Return the value that `flatten` took; tensors have new memory. Raises CheckpointCorrupt."""
    return rebuild(tree, lambda at: _tensor(blobs[at]), where)


def rebuild(tree: Any, tensor: Callable[[int], Any], where: str) -> Any:
    """Return the value, with `tensor(number)` for each tensor. Raises CheckpointCorrupt."""
    try:
        return _up(tree, tensor)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error


def _up(tree: Any, tensor: Callable[[int], Any]) -> Any:
    if isinstance(tree, list):
        return [_up(item, tensor) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree), "")
    if not kind.startswith("$"):
        return {key: _up(item, tensor) for key, item in tree.items()}
    body = tree[kind]
    if kind == "$tensor":
        return tensor(body)
    if kind == "$array":
        return read_now(tensor(body)).numpy().reshape(tree["shape"])
    if kind == "$tuple":
        return tuple(_up(item, tensor) for item in body)
    if kind == "$set":
        return {_up(item, tensor) for item in body}
    if kind == "$map":
        return {_up(key, tensor): _up(item, tensor) for key, item in body}
    if kind == "$bytes":
        return bytes.fromhex(body)
    if kind == "$float":
        return float(body)
    if kind == "$dtype":
        return dtype_of(body)
    raise ValueError(f"unknown kind {kind!r}")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of a name such as `float32`. Raises AttributeError or ValueError."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def _tensor(blob: TensorBytes) -> torch.Tensor:
    dtype = dtype_of(blob.dtype)
    if blob.size_bytes == 0:
        if 0 not in blob.shape:  # otherwise its content would be uninitialized memory
            raise ValueError(f"a tensor of shape {list(blob.shape)} without its bytes")
        return torch.empty(blob.shape, dtype=dtype)
    raw = torch.frombuffer(blob.data, dtype=torch.uint8).clone()
    return raw.view(dtype).reshape(blob.shape)


def read_now(value: Any) -> torch.Tensor:
    """Return a tensor, after reading it if it is still in a file."""
    found = value if isinstance(value, torch.Tensor) else value.read()
    assert isinstance(found, torch.Tensor)
    return found


def cloned(value: Any) -> Any:
    """Return a copy that shares no tensor with the original; tensors still in a file are read.

    Optimizers keep the tensors they load, so a state that may be loaded twice is copied for each
    load.
    """
    return mapped(value, _cloned_leaf)


def _cloned_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return read_now(value) if hasattr(value, "read_region") else value


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a state with `leaf(one)` for all that is in its dictionaries, lists and tuples."""
    if isinstance(value, Mapping):
        return {key: mapped(item, leaf) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, leaf) for item in value]
    if isinstance(value, tuple):
        return tuple(mapped(item, leaf) for item in value)
    return leaf(value)
