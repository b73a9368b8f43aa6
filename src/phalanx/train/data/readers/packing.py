"""Packing of a folder of small files into tar shards that `TarShards` reads.

The plan, which file goes into which shard, follows from the listing and the shard size alone. A shard is
written beside its name, read back and compared with the sources, and renamed; `PACK.json` names the plan,
so that an interrupted packing goes on with the next shard and never mixes two packings in one folder.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.errors import Conflict, DataCorrupt, NotFound, UserError
from phalanx.train.data.readers.layouts.tar import read_layout, split_name
from phalanx.train.data.readers.scanning import IMAGE_SUFFIXES, Progress, quiet
from phalanx.train.data.readers.sources import DataSource

PLAN_NAME = "PACK.json"
CLASSES_NAME = "classes.json"
_SCHEMA = 1
_BLOCK = tarfile.BLOCKSIZE
_NO_DOTS = re.compile(r"\.")


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One source file, its size and its name in a shard."""

    source: str
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class PackPlan:
    """All shards of a packing, in order: the samples of each, as their files and their label.

    `classes` is empty for data without class folders; otherwise a sample gets the number of its class as a
    member `cls`.
    """

    shards: tuple[tuple[tuple[tuple[PackedFile, ...], int | None], ...], ...]
    classes: tuple[str, ...]
    skipped: int  # files with names that WebDataset leaves out

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return sum(map(len, self.shards))

    @property
    def total_bytes(self) -> int:
        """The size of all files that are packed."""
        return sum(one.size for shard in self.shards for files, _ in shard for one in files)

    def shard_name(self, number: int) -> str:
        """The file name of a shard."""
        return f"shard-{number:05d}-of-{len(self.shards):05d}.tar"

    def digest(self) -> str:
        """A digest of everything that decides what stands where."""
        rows = [
            [[[f.source, f.size, f.name] for f in files], label]
            for shard in self.shards
            for files, label in [*shard, ((), None)]
        ]
        return digest_of(canonical({"rows": rows, "classes": list(self.classes)}))


def plan_packing(source: DataSource, shard_bytes: int) -> PackPlan:
    """Plan the shards of a folder. Raises NotFound for an empty one, UserError for names that collide.

    A folder of images in class folders becomes samples of an image and its label. Otherwise files with the
    same path up to the first dot of their name are one sample, as in WebDataset.
    """
    listing = sorted(source.listing())
    shown = [row for row in listing if not posixpath.basename(row[0]).startswith((".", "__"))]
    if not shown:
        raise NotFound(f"{source.where} holds no files")
    is_image = [
        "/" in name and name.lower().endswith(IMAGE_SUFFIXES) and name[0] != "."
        for name, _ in shown
    ]
    classes: tuple[str, ...] = ()
    if all(is_image):
        classes = tuple(sorted({name.partition("/")[0] for name, _ in shown}))
    number = {name: at for at, name in enumerate(classes)}
    samples: dict[str, list[PackedFile]] = {}
    labels: dict[str, int | None] = {}
    for name, size in shown:
        packed = _packed_name(name, whole_stem=bool(classes))
        found = split_name(packed)
        assert found is not None
        key, suffix = found
        files = samples.setdefault(key, [])
        if any(split_name(one.name) == (key, suffix) for one in files):
            raise UserError(f"{source.where}: {name} and another file would both be {key}.{suffix}")
        files.append(PackedFile(name, size, packed))
        labels[key] = number.get(name.partition("/")[0])
    shards: list[list[tuple[tuple[PackedFile, ...], int | None]]] = [[]]
    filled = 0
    for key, files in samples.items():
        size = sum(_BLOCK + -(-one.size // _BLOCK) * _BLOCK for one in files)
        if filled and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append((tuple(files), labels[key]))
        filled += size
    return PackPlan(tuple(map(tuple, shards)), classes, len(listing) - len(shown))


def _packed_name(name: str, *, whole_stem: bool) -> str:
    """A file's name in a shard: with a suffix, and for images without dots in front of it."""
    folder, base = posixpath.split(name)
    stem, dot, suffix = base.rpartition(".") if whole_stem else base.partition(".")
    if not dot:
        stem, suffix = base, "bin"
    return posixpath.join(folder, f"{_NO_DOTS.sub('_', stem)}.{suffix}")


def pack(source: DataSource, out: Path, plan: PackPlan, progress: Progress = quiet) -> int:
    """Write the shards that are missing; returns how many were there. Raises Conflict, DataCorrupt."""
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, plan)
    there = 0
    for number, shard in enumerate(plan.shards):
        path = out / plan.shard_name(number)
        size = sum(one.size for files, _ in shard for one in files)
        if path.is_file():  # renamed only when it was complete and compared
            there += 1
            progress(size)
            continue
        partial = path.with_suffix(".tmp")
        digests = _write(source, partial, shard, progress)
        _compare(partial, digests)
        partial.replace(path)
    if plan.classes:
        (out / CLASSES_NAME).write_text(json.dumps(list(plan.classes), indent=1) + "\n")
    return there


def _claim(out: Path, plan: PackPlan) -> None:
    """Write the plan's digest, or compare it with the one of an earlier, interrupted packing."""
    note, wanted = out / PLAN_NAME, {"schema": _SCHEMA, "plan": plan.digest()}
    if note.is_file():
        try:
            known: Any = json.loads(note.read_bytes())
        except ValueError:
            known = None
        if known != wanted:
            raise Conflict(
                f"{out} holds shards of other data, or of another shard size",
                "choose an empty folder, or delete it",
            )
        return
    if any(out.iterdir()):
        raise Conflict(f"{out} is not empty", "choose an empty folder")
    partial = note.with_suffix(".tmp")
    partial.write_text(json.dumps(wanted) + "\n")
    partial.replace(note)


def _write(
    source: DataSource,
    path: Path,
    shard: Sequence[tuple[tuple[PackedFile, ...], int | None]],
    progress: Progress,
) -> list[str]:
    """Write one shard; returns the digest of each member in order."""
    digests: list[str] = []
    with open(path, "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:

            def add(name: str, data: bytes) -> None:
                archive.addfile(_member(name, len(data)), io.BytesIO(data))
                digests.append(digest_of(data))

            for files, label in shard:
                for one in files:
                    add(one.name, bytes(source.read(one.source, one.size)))
                    progress(one.size)
                if label is not None:
                    add(f"{files[0].name.rpartition('.')[0]}.cls", str(label).encode())
        raw.flush()
    return digests


def _member(name: str, size: int) -> tarfile.TarInfo:
    """A plain file of a shard, without owner and time: equal files make equal shards."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header


def _compare(path: Path, digests: Sequence[str]) -> None:
    """Read a shard back as the reader will, and compare every member with what was packed."""
    with open(path, "rb") as file:
        layout = read_layout(file, str(path))
        places = list(zip(layout.offsets, layout.sizes, strict=True))
        if len(places) != len(digests):
            raise DataCorrupt(f"{path} holds {len(places)} members, not {len(digests)}")
        for (at, size), digest in zip(places, digests, strict=True):
            file.seek(at)
            if digest_of(file.read(size), like=digest) != digest:
                raise DataCorrupt(f"{path}: what was read back is not what was written")
