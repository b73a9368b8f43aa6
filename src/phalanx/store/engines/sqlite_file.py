"""Check a SQLite file before it is opened. A check never repairs or overwrites a file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from phalanx.errors import NotSupported, StoreCorrupt, StoreUnavailable

_MAGIC = b"SQLite format 3\0"
# Where locks or shared memory do not work as WAL needs them.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs"}
_NETWORK |= {"glusterfs", "sshfs", "s3fs"}  # also as `fuse.NAME`
RESCUE = "the file was left as it is: move it away to start afresh, or put a backup in its place"


def check(path: Path, mounts: str | None = None) -> None:
    """Refuse a file that is damaged, foreign, or on a network file system.

    `mounts` is the text of /proc/mounts. Raises StoreCorrupt, NotSupported, or StoreUnavailable when
    the folder cannot be used.
    """
    kind = file_system(path.parent, _mounts() if mounts is None else mounts)
    if kind.removeprefix("fuse.") in _NETWORK:
        raise NotSupported(
            f"{path.parent} is on a network file system ({kind}), where SQLite loses data",
            "put the home on a local disk, or use PostgreSQL",
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = b""
        if path.exists():
            with path.open("rb") as file:
                head = file.read(16)
    except OSError as error:
        raise StoreUnavailable(f"cannot use {path}: {error.strerror or error}") from error
    if head and head != _MAGIC:
        raise StoreCorrupt(f"{path} is not a database of this platform", RESCUE)
    if head:
        _check_pages(path)


def _check_pages(path: Path) -> None:
    """Walk the file's structure; linear in its size, a few hundred MB per second."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10.0)) as conn:
            verdict = conn.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"cannot open {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"{path} is damaged: {error}", RESCUE) from error
    if verdict != "ok":
        raise StoreCorrupt(f"{path} is damaged: {verdict}", RESCUE)


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(errors="replace")
    except OSError:
        return ""


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, which need not exist; `` when unknown."""
    real = os.path.realpath(path)
    found, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found):
            found, kind = point, fields[2]
    return kind


class HintedCompiler(SQLiteCompiler):
    """Write the hints of queries behind their tables, such as `INDEXED BY`; SQLAlchemy leaves them out."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        """The hint as it is written."""
        return text
