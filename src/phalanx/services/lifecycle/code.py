"""Code snapshots: tar archives named by their SHA-256 digest and unpacked once per attempt."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from phalanx.errors import DataUnavailable, LaunchError, StorageFull, UserError
from phalanx.kit.text import random_hex
from phalanx.kit.units import format_size
from phalanx.launch.archives import MemberKind, checked_members, unpack_archive
from phalanx.launch.files import is_out_of_space
from phalanx.schemas.home import HomeLayout
from phalanx.services.platform import Platform
from phalanx.store.tenancy import audit

MAX_ARCHIVE_BYTES = 1 << 30


def archive_path(home: HomeLayout, digest: str) -> Path:
    """The path of an archive."""
    return home.code_dir / f"{digest}.tar"


def has(platform: Platform, digest: str) -> bool:
    """Whether an archive has been uploaded. A positive answer also renews the archive's age.

    One that another control plane has put into the object store is copied into the home. Raises
    DataUnavailable where the store does not answer.
    """
    path = archive_path(platform.home, digest)
    try:
        os.utime(path)
    except OSError:
        archives = platform.code_archives
        return archives is not None and archives.bring(digest, path)
    return True


def local_archive(platform: Platform, digest: str) -> Path:
    """The path of an archive in the home, copied from the object store where it is missing.

    Raises DataUnavailable where the store does not answer.
    """
    path = archive_path(platform.home, digest)
    if platform.code_archives is not None and not path.exists():
        platform.code_archives.bring(digest, path)
    return path


def unused_since(home: HomeLayout, before_s: float) -> list[str]:
    """Digests of archives that were last uploaded or requested before a time, in seconds UTC."""
    return sorted(
        path.stem for path in home.code_dir.glob("*.tar") if path.stat().st_mtime < before_s
    )


def remove(platform: Platform, digest: str, before_s: float) -> int:
    """Delete an archive unless it has been requested since `before_s`; returns the bytes deleted.

    It goes from the object store first. Where that does not answer, the archive stays until a later call.
    """
    path = archive_path(platform.home, digest)
    with contextlib.suppress(FileNotFoundError, DataUnavailable):
        found = path.stat()
        if found.st_mtime < before_s:
            if platform.code_archives is not None:
                platform.code_archives.remove(digest)
            path.unlink()
            return found.st_size
    return 0


def holds(home: HomeLayout, digest: str, name: str) -> bool:
    """Whether an archive has a file of this name."""
    wanted = posixpath.normpath(name)
    with archive_path(home, digest).open("rb") as file:
        return any(
            one.name == wanted and one.kind is not MemberKind.FOLDER
            for one in checked_members(file)
        )


def holds_below(home: HomeLayout, digest: str, folder: str) -> bool:
    """Whether an archive has a file in this folder or below it."""
    wanted = posixpath.normpath(folder) + "/"
    with archive_path(home, digest).open("rb") as file:
        return any(
            one.name.startswith(wanted) and one.kind is not MemberKind.FOLDER
            for one in checked_members(file)
        )


class CodeUpload:
    """An archive that is being uploaded. `verify`, then `publish`; `abandon` deletes it.

    Where the disk has no space left, making one, `write`, `verify` and `publish` raise StorageFull.
    """

    def __init__(self, home: HomeLayout, digest: str) -> None:
        self._target = archive_path(home, digest)
        self.digest = digest
        self._path = home.code_dir / f".{digest[:16]}-{secrets.token_hex(6)}.tmp"
        with _storing(home.code_dir):
            home.code_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        with _storing(self._path.parent):
            self._file.write(chunk)

    @property
    def path(self) -> Path:
        """Where the archive is until `publish`."""
        return self._path

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def verify(self) -> None:
        """End the upload. Raises UserError for a wrong digest or an unsafe tar archive."""
        if self._hash.hexdigest() != self.digest:
            raise UserError("the uploaded code does not match its digest", "upload it again")
        with _storing(self._path.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        check_archive(self._path)

    def publish(self) -> None:
        """Keep the verified archive under its digest."""
        with _storing(self._path.parent):
            self._path.rename(self._target)

    def abandon(self) -> None:
        """Delete what was written; does nothing after `publish`."""
        with contextlib.suppress(OSError):  # on a full disk, what is buffered cannot be written
            self._file.close()
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """Raise StorageFull where the disk of `folder` has no space left for the code."""
    try:
        yield
    except OSError as error:
        if not is_out_of_space(error):
            raise
        raise StorageFull(
            f"the code cannot be stored: the disk of {folder} on the control plane is full",
            "free some space there, then submit again",
        ) from error


def keep(platform: Platform, upload: CodeUpload) -> None:
    """Verify a whole upload and keep it, with a row of the audit log; in the object store first.

    Raises UserError, and DataUnavailable where the object store does not take it.
    """
    upload.verify()
    change = {"bytes": upload.size_bytes}
    if platform.code_archives is not None:
        platform.code_archives.keep(upload.digest, upload.path)
    platform.store.transact(lambda tx: audit.describe(tx, f"code {upload.digest}", None, change))
    upload.publish()


def check_archive(path: Path) -> None:
    """Raise UserError, naming the member, for an archive that is not safe to unpack."""
    try:
        with path.open("rb") as file:
            checked_members(file)
    except OSError as error:
        raise UserError(f"the code archive cannot be read: {error}") from error


def unpack(platform: Platform, digest: str, target: Path) -> None:
    """Unpack the code of an attempt into `target`, completely or not at all; an existing folder is kept.

    Raises LaunchError when it cannot be unpacked.
    """
    if target.is_dir():
        return
    try:
        _unpack_whole(local_archive(platform, digest), target)
    except (OSError, UserError, DataUnavailable) as error:
        raise LaunchError(f"the code cannot be unpacked: {error}") from error


def _unpack_whole(path: Path, target: Path) -> None:
    # Of this call alone: a leader that wakes late may unpack the same now, also on another machine.
    partial = target.with_name(f"{target.name}.{random_hex(8)}.tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        unpack_archive(path, partial)
        partial.rename(target)
    except (OSError, UserError):
        shutil.rmtree(partial, ignore_errors=True)
        if not target.is_dir():
            raise
