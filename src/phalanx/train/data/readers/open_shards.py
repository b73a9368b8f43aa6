"""The shards that a process holds open, each verified when it is first opened."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

from phalanx.checkpoint.digest import Digest
from phalanx.errors import DataCorrupt, UserError
from phalanx.train.data.readers.cache import OpenFile
from phalanx.train.data.readers.index import Index
from phalanx.train.data.readers.sources import DataSource

Verify = Literal["first_open", "never", "full"]
"""When digests are checked: at a shard's first opening in a process, never, or all at the start."""


def check_verify(verify: str, index: Index) -> None:
    """Raise UserError for an unknown value, or for `full` without digests."""
    if verify not in ("first_open", "never", "full"):
        raise UserError(f"verify is {verify!r}", "use 'first_open', 'never' or 'full'")
    if verify == "full" and not index.has_digests:
        raise UserError("verify='full' needs an index", "make one with `phalanx data index`")


def check_digest(file: OpenFile, index: Index, number: int, where: str) -> None:
    """Raise DataCorrupt, naming the file, when its contents do not match the index."""
    expected = index.digest(number)
    if expected is None:
        return
    digest = Digest(expected.partition(":")[0])
    for chunk in file.chunks():
        digest.update(chunk)
    if digest.text != expected:
        raise DataCorrupt(
            f"{where}/{index.files[number]} does not match its index: {digest.text}, not {expected}",
            "restore the file, or index the data again if it was meant to change",
        )


class OpenShards:
    """At most `max_open` open files of a data set; the least recently used is closed first.

    One per process: a fork may use the files it inherits, since nothing here moves a file position; a
    pickle carries none.
    """

    def __init__(self, source: DataSource, index: Index, verify: Verify, max_open: int) -> None:
        if max_open < 1:
            raise UserError("max_open must be at least 1")
        check_verify(verify, index)
        self.source = source
        self.index = index
        self.verify = verify
        self.max_open = source.may_hold(max_open, int(index.sizes.max(initial=0)))
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._good: set[int] = set()
        if verify == "full":
            for number in range(index.num_files):
                self.get(number)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": OrderedDict()}

    def get(self, number: int) -> OpenFile:
        """Return a file, open and verified. The next call for another file may close it.

        Raises DataCorrupt, DataUnavailable, NotFound.
        """
        file = self._open.get(number)
        if file is not None:
            self._open.move_to_end(number)
            return file
        while len(self._open) >= self.max_open:
            self._open.popitem(last=False)[1].close()
        index = self.index
        file = self.source.open(
            index.files[number], int(index.sizes[number]), index.digest(number), self.clear
        )
        if self.verify != "never" and not file.verified and number not in self._good:
            try:
                check_digest(file, index, number, self.source.where)
            except DataCorrupt:
                file.close()
                raise
        self._good.add(number)
        self._open[number] = file
        return file

    def clear(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
