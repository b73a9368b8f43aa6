"""Reading a checkpoint: every rank checks its share of the bytes, and reads only what it needs.

The small parts of the state are read at once. Models and optimizers stay in the files until their live
objects exist, and are read directly into them: no rank ever holds a state twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phalanx import checkpoint
from phalanx.checkpoint import compression, tensorfile
from phalanx.core.training.checkpoints import FileEntry, Manifest
from phalanx.errors import CheckpointCorrupt
from phalanx.train.gang.context import RankInfo
from phalanx.train.state import sharding, tree
from phalanx.train.state.committer import STATE, differences, shard_file

_LATER = ("models", "optimizers", "compression", "sync")

Opener = Callable[[Path, FileEntry], tensorfile.ByteSource]


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint opened for reading.

    Code that loads from `state` must clone it: models and optimizers hold a `sharding.StoredTensor`
    for each tensor.
    """

    path: Path
    manifest: Manifest
    state: Mapping[str, Any]
    rng: tuple[bytes, ...]
    differs: str | None
    read: Mapping[str, checkpoint.VerifiedFile] | None = None
    """Its files if they are verified as they are read; None if they were verified before."""
    url: str | None = None
    """Where it is committed, if that is not `path`."""

    @property
    def place(self) -> str:
        """Return the folder or URL where it is committed."""
        return self.url or str(self.path)

    def rng_of(self, rank: int) -> bytes | None:
        """Return the saved random generators of a rank; None if there was no such rank."""
        return self.rng[rank] if rank < len(self.rng) else None


def section(restored: Restored, name: str, at: int) -> Any:
    """Return the saved state of object number `at` of a section; None when there were fewer."""
    rows = restored.state.get(name, ())
    return rows[at] if at < len(rows) else None


def read_state(
    path: Path, manifest: Manifest, opener: Opener = checkpoint.VerifiedFile
) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Return the state, with unread tensors as `StoredTensor`, and every rank's random generators.

    Raises CheckpointCorrupt.
    """
    entries = {entry.path: entry for entry in manifest.files}
    names = [name for name in sorted(entries) if name.endswith("/" + STATE)]
    if shard_file(0) not in names:
        raise CheckpointCorrupt(f"{path}: there is no {shard_file(0)} in its manifest")
    where = str(path)
    heads: list[Any] = []
    files: list[tuple[tensorfile.ByteSource, Sequence[tensorfile.TensorEntry]]] = []
    for name in names:
        source = compression.decompressed(opener(path, entries[name]), str(path / name))
        head, rows = tensorfile.read_header(source, str(path / name))
        heads.append(head)
        files.append((source, rows))
    try:
        tensors = sharding.stored_tensors(files, where)
        first_schema = "models" in heads[0]  # which had nothing around the state
        body = heads[0] if first_schema else heads[0]["state"]
        state = {
            key: tree.rebuild(
                value,
                tensors.__getitem__ if key in _LATER else lambda at: tensors[at].read(),
                where,
            )
            for key, value in body.items()
        }
        if first_schema:
            rng = tuple(one.numpy().tobytes() for one in state["rng"])
        else:
            rng = tuple(bytes.fromhex(head["rng"]) for head in heads)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        text = f"{path}: not a state this library wrote: {error}"
        raise CheckpointCorrupt(text) from error
    return state, rng


def device_text() -> str:
    """Return the kind of device that sums depend on, for example `cpu:AVX512`."""
    if torch.cuda.is_available():
        return f"cuda:{torch.cuda.get_device_name()}"
    return f"cpu:{torch.backends.cpu.get_cpu_capability()}"


def resume_differs(manifest: Manifest, info: RankInfo) -> str | None:
    """Return the differences that make a resume here not bit-identical; None without any."""
    facts = {
        "world size": (manifest.world_size, info.world_size),
        "torch": (manifest.versions.get("torch"), torch.__version__),
        "threads": (manifest.threads, torch.get_num_threads()),
        "device": (manifest.device, device_text()),
    }
    return differences(facts)
