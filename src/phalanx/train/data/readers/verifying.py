"""Verification of a data set against its index: missing, changed and unlisted files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from phalanx.checkpoint.digest import digest_of
from phalanx.errors import DataCorrupt, DataUnavailable, NotFound, PermissionDenied
from phalanx.train.data.readers.index import Index
from phalanx.train.data.readers.open_shards import check_digest
from phalanx.train.data.readers.scanning import Progress, belongs, quiet
from phalanx.train.data.readers.sources import DataSource

_THREADS = 8
_FILES_PER_TASK = 256


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that differs from the index: `missing`, `size`, `digest`, `unreadable` or `unlisted`."""

    file: str
    what: str
    message: str


def verify(
    source: DataSource,
    index: Index,
    *,
    names: Sequence[str] | None = None,
    progress: Progress = quiet,
) -> list[Fault]:
    """Return every fault, in the order of the index. Reads all contents when the index has digests.

    With `names` the data set is these files only, and others beside them are no fault.
    """
    listed = dict(source.listing())
    checks = _Checks(source, index, listed, progress)
    numbers = range(index.num_files)
    runs = [numbers[at : at + _FILES_PER_TASK] for at in range(0, len(numbers), _FILES_PER_TASK)]
    if index.kind != "images":
        runs = [numbers[at : at + 1] for at in numbers]
    with ThreadPoolExecutor(_THREADS) as pool:
        faults = [fault for found in pool.map(checks.run, runs) for fault in found]
    if names is None:
        known = set(index.files)
        faults += [
            Fault(name, "unlisted", "is not in the index")
            for name in listed
            if name not in known and belongs(name, index.kind)
        ]
    return faults


class _Checks:
    def __init__(
        self, source: DataSource, index: Index, listed: dict[str, int], progress: Progress
    ) -> None:
        self.source = source
        self.index = index
        self.listed = listed
        self.progress = progress

    def run(self, numbers: Sequence[int]) -> list[Fault]:
        return [fault for number in numbers if (fault := self._fault(number)) is not None]

    def _fault(self, number: int) -> Fault | None:
        name, size = self.index.files[number], int(self.index.sizes[number])
        if name not in self.listed:
            return Fault(name, "missing", "is missing")
        if self.listed[name] != size:
            return Fault(name, "size", f"has {self.listed[name]} bytes, not {size}")
        try:
            self._contents(number, name, size)
        except DataCorrupt as error:
            return Fault(name, "digest", error.message)
        except (DataUnavailable, NotFound, PermissionDenied) as error:
            return Fault(name, "unreadable", error.message)
        self.progress(size)
        return None

    def _contents(self, number: int, name: str, size: int) -> None:
        expected = self.index.digest(number)
        if expected is None:
            return
        if self.index.kind == "images":
            if digest_of(self.source.read(name, size, expected), expected) != expected:
                raise DataCorrupt("does not match its digest")
            return
        file = self.source.open(name, size, expected, lambda: None)
        try:
            check_digest(file, self.index, number, self.source.where)
        finally:
            file.close()
