"""The index of a data set: files with sizes and digests, samples with offsets.

On disk: `INDEX.json` (a header one can read) names `INDEX-<8 hex>.bin` (columns, see `tables`). Each is
covered by a digest. Nothing in either is a pickle, and no name may point outside the data set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.errors import DataCorrupt, NotSupported
from phalanx.train.data.readers.layouts.columns import (
    Array,
    Int64s,
    Names,
    pack,
    ragged,
    unpack,
)

SCHEMA = 1
HEADER_NAME = "INDEX.json"
KINDS = ("images", "tar", "parquet", "tfrecord", "text")

_FILE_TABLES = ("labels", "num_characters")
_DIGEST_BYTES = 16


@dataclass(frozen=True, eq=False)
class Index:
    """The index of one data set. Built from a listing alone, it has no digests.

    The samples of file i are numbered from entry i of `sample_starts` up to entry i+1. For text a
    sample is a byte, since blocks are chosen later. `docs/reference/data-index.md` lists `tables`.
    """

    kind: str  # one of KINDS
    files: Names  # paths relative to the data set
    sizes: Int64s  # bytes of each file
    sample_starts: Int64s  # number of each file's first sample, then the number of samples
    algorithm: str = ""  # of the digests, such as `xxh3-128`; empty: there are no digests
    #: 16 bytes for each file; no rows without digests
    digests: Array = field(default_factory=lambda: np.zeros((0, _DIGEST_BYTES), np.uint8))
    classes: tuple[str, ...] = ()  # names of the classes, in the order of their labels
    suffixes: tuple[str, ...] = ()  # suffixes of tar members, by number
    tables: Mapping[str, Array] = field(default_factory=dict)  # other columns by name

    @property
    def num_files(self) -> int:
        """Return the number of files."""
        return len(self.sizes)

    @property
    def num_samples(self) -> int:
        """Return the number of samples; bytes for text."""
        return int(self.sample_starts[-1])

    @property
    def total_bytes(self) -> int:
        """Return the sum of the sizes of all files."""
        return int(self.sizes.sum())

    @property
    def has_digests(self) -> bool:
        """Return whether digests cover the contents, not only names and sizes."""
        return bool(self.algorithm)

    def digest(self, file: int) -> str | None:
        """Return `algorithm:hex` of a file's contents, or None when the index has no digests."""
        if not self.algorithm:
            return None
        return f"{self.algorithm}:{self.digests[file].tobytes().hex()}"

    def fingerprint(self) -> str:
        """Return a digest of everything that decides which sample has which number.

        Starts with `content:` when file contents are part of it and with `listing:` when only names,
        sizes and places are. The place of the data set itself is not: a copy has the same fingerprint.
        """
        body, _ = _encode(self)
        return f"{'content' if self.has_digests else 'listing'}:{body['digest']}"

    def restrict(self, files: Sequence[int]) -> Index:
        """Return the index of the same data set with these files only, in this order."""
        rows = np.asarray(files, np.int64)
        samples, starts = ragged(self.sample_starts, rows)
        tables = {name: self.tables[name][rows] for name in _FILE_TABLES if name in self.tables}
        for per_file in ("group", "mark"):
            if f"{per_file}_starts" in self.tables:
                owned, new = ragged(self.tables[f"{per_file}_starts"], rows)
                tables[f"{per_file}_starts"] = new
                tables[f"{per_file}s"] = self.tables[f"{per_file}s"][owned]
        if "alphabet" in self.tables:
            tables["alphabet"] = self.tables["alphabet"]
        if "member_starts" in self.tables:
            tables |= self._members(samples)
        if "records" in self.tables:
            tables["records"] = self.tables["records"][samples]
        return replace(
            self,
            files=self.files.take(rows),
            sizes=self.sizes[rows],
            sample_starts=starts,
            digests=self.digests[rows] if self.has_digests else self.digests,
            tables=tables,
        )

    def _members(self, samples: Int64s) -> dict[str, Array]:
        owned, starts = ragged(self.tables["member_starts"], samples)
        keys = Names(self.tables["key_blob"], self.tables["key_ends"]).take(samples)
        found = {name: self.tables[name][owned] for name in ("members", "member_suffixes")}
        return found | {"member_starts": starts, "key_blob": keys.blob, "key_ends": keys.ends}


def encode(index: Index) -> tuple[bytes, str, bytes]:
    """Encode an index: the header, the name of the columns' file, and that file's bytes."""
    header, columns = _encode(index)
    return json.dumps(header, indent=1).encode() + b"\n", header["columns"]["file"], columns


def _encode(index: Index) -> tuple[dict[str, Any], bytes]:
    own = {
        "file_blob": index.files.blob,
        "file_ends": index.files.ends,
        "sizes": index.sizes,
        "sample_starts": index.sample_starts,
        "digests": index.digests,
    }
    columns, layout = pack({**own, **index.tables})
    digest = digest_of(columns)
    header: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": index.kind,
        "num_files": index.num_files,
        "num_samples": index.num_samples,
        "total_bytes": index.total_bytes,
        "algorithm": index.algorithm,
        "classes": list(index.classes),
        "suffixes": list(index.suffixes),
        "columns": {
            "file": f"INDEX-{digest.partition(':')[2][:8]}.bin",
            "bytes": len(columns),
            "digest": digest,
            "tables": layout,
        },
    }
    return header | {"digest": digest_of(canonical(header))}, columns


def parse_header(data: bytes, where: str) -> dict[str, Any]:
    """Parse a header. Raises DataCorrupt when it is damaged, NotSupported when it is newer."""
    try:
        header = json.loads(data)
        claimed = header.pop("digest")
        if header["schema"] != SCHEMA:
            raise NotSupported(
                f"{where} has schema {header['schema']}; this version reads schema {SCHEMA}",
                "index the data again, or upgrade",
            )
        if digest_of(canonical(header), like=claimed) != claimed:
            raise ValueError("the digest does not match")
        if "/" in header["columns"]["file"] or header["kind"] not in KINDS:
            raise ValueError("the name of a file or a kind is not valid")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataCorrupt(f"{where} is damaged: {error}", "index the data again") from error
    return dict(header)


def decode(header: Mapping[str, Any], columns: Any, where: str) -> Index:
    """Decode an index from its two parts. Raises DataCorrupt when they do not fit each other."""
    try:
        about = header["columns"]
        if len(columns) != about["bytes"]:
            raise ValueError(f"{about['file']} has {len(columns)} bytes, not {about['bytes']}")
        if digest_of(columns, like=about["digest"]) != about["digest"]:
            raise ValueError(f"the digest of {about['file']} does not match")
        tables = unpack(columns, about["tables"])
        index = Index(
            kind=header["kind"],
            files=Names(tables.pop("file_blob"), tables.pop("file_ends")),
            sizes=tables.pop("sizes"),
            sample_starts=tables.pop("sample_starts"),
            algorithm=header["algorithm"],
            digests=tables.pop("digests"),
            classes=tuple(header["classes"]),
            suffixes=tuple(header["suffixes"]),
            tables=tables,
        )
        _check(index)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataCorrupt(f"{where} is damaged: {error}", "index the data again") from error
    return index


def _check(index: Index) -> None:
    if not index.files.consistent() or index.files.escape():
        raise ValueError("a file name points outside the data set")
    counts = {len(index.files), index.num_files, len(index.sample_starts) - 1}
    if index.has_digests:
        counts.add(len(index.digests))
    if len(counts) != 1:
        raise ValueError("the columns have different lengths")
    starts = index.sample_starts
    if starts[0] != 0 or (np.diff(starts) < 0).any() or (index.sizes < 0).any():
        raise ValueError("the counts are not valid")
    needed = {
        "images": "labels",
        "tar": "members",
        "parquet": "groups",
        "tfrecord": "records",
        "text": "marks",
    }
    if needed[index.kind] not in index.tables:
        raise ValueError(f"there is no table {needed[index.kind]!r}")
