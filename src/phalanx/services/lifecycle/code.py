"""Snapshots of code: tar archives kept under their SHA-256, and unpacked once per attempt."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import secrets
import shutil
import tarfile
from pathlib import Path

from phalanx.errors import LaunchError, UserError
from phalanx.kit.units import format_size
from phalanx.schemas.home import HomeLayout

MAX_ARCHIVE_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 4 << 30
MAX_MEMBERS = 200_000


def archive_path(home: HomeLayout, digest: str) -> Path:
    """Where an archive lies."""
    return home.code_dir / f"{digest}.tar"


def has(home: HomeLayout, digest: str) -> bool:
    """Whether it has been uploaded. Whoever asks is about to use it: it counts as new again."""
    try:
        os.utime(archive_path(home, digest))
    except OSError:
        return False
    return True


def unused_since(home: HomeLayout, before_s: float) -> list[str]:
    """Digests of archives that nobody has uploaded or asked for since a time, in seconds UTC."""
    return sorted(
        path.stem for path in home.code_dir.glob("*.tar") if path.stat().st_mtime < before_s
    )


def remove(home: HomeLayout, digest: str, before_s: float) -> None:
    """Let an archive go, unless somebody has asked for it meanwhile."""
    path = archive_path(home, digest)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime < before_s:
            path.unlink()


def holds(home: HomeLayout, digest: str, name: str) -> bool:
    """Whether an archive has a file of this name."""
    wanted = posixpath.normpath(name)
    with tarfile.open(archive_path(home, digest)) as archive:
        return any(posixpath.normpath(one.name) == wanted for one in archive)


class Upload:
    """One archive on its way in. `finish` makes it visible; `abandon` leaves no trace."""

    def __init__(self, home: HomeLayout, digest: str) -> None:
        home.code_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._target = archive_path(home, digest)
        self._digest = digest
        self._path = home.code_dir / f".{digest[:16]}-{secrets.token_hex(6)}.tmp"
        self._file = self._path.open("xb")
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Add bytes. Raises UserError when the archive becomes too large."""
        self._size_bytes += len(chunk)
        if self._size_bytes > MAX_ARCHIVE_BYTES:
            raise UserError(
                f"the code is larger than {format_size(MAX_ARCHIVE_BYTES)}",
                "leave data out of the work directory with .gitignore or .phalanxignore",
            )
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self) -> None:
        """Verify and keep it. Raises UserError when it is not what its digest says, or not a safe tar."""
        if self._hash.hexdigest() != self._digest:
            raise UserError("the code that arrived is not what its digest says", "upload it again")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        check_archive(self._path)
        self._path.rename(self._target)

    def abandon(self) -> None:
        """Forget what was written; harmless after `finish`."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def check_archive(path: Path) -> None:
    """Refuse what must never be unpacked. Raises UserError naming the member."""
    try:
        with tarfile.open(path) as archive:
            total = 0
            for count, member in enumerate(archive, start=1):
                tarfile.data_filter(member, "/nowhere")
                total += member.size
                if count > MAX_MEMBERS or total > MAX_UNPACKED_BYTES:
                    raise UserError(
                        f"the code has more than {MAX_MEMBERS} files or "
                        f"{format_size(MAX_UNPACKED_BYTES)}"
                    )
    except tarfile.FilterError as error:
        raise UserError(f"the code archive is not safe to unpack: {error}") from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"the code archive cannot be read: {error}") from error


def unpack(home: HomeLayout, digest: str, target: Path) -> None:
    """The code of an attempt in `target`, whole or not at all; what is there already stays.

    Raises LaunchError when it cannot be unpacked.
    """
    if target.is_dir():
        return
    try:
        _unpack_whole(archive_path(home, digest), target)
    except (tarfile.TarError, OSError, UserError) as error:
        raise LaunchError(f"the code cannot be unpacked: {error}") from error


def _unpack_whole(path: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        check_archive(path)
        with tarfile.open(path) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(target)
    except (tarfile.TarError, OSError, UserError):
        shutil.rmtree(partial, ignore_errors=True)
        raise
