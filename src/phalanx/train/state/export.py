"""`python -m phalanx.train.state.export CHECKPOINT OUT`: a checkpoint's weights for other programs.

`OUT.safetensors` is a safetensors file (a JSON header and raw bytes: the format is a page long, and is
written here tensor by tensor, so that a large model needs no memory of its size). `OUT.pt` or `OUT.pth`
is what `torch.load(OUT, weights_only=True)` reads: a state dictionary. Any other `OUT` becomes a
directory with a checkpoint that holds the weights alone.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from phalanx import checkpoint
from phalanx.checkpoint import tensorfile
from phalanx.checkpoint.encryption import AesGcmEncryption, Encryption, EncryptionKey
from phalanx.core.training.checkpoints import Manifest, checkpoint_name
from phalanx.errors import PlatformError, UserError
from phalanx.kit.text import random_hex
from phalanx.train.gang import context
from phalanx.train.state import tree
from phalanx.train.state.checkpoint_reader import read_state
from phalanx.train.state.committer import shard_file
from phalanx.train.state.sharding import StoredTensor

# The names of dtypes in safetensors files.
_DTYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{"bfloat16": "BF16", "uint8": "U8", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the export command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m phalanx.train.state.export", description=__doc__
    )
    parser.add_argument("checkpoint", type=Path, help="a committed checkpoint's directory")
    parser.add_argument("out", type=Path, help="NAME.safetensors, NAME.pt, or a directory")
    parser.add_argument("--model", type=int, default=0, help="which prepared model, from 0")
    parser.add_argument("--dtype", default=None, help="convert floating point weights: bfloat16 …")
    parser.add_argument("--key-env", default=None, help="variable with the encryption key")
    parser.add_argument("--key-file", type=Path, default=None, help="file with the encryption key")
    wanted = parser.parse_args(argv)
    try:
        keys = context.keys(wanted.key_env, wanted.key_file)
        weights, manifest = weights_of(wanted.checkpoint, wanted.model, keys)
        if wanted.out.suffix == ".safetensors":
            write_safetensors(wanted.out, weights, manifest, wanted.dtype)
            made = wanted.out
        elif wanted.out.suffix in (".pt", ".pth"):
            write_state_dict(wanted.out, weights, wanted.dtype)
            made = wanted.out
        else:
            made = write_weights_only(wanted.out, weights, manifest, wanted.dtype)
    except (PlatformError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        return 1
    print(made)  # noqa: T201
    return 0


def weights_of(
    path: Path, model: int = 0, keys: Sequence[EncryptionKey] = ()
) -> tuple[dict[str, StoredTensor], Manifest]:
    """Return the named weights and buffers of one model of a verified checkpoint, not read yet.

    Raises CheckpointNotFound, CheckpointCorrupt, PermissionDenied (no key, the wrong one) or UserError.
    """
    manifest = checkpoint.verify(path)
    seal = AesGcmEncryption(keys) if keys else Encryption("give --key-env or --key-file")
    state, _ = read_state(path, manifest, seal.opener(manifest))
    if not 0 <= model < len(state["models"]):
        raise UserError(f"{path} holds {len(state['models'])} models, but no --model {model}")
    found = state["models"][model]
    return {name: one for name, one in found.items() if isinstance(one, StoredTensor)}, manifest


def write_safetensors(
    out: Path, weights: dict[str, StoredTensor], manifest: Manifest, dtype: str | None = None
) -> None:
    """Write one safetensors file atomically. Raises OSError, UserError."""
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "pt",
            "checkpoint": manifest.name,
            "step": str(manifest.step),
            "job": manifest.job or "",
            "job_uid": manifest.job_uid or "",
            "attempt": str(manifest.attempt),
            "provenance": manifest.provenance,
        }
    }
    at = 0
    for name, one in weights.items():
        kind = _converted(one, dtype)
        if kind not in _DTYPES:
            raise UserError(f"{name}: safetensors has no {kind}", "give another --dtype")
        size = tree.dtype_of(kind).itemsize
        for length in one.shape:
            size *= length
        rows = {"dtype": _DTYPES[kind], "shape": list(one.shape), "data_offsets": [at, at + size]}
        header[name] = rows
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    _write_whole(out, _pieces(struct.pack("<Q", len(text)) + text, weights, dtype))


def write_state_dict(out: Path, weights: dict[str, StoredTensor], dtype: str | None = None) -> None:
    """Write a state dictionary as `torch.save` does, atomically. Raises OSError, UserError.

    Needs memory for two copies of the weights.
    """
    tensors = {
        name: one.read().to(tree.dtype_of(_converted(one, dtype))) for name, one in weights.items()
    }
    body = io.BytesIO()
    torch.save(tensors, body)
    _write_whole(out, [body.getbuffer()])


def _write_whole(out: Path, pieces: Iterable[Any]) -> None:
    """Write a file from these pieces atomically. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    disk, draft = checkpoint.Disk(), out.with_name(f"{out.name}.{random_hex(8)}.tmp")
    try:
        tensorfile.write_pieces(disk, draft.parent, draft.name, pieces)
        disk.rename(draft, out)
        disk.sync_dir(out.parent)
    finally:
        draft.unlink(missing_ok=True)


def _pieces(head: bytes, weights: dict[str, StoredTensor], dtype: str | None) -> Iterator[Any]:
    yield head
    for one in weights.values():
        blob = tree.blob_of(one.read().to(tree.dtype_of(_converted(one, dtype))))
        if blob.size_bytes:
            yield blob.data


def write_weights_only(
    out: Path, weights: dict[str, StoredTensor], manifest: Manifest, dtype: str | None = None
) -> Path:
    """Commit a checkpoint below `out` with the weights only; returns its directory.

    A run cannot resume from it, since it has no optimizer. Raises OSError.
    """
    name = checkpoint_name(manifest.step, random_hex(8))
    draft = checkpoint.CheckpointWriter(out, name)
    tensors = {
        key: one.read().to(tree.dtype_of(_converted(one, dtype))) for key, one in weights.items()
    }
    state, blobs = tree.flatten({"models": [tensors]})
    draft.add_tensors(shard_file(0), {"state": state, "rng": ""}, blobs)
    mine = replace(
        manifest,
        name=name,
        files=draft.files,
        why="weights",
        parent=None,
        world_size=1,
        mesh={},
        encryption=None,
    )
    return draft.commit(mine)


def _converted(one: StoredTensor, dtype: str | None) -> str:
    if dtype is None or not one.dtype.is_floating_point:
        return tree.dtype_name(one.dtype)
    return dtype


if __name__ == "__main__":
    raise SystemExit(main())
