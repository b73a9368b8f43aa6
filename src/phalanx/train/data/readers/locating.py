"""Resolution of a user's path, pattern, list or URL to a source and an index."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import NotFound, UserError
from phalanx.train.data.readers.cache import NodeCache
from phalanx.train.data.readers.index import HEADER_NAME, Index, decode, encode, parse_header
from phalanx.train.data.readers.scanning import list_index
from phalanx.train.data.readers.sources import DataSource, LocalSource, open_source

Root = str | Path | DataSource | Sequence[str | Path]
"""Where data is: a directory, a file, a pattern, a URL of one of these, several files, or a Source."""

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_FILE_SUFFIX = re.compile(
    r"\.(tar|parquet|pq|tfrec(ords?)?(-\d+-of-\d+)?|txt|text|bin|jsonl|md|csv)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class DataLocation:
    """A source, the selected files of it (None: all), and the name of its index."""

    source: DataSource
    names: tuple[str, ...] | None
    header: str


def locate(root: Root, cache: NodeCache | None = None) -> DataLocation:
    """Resolve the location of data. Raises NotFound, UserError, NotSupported."""
    if not isinstance(root, str | Path | Sequence):
        return DataLocation(root, None, HEADER_NAME)
    texts = [str(root)] if isinstance(root, str | Path) else [str(one) for one in root]
    if not texts:
        raise UserError("the list of files is empty")
    remote = [_is_url(text) for text in texts]
    if any(remote):
        if not all(remote):
            raise UserError("a list of files must be all local or all in one object store")
        return _remote(texts, cache)
    return _local(texts)


def expand(pattern: str) -> list[str]:
    """Expand `train-{000..003}.tar` to four names, with the width of the first number."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    if int(last) < int(first):
        raise UserError(f"{pattern}: the range runs backwards")
    numbers = (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
    return [
        e for n in numbers for e in expand(pattern[: match.start()] + n + pattern[match.end() :])
    ]


def _is_url(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def _local(texts: Sequence[str]) -> DataLocation:
    paths: list[str] = []
    for text in texts:
        for one in expand(os.path.abspath(text.removeprefix("file://"))):
            found = [one] if os.path.exists(one) else sorted(glob.glob(one, recursive=True))
            if not found:
                raise NotFound(f"there is no {one}")
            paths += found
    if len(paths) == 1:
        if os.path.isdir(paths[0]):
            return DataLocation(LocalSource(paths[0]), None, HEADER_NAME)
        parent, name = os.path.split(paths[0])
        return DataLocation(LocalSource(parent), (name,), f"{name}.{HEADER_NAME}")
    for path in paths:
        if os.path.isdir(path):
            raise UserError(f"{path} is a directory in a list of files")
    parent = os.path.commonpath([os.path.dirname(path) for path in paths])
    names = tuple(os.path.relpath(path, parent) for path in paths)
    return DataLocation(LocalSource(parent), names, HEADER_NAME)


def _remote(texts: Sequence[str], cache: NodeCache | None) -> DataLocation:
    urls = [url for text in texts for url in expand(text)]
    if len(urls) == 1 and not _FILE_SUFFIX.search(urls[0]):
        return DataLocation(open_source(urls[0], cache), None, HEADER_NAME)
    scheme, _, _ = urls[0].partition("://")
    paths = [url.partition("://")[2] for url in urls]
    parent = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    names = tuple(posixpath.relpath(path, parent) for path in paths)
    header = f"{names[0]}.{HEADER_NAME}" if len(names) == 1 else HEADER_NAME
    return DataLocation(open_source(f"{scheme}://{parent}", cache), names, header)


def load_index(place: DataLocation, at: str | Path | None = None) -> Index | None:
    """Load the stored index: the one at `at`, else the one beside the data, else None.

    Raises NotFound when `at` names none, DataCorrupt for a damaged one.
    """
    holder, headers = place.source, [place.header, HEADER_NAME]
    if at is not None:
        path = Path(at)
        path = path / place.header if path.is_dir() else path
        holder, headers = LocalSource(path.parent), [path.name]
    for name in dict.fromkeys(headers):
        try:
            data = holder.read(name)
        except NotFound:
            continue
        where = f"{holder.where}/{name}"
        header = parse_header(bytes(data), where)
        return _chosen(decode(header, _columns(holder, header, where), where), place)
    if at is not None:
        raise NotFound(f"there is no index at {at}", "make one with `phalanx data index`")
    return None


def _columns(holder: DataSource, header: dict[str, Any], where: str) -> Any:
    about = header["columns"]
    try:
        return holder.read(about["file"])
    except NotFound as error:
        raise NotFound(
            f"{where} needs {about['file']}, which is gone", "index the data again"
        ) from error


def _chosen(index: Index, place: DataLocation) -> Index | None:
    if place.names is None:
        return index
    number = {name: i for i, name in enumerate(index.files)}
    if any(name not in number for name in place.names):
        return None
    if place.names == tuple(index.files):
        return index
    return index.restrict([number[name] for name in place.names])


def save_index(index: Index, place: DataLocation, at: str | Path | None = None) -> str:
    """Store an index beside the data, or in the directory `at`; returns where its header is."""
    holder: DataSource = place.source
    if at is not None:
        Path(at).mkdir(parents=True, exist_ok=True)
        holder = LocalSource(at)
    header, columns_name, columns = encode(index)
    holder.write(columns_name, columns)
    holder.write(place.header, header)
    return f"{holder.where}/{place.header}"


def open_index(
    root: Root, kind: str, cache: NodeCache | None, at: str | Path | None
) -> tuple[DataSource, Index]:
    """Return the source and the index of a data set; without a stored index, one from the listing.

    Raises UserError when the stored index is for another kind of data.
    """
    place = locate(root, cache)
    index = load_index(place, at)
    if index is None:
        index = list_index(place.source, kind, place.names)
    if index.kind != kind:
        raise UserError(f"{place.source.where} is indexed as {index.kind}, not {kind}")
    return place.source, index
