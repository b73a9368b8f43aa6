"""The Python environments built on this node, each found by digest and always complete.

Below the root lie, for each digest, `<digest>-<8 hex>/` (the environment, which never moves, as its
scripts name their interpreter by its path), `<digest>` (a link to it, put in place by one rename when all
is there) and `<digest>.lock` (held during a build). A folder that no link names is debris: a build that was
killed. A process that uses an environment holds a shared lock on its `in-use` file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.launch import linux
from phalanx.launch.files import private_folder, read_own_file, try_lock, write_file

RECORD = "phalanx.json"
IN_USE = "phalanx.in-use"


@dataclass(frozen=True, slots=True)
class EnvironmentStore:
    """The environments below one folder."""

    root: Path

    def path(self, digest: str) -> Path:
        """The link to the environment; it exists once the environment is complete."""
        return self.root / digest

    def target(self, digest: str) -> Path | None:
        """The folder of the environment; None while no complete one exists."""
        try:
            folder = self.root / os.readlink(self.path(digest))
        except OSError:
            return None
        # It may have been emptied by hand.
        return folder if (folder / RECORD).is_file() else None

    def hold(self, digest: str) -> int | None:
        """Protect the environment from removal until this descriptor is closed; None: build it first."""
        folder = self.target(digest)
        if folder is None:
            return None
        self._check(folder)
        descriptor = _lock(folder / IN_USE, fcntl.LOCK_SH)
        if descriptor is None:
            return None
        # Between the look and the lock it may have been removed, and another one built.
        if self.target(digest) != folder:
            os.close(descriptor)
            return None
        with contextlib.suppress(OSError):
            os.utime(folder / RECORD)
        return descriptor

    @contextlib.contextmanager
    def building(self, digest: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the lock for building it; `waiting` is called when another process holds it."""
        private_folder(self.root)
        path = self._lock_file(digest)
        descriptor = _lock(path, fcntl.LOCK_EX)
        if descriptor is None:
            waiting()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            self._sweep(digest)
            yield
        finally:
            os.close(descriptor)

    def new(self, digest: str, suffix: str) -> Path:
        """Create a folder to build in; the caller holds the lock."""
        folder = self.root / f"{digest}-{suffix}"
        folder.mkdir(mode=0o700)
        return folder

    def commit(self, digest: str, folder: Path, record: dict[str, Any]) -> None:
        """Flush a finished folder to disk and link it; the caller holds the lock."""
        (folder / IN_USE).touch(mode=0o600)
        write_file(folder / RECORD, json.dumps({**record, "size_bytes": _size(folder)}).encode())
        linux.flush_file_system(folder)
        link = self.root / f"{folder.name}.link"
        link.symlink_to(folder.name)
        link.rename(self.path(digest))

    def prune(self, max_num: int = 16, max_bytes: int = 32 << 30) -> list[str]:
        """Remove debris, and unused environments beyond the limits, the least recently used first.

        Returns the digests removed.
        """
        removed, num, size_bytes = [], 0, 0
        for digest, record in sorted(self._known(), key=lambda one: -one[1]["used_at_s"]):
            num, size_bytes = num + 1, size_bytes + record["size_bytes"]
            beyond = num > max_num or size_bytes > max_bytes
            if beyond and self._remove(digest):
                removed.append(digest)
                num, size_bytes = num - 1, size_bytes - record["size_bytes"]
        self._sweep_others()
        return removed

    # -- inside ------------------------------------------------------------------------------------

    def _check(self, folder: Path) -> None:
        """Raise OSError where another user may have put the environment there: its programs would run."""
        private_folder(self.root)
        os.close(read_own_file(folder / RECORD))
        if folder.parent != self.root or folder.is_symlink():
            raise PermissionError(1, "the environment lies elsewhere", str(folder))

    def _lock_file(self, digest: str) -> Path:
        return self.root / f"{digest}.lock"

    def _known(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for link in self.root.iterdir():
            if link.is_symlink() and not link.name.endswith(".link"):
                path = link / RECORD
                try:
                    size_bytes = int(json.loads(path.read_bytes())["size_bytes"])
                    yield link.name, {"size_bytes": size_bytes, "used_at_s": path.stat().st_mtime}
                except (OSError, ValueError, KeyError, TypeError):
                    yield link.name, {"size_bytes": 0, "used_at_s": 0.0}

    def _remove(self, digest: str) -> bool:
        """Remove an environment, unless a process uses or builds it; returns whether it was removed."""
        building = _lock(self._lock_file(digest), fcntl.LOCK_EX)
        if building is None:
            return False
        try:
            folder = self.root / os.readlink(self.path(digest))
            using = _lock(folder / IN_USE, fcntl.LOCK_EX)
            if using is None and folder.is_dir():
                return False
            self.path(digest).unlink()
            shutil.rmtree(folder, ignore_errors=True)
            if using is not None:
                os.close(using)
            return True
        finally:
            os.close(building)

    def _sweep(self, digest: str) -> None:
        """Delete the folders of killed builds of one environment; the caller holds its lock."""
        whole = self.target(digest)
        for left in self.root.glob(f"{digest}-*"):
            if left != whole:
                if left.is_symlink():
                    left.unlink()
                else:
                    shutil.rmtree(left, ignore_errors=True)

    def _sweep_others(self) -> None:
        for digest in {one.name.partition("-")[0] for one in self.root.glob("*-*")}:
            descriptor = _lock(self._lock_file(digest), fcntl.LOCK_EX)
            if descriptor is not None:
                try:
                    self._sweep(digest)
                finally:
                    os.close(descriptor)


def _lock(path: Path, how: int) -> int | None:
    """A descriptor that holds the lock; None when another process does, or the folder is missing."""
    try:
        return try_lock(path, how)
    except FileNotFoundError:
        return None


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total
