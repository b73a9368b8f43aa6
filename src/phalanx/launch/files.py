"""Atomic writes, locks, owners and last lines of files; temporary folders that go with their process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def is_out_of_space(error: BaseException) -> bool:
    """Whether a file could not be written because the disk is full, or a quota of it is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_file(path: Path, data: bytes) -> None:
    """Replace the file `path` atomically, with mode 0600, and flush it to disk. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def distrusted(path: Path) -> str:
    """Why a file or folder that others may have made is not trusted; empty when it is.

    It has to belong to this user, and no other user may write to it. One that does not exist is trusted.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user (uid {found.st_uid})"
    if stat.S_IMODE(found.st_mode) & 0o022:
        return f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def folder_identity(path: Path) -> str:
    """A text that no copy of a folder has: its device and inode. Raises OSError."""
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def private_folder(path: Path) -> None:
    """Create a folder that no other user can enter, or check that it is one.

    A folder below a shared one such as /tmp may have been made by another user first, as a folder or as a
    link. No folder above it may belong to another user either: another one could be put in its place.
    Raises OSError that says what is wrong.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _sees_owners():
        for above in [path.parent.absolute(), *path.parent.absolute().parents]:
            _check_above(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            said = f"the folder belongs to user {found.st_uid}, not to {os.geteuid()}: remove it"
            raise PermissionError(1, said, str(path))
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _sees_owners() -> bool:
    """Whether owners of files are shown as they are: in a user namespace, root may look different."""
    try:
        return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return False


def _check_above(folder: Path) -> None:
    found = folder.stat()
    shared = stat.S_IMODE(found.st_mode) & 0o022 and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in (0, os.geteuid()):
        said = f"the folder belongs to user {found.st_uid}, what is below it could be replaced"
    elif shared:
        said = "other users can rename what is below this folder"
    else:
        return
    raise PermissionError(1, said, str(folder))


def read_own_file(path: Path) -> int:
    """Open a file of this user that no other can write; returns a descriptor. Raises OSError.

    A link is refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    wrong = ""
    if not stat.S_ISREG(found.st_mode):
        wrong = "this is no regular file"
    elif found.st_uid != os.geteuid():
        wrong = f"the file belongs to user {found.st_uid}"
    elif stat.S_IMODE(found.st_mode) & 0o022:
        wrong = "other users can write this file"
    if wrong:
        os.close(descriptor)
        raise PermissionError(1, wrong, str(path))
    return descriptor


def try_lock(path: Path, how: int = fcntl.LOCK_EX, create: int = os.O_CREAT) -> int | None:
    """Lock a file until the descriptor that this returns is closed; None: another process holds it.

    `create` 0 leaves a missing file missing. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def last_line(path: Path) -> str:
    """The last line of a text file that is not blank; empty where there is none."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


@contextlib.contextmanager
def scratch(where: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder with a short name below `where`, and remove it at the end.

    Folders of processes that were killed are removed first. Raises OSError.
    """
    for left in where.glob(f"{prefix}*-*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
