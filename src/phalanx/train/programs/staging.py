"""Staging of a job's inputs to this node: `python -m phalanx.train.programs.staging REQUEST`.

The supervisor runs it before the first ranks start. REQUEST is a file of JSON: `{"root", "links",
"inputs": {name: path or URL}}`. Each input is copied once per node into `<root>/<fingerprint>`, and
`<links>/<name>` leads there. The fingerprint is that of the input's index, or of its names, sizes and
times. `REQUEST.staged` then holds what was found, as the supervisor reports it.

A copy is under `<fingerprint>.tmp` until it is complete and compared; what an interrupted copy has fetched
is kept. `<fingerprint>.lock` is held by the process that copies, and shared by supervisors that use the
copy: when the disk is short of space, unused copies go, the least recently used first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.checkpoint.digest import Digest, canonical, digest_of
from phalanx.core.contract.provenance import InputFingerprint
from phalanx.core.contract.secrecy import redacted
from phalanx.errors import DataCorrupt, DataUnavailable, NotFound, PlatformError, UserError
from phalanx.kit.units import format_size
from phalanx.launch.identity import STAGED_SUFFIX
from phalanx.train.data.readers.cache import NodeCache
from phalanx.train.data.readers.index import Index
from phalanx.train.data.readers.locating import DataLocation, load_index, locate
from phalanx.train.data.readers.sources import LocalSource, ObjectSource

_THREADS = 8
_CHUNK = 1 << 22
# Space that a copy leaves free on the disk.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StagedInput:
    """One input: its files with sizes and, with an index, digests; and the name of its copy."""

    place: DataLocation
    files: tuple[tuple[str, int, str | None], ...]
    fingerprint: str

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(size for _, size, _ in self.files)

    @property
    def folder_name(self) -> str:
        """The name of the copy, from the fingerprint."""
        return self.fingerprint.rpartition(":")[2][:32]


def main(arguments: Sequence[str] | None = None) -> int:
    """Stage all inputs; returns 0, or the exit code of the error, which stands on the last line."""
    words = sys.argv[1:] if arguments is None else arguments
    request: dict[str, Any] = json.loads(Path(words[0]).read_bytes())
    root, links = Path(request["root"]), Path(request["links"])
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        links.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = []
        for name, where in request["inputs"].items():
            found.append(stage(name, where, root, links))
        Path(words[0] + STAGED_SUFFIX).write_text(json.dumps([asdict(one) for one in found]))
    except PlatformError as error:
        _say(f"data {name}: {error}")
        return error.exit_code
    except OSError as error:
        _say(f"data: {error.strerror}: {error.filename}")
        return 1
    return 0


def stage(name: str, where: str, root: Path, links: Path) -> InputFingerprint:
    """Copy one input unless this node has it, and link it; returns what was found.

    Raises PlatformError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="phalanx-stage-", dir=root) as scratch:
        # Only the index of an input in object storage goes through this cache.
        one = describe(where, NodeCache(scratch, "1GB"))
        target = root / one.folder_name
        with _locked(root / f"{one.folder_name}.lock"):
            there = target.is_dir()
            if not there:
                _copy(one, root, target)
    _link(links / name, target)
    size, count = format_size(one.total_bytes), len(one.files)
    was = "was there" if there else "staged"
    _say(f"data {name}: {was}: {count} files, {size}, {one.fingerprint}")
    return InputFingerprint(name, redacted(where), len(one.files), one.total_bytes, one.fingerprint)


def describe(where: str, cache: NodeCache) -> StagedInput:
    """The files of an input and its fingerprint. Raises NotFound, UserError, DataCorrupt."""
    place = locate(where, cache)
    listing = place.source.listing()
    if place.names is not None:
        wanted = set(place.names)
        listing = [row for row in listing if row[0] in wanted]
    if not listing:
        raise NotFound(f"{where} holds no files")
    index: Index | None = load_index(place)
    if index is None:
        rows = [[name, size, _stamp(place, name)] for name, size in listing]
        files = tuple((name, size, None) for name, size in listing)
        return StagedInput(place, files, f"listing:{digest_of(canonical({'rows': rows}))}")
    digests = {name: index.digest(at) for at, name in enumerate(index.files)}
    found = tuple((name, size, digests.get(name)) for name, size in listing)
    return StagedInput(place, found, index.fingerprint())


def _stamp(place: DataLocation, name: str) -> int | str:
    """What changes when a file is replaced by one of the same size."""
    source = place.source
    if isinstance(source, LocalSource):
        return os.stat(source.root / name).st_mtime_ns
    version = source.version(name) if isinstance(source, ObjectSource) else ""
    return f"{source.where}\n{version}"


def _copy(one: StagedInput, root: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.tmp")
    partial.mkdir(mode=0o700, exist_ok=True)
    missing = [row for row in one.files if not _is_there(partial / row[0], row[1])]
    _make_room(root, sum(size for _, size, _ in missing), target.name)
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda row: _fetch(one, partial, *row), missing):
            pass
    partial.rename(target)


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _fetch(one: StagedInput, partial: Path, name: str, size: int, digest: str | None) -> None:
    """Copy one file; it gets its name when it is complete and compared."""
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise DataCorrupt(f"{one.place.source.where} has an object with the name {name!r}")
    path = partial / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    source = one.place.source
    if isinstance(source, ObjectSource):
        part.write_bytes(b"")  # the child process of the store writes into a file that is there
        source.fetch(name, size, digest, part)
    else:
        file = source.open(name, size, digest, lambda: None)
        with contextlib.closing(file), open(part, "wb") as out:
            found = Digest((digest or "xxh3-128:").partition(":")[0]) if digest else None
            for chunk in file.chunks(_CHUNK):
                out.write(chunk)
                if found is not None:
                    found.update(chunk)
            if found is not None and found.text != digest:
                raise DataCorrupt(f"{source.where}/{name} does not match its index: {found.text}")
    if part.stat().st_size != size:
        raise DataUnavailable(f"{source.where}/{name} changed while it was copied")
    part.replace(path)


def _make_room(root: Path, num_bytes: int, keep: str) -> None:
    """Delete unused copies until there is space. Raises UserError where there is not enough."""
    wanted = num_bytes + _SPARE_BYTES
    locks = sorted(root.glob("*.lock"), key=lambda path: path.stat().st_mtime)
    for lock in locks:
        if shutil.disk_usage(root).free >= wanted:
            return
        if lock.stem == keep:
            continue
        with open(lock, "rb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            for folder in (root / lock.stem, root / f"{lock.stem}.tmp"):
                shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
    free = shutil.disk_usage(root).free
    if free < wanted:
        raise UserError(
            f"{root} has {format_size(free)} free, and {format_size(wanted)} are needed",
            "free space there, or read the input where it is",
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a copy, also where it is deleted by another process meanwhile."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 - closed below
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            break
        file.close()
    try:
        os.utime(path)
        yield
    finally:
        file.close()


def _link(link: Path, target: Path) -> None:
    partial = link.with_name(f".{link.name}.new")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
