"""The layout of a tar shard: WebDataset's grouping of samples, from the headers alone.

A file `train/0001.seg.png` belongs to the sample with the key `train/0001` and has the suffix
`seg.png`: everything behind the first dot of the last part. Files of one key stand together.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO

from phalanx.errors import DataCorrupt


@dataclass(slots=True)
class ShardLayout:
    """The samples of a shard: one entry per sample in `keys` and `num_members`, else one per member."""

    keys: list[str] = field(default_factory=list)
    num_members: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    suffixes: list[str] = field(default_factory=list)


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into (key, suffix); None when it is no part of a sample."""
    path = PurePosixPath(name)
    stem, dot, suffix = path.name.partition(".")
    if not dot or not stem or path.name.startswith("__"):
        return None
    return str(path.parent / stem), suffix.lower()


def safe_name(name: str) -> bool:
    """Return whether a member's name stays inside the archive."""
    parts = name.split("/")
    return bool(name) and not name.startswith("/") and ".." not in parts and "\0" not in name


def read_layout(file: BinaryIO, shard: str) -> ShardLayout:
    """Read the samples of an uncompressed tar file.

    Raises DataCorrupt, naming the shard, for archives that are damaged, compressed, truncated, hold
    links or devices, or names that point outside.
    """
    layout = ShardLayout()
    size = file.seek(0, 2)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                _take(layout, member, shard, size)
            _check_end(file, archive.offset)
    except tarfile.TarError as error:
        raise DataCorrupt(
            f"{shard} cannot be read as a tar file: {error}",
            "shards must be uncompressed (their members may be compressed) and whole",
        ) from error
    return layout


def _check_end(file: BinaryIO, at: int) -> None:
    """Check for the block of zeros after the last member; tarfile accepts a file without it."""
    file.seek(at)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("the end mark is missing: the file is truncated")


def _take(layout: ShardLayout, member: tarfile.TarInfo, shard: str, shard_size: int) -> None:
    if not safe_name(member.name):
        raise DataCorrupt(f"{shard} holds the name {member.name!r}, which points outside the shard")
    if member.isdir():
        return
    if not member.isreg() or member.issparse():
        raise DataCorrupt(
            f"{shard} holds {member.name!r}, which is not a plain file",
            "write the shard again without links, devices and sparse files",
        )
    if member.offset_data + member.size > shard_size:
        raise DataCorrupt(f"{shard} ends in the middle of {member.name!r}")
    found = split_name(member.name)
    if found is None:
        return
    key, suffix = found
    if not layout.keys or layout.keys[-1] != key:
        layout.keys.append(key)
        layout.num_members.append(0)
    first = len(layout.suffixes) - layout.num_members[-1]
    if suffix in layout.suffixes[first:]:
        raise DataCorrupt(f"{shard} holds {key}.{suffix} twice in a row")
    layout.num_members[-1] += 1
    layout.offsets.append(member.offset_data)
    layout.sizes.append(member.size)
    layout.suffixes.append(suffix)
