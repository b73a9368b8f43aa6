"""A layer over the operating system's file calls that makes them fail below one folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Calls that change something; all others are reads.
_WRITES = ("mkdir", "rename", "replace", "unlink", "rmdir", "link", "write", "fsync")
_READS = ("stat", "lstat", "listdir", "scandir", "readlink")
_OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FaultyFiles:
    """Raises `reading` or `writing`, error numbers, for paths below `root`; 0: the call goes through.

    `only` limits faults to paths that contain a text.
    """

    def __init__(self, root: object, monkeypatch: Any) -> None:
        self.reading = self.writing = 0
        self.only = ""
        self.hits = 0
        self._root = os.fspath(root)  # type: ignore[call-overload]
        self._fds: dict[int, str] = {}
        for name in (*_READS, *_WRITES):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, self._wrapped(real, writes=name in _WRITES))
        self._open, self._close, self._preadv = os.open, os.close, os.preadv
        monkeypatch.setattr(os, "open", self._open_file)
        monkeypatch.setattr(os, "close", self._close_file)
        monkeypatch.setattr(os, "preadv", self._wrapped(os.preadv, writes=False))
        monkeypatch.setattr(os, "read", self._wrapped(os.read, writes=False))

    def heal(self) -> None:
        """Let every call through again."""
        self.reading = self.writing = 0
        self.only = ""

    def _wrapped(self, real: Callable[..., Any], *, writes: bool) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            self._check(path, writes=writes)
            return real(path, *args, **options)

        return call

    def _open_file(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        self._check(path, writes=bool(flags & _OPENS_TO_WRITE))
        fd = self._open(path, flags, *args, **options)
        if isinstance(path, str | os.PathLike) and self._below(os.fspath(path)):
            self._fds[fd] = os.fspath(path)
        return fd

    def _close_file(self, fd: int) -> None:
        self._fds.pop(fd, None)
        self._close(fd)

    def _below(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + os.sep)

    def _check(self, path: Any, *, writes: bool) -> None:
        number = self.writing if writes else self.reading
        if not number:
            return
        text = self._fds.get(path, "") if isinstance(path, int) else os.fspath(path)
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        if self._below(text) and self.only in text:
            self.hits += 1
            raise OSError(number, os.strerror(number), text)
