"""A rank's side of checkpoints that are committed in an object store: parts, manifest, reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.checkpoint.block_writer import blocks_of
from phalanx.checkpoint.commit import sealed
from phalanx.checkpoint.digest import TreeDigest
from phalanx.checkpoint.remote import manifest_of
from phalanx.checkpoint.remote_tier import RemoteTier, Tell
from phalanx.checkpoint.store_first.near_files import Fill, NearFile, Ranges
from phalanx.checkpoint.store_first.operations import Order
from phalanx.checkpoint.store_first.transfers import ABORTED, CHUNK, FRAME
from phalanx.checkpoint.verified_reads import behind
from phalanx.core.training.checkpoints import FileEntry, Keep, Manifest
from phalanx.errors import CheckpointUnavailable, NotFound
from phalanx.kit.clock import backoff_s

NEAR = ".near"
_TRIES = 5
_PIPE_BYTES = (16 << 20, 1 << 20)  # the second is what every user may have
_LOOK_S = 1.0

Pieces = Callable[[], Iterable[Any]]


class StoreFirstTier(RemoteTier):
    """A prefix of an object store to which every rank of a gang uploads its parts.

    Every rank has one, with a process of its own. `order` is (attempt, generation). `shared`: several
    ranks of this node have the folder. `tell` also gets ("removed", {"path"}).
    """

    def __init__(
        self,
        url: str,
        local: Path,
        keep: Keep,
        tell: Tell,
        order: Order,
        *,
        shared: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url, local, keep, tell, env)
        self.url = url.rstrip("/")
        self._local, self._order, self._shared = local, order, shared
        self._data_fd = self._in_fd = -1
        self._turn = threading.Lock()

    # -- saving ------------------------------------------------------------------------------------

    def put(self, name: str, path: str, pieces: Pieces, size_bytes: int) -> FileEntry:
        """Upload one file of a checkpoint, again where the store fails; returns its entry.

        `pieces` is called once per try, `size_bytes` is about how much it gives. Raises
        CheckpointUnavailable, PermissionDenied, NotSupported.
        """
        request = {
            "op": "put",
            "place": f"{name}/{path}",
            "bytes": size_bytes,
            "near": str(self.near(name) / path),
        }
        rng = random.Random()
        for tried in range(1, _TRIES + 1):
            try:
                return self._put_once(request, path, pieces)
            except CheckpointUnavailable:
                if tried == _TRIES:
                    raise
            time.sleep(backoff_s(tried, first_s=0.2, max_s=10.0, rng=rng))
        raise AssertionError("not reached")

    def _put_once(self, request: Mapping[str, Any], path: str, pieces: Pieces) -> FileEntry:
        with self._turn:
            return self._put_in_turn(request, path, pieces)

    def _put_in_turn(self, request: Mapping[str, Any], path: str, pieces: Pieces) -> FileEntry:
        digest, size = TreeDigest(), 0
        self._begin(request)
        try:
            for block in blocks_of(pieces()):
                digest.update(block)
                self._pass_on(FRAME.pack(block.nbytes))
                self._pass_on(block)
                size += block.nbytes
            self._pass_on(FRAME.pack(0))
        except BrokenPipeError:
            pass  # the process has died; the reply says so
        except BaseException:
            with contextlib.suppress(BrokenPipeError):
                self._pass_on(FRAME.pack(ABORTED))
            raise
        self._reply()
        return FileEntry(path, size, digest.text, digest.chunks)

    def _pass_on(self, data: Any) -> None:
        """Write to the process. A forked worker may hold the pipe open for longer than it lives."""
        view = memoryview(data).cast("B")
        while view:
            _, ready, _ = select.select([], [self._data_fd], [], _LOOK_S)
            if ready:
                view = view[os.write(self._data_fd, view) :]
            else:
                self._require_child()

    def _require_child(self) -> None:
        if self._child is None or self._child.poll() is not None:
            raise BrokenPipeError

    def commit(self, manifest: Manifest) -> str:
        """Commit a checkpoint after all ranks have uploaded their files; returns its URL (rank 0).

        Raises Conflict when a newer generation has started; CheckpointUnavailable, PermissionDenied.
        """
        text = sealed(manifest).decode()
        self._ask({"op": "commit", "name": manifest.name, "manifest": text})
        return self.url_of(manifest.name)

    def abandon(self, name: str) -> None:
        """Delete what was uploaded of a checkpoint, without waiting (rank 0)."""
        self._send({"op": "abandon", "name": name})

    def retire(self, head: str) -> None:
        """Apply retention behind a new checkpoint in the store, without waiting (rank 0)."""
        self._send({"op": "retire", "head": head})

    def committed(self) -> None:
        """Nothing is left to copy: a commit is in the store already."""

    def keep_near(self, name: str, committed: bool = True) -> None:
        """Keep the near copy of a checkpoint alone if it was committed; delete it if it was not."""
        with contextlib.suppress(OSError):
            for path in self._local.glob(f"step-*{NEAR}"):
                if (path.name == f"{name}{NEAR}") != committed:
                    shutil.rmtree(path, ignore_errors=True)

    # -- reading -----------------------------------------------------------------------------------

    def claim(self) -> Mapping[str, Manifest]:
        """Begin this generation in the store; returns the checkpoints there, by name (rank 0).

        Raises CheckpointUnavailable, PermissionDenied, NotSupported.
        """
        return self._listed({"op": "claim"})

    def send(self, name: str) -> None:
        """Upload a checkpoint of the local folder now, so that all ranks can read it (rank 0).

        Raises CheckpointUnavailable, PermissionDenied, CheckpointCorrupt.
        """
        self._ask({"op": "send", "name": name})

    def manifest(self, name: str) -> Manifest:
        """The manifest of a checkpoint in the store.

        Raises NotFound, CheckpointCorrupt, CheckpointUnavailable, PermissionDenied.
        """
        text = self._ask({"op": "manifest", "name": name})["text"]
        return manifest_of(text.encode("utf-8", "surrogateescape"), name)

    def note(self, name: str) -> str | None:
        """A small text beside the checkpoints; None: there is none.

        Raises CheckpointUnavailable, PermissionDenied.
        """
        try:
            return str(self._ask({"op": "note", "name": name})["text"])
        except NotFound:
            return None

    def keep_note(self, name: str, text: str) -> None:
        """Replace a small text beside the checkpoints.

        Raises Conflict when a newer generation has started; CheckpointUnavailable, PermissionDenied.
        """
        self._ask({"op": "keep_note", "name": name, "text": text})

    def open_file(self, name: str, entry: FileEntry) -> NearFile:
        """A file of a checkpoint, fetched as far as it is read."""
        reader = _StoredFile(self, f"{name}/{entry.path}", entry.size_bytes)
        return NearFile(self.near(name), entry, reader, shared=self._shared)

    def fetch_near(self, request: Mapping[str, Any]) -> None:
        """Carry out a request of a `_StoredFile`."""
        self._ask({"op": "fetch_near", **request})

    def read(self, request: Mapping[str, Any], arrive: Callable[[int, Fill], None]) -> None:
        """Carry out a request of a `_StoredFile`, and give each chunk to `arrive` as it comes."""
        with self._turn:
            self._begin({"op": "read", **request})
            try:
                self._take_chunks(arrive)
            except BrokenPipeError:
                pass  # the process has died; the reply says so
            except BaseException:
                self.leave()  # what it would still send belongs to no request
                raise
            self._reply()

    def _take_chunks(self, arrive: Callable[[int, Fill], None]) -> None:
        head = bytearray(CHUNK.size)
        while True:
            self._fill([memoryview(head)])
            begin, size = CHUNK.unpack(head)
            if not size:
                return
            arrive(begin, self._fill)

    def _fill(self, views: Sequence[memoryview]) -> None:
        """Fill memory from the process. Raises BrokenPipeError where it has ended."""
        while views:
            try:
                got = os.readv(self._in_fd, views)
            except BlockingIOError:
                if not select.select([self._in_fd], [], [], _LOOK_S)[0]:
                    self._require_child()
                continue
            if not got:
                raise BrokenPipeError
            views = behind(views, got)

    def near(self, name: str) -> Path:
        """Where the near copy of a checkpoint's files is."""
        return self._local / f"{name}{NEAR}"

    def url_of(self, name: str) -> str:
        """The URL of a checkpoint."""
        return f"{self.url}/{name}"

    # -- the process -------------------------------------------------------------------------------

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._turn:
            return super()._ask(request)

    def _start(self, *_given: Any) -> subprocess.Popen[bytes]:
        for fd in (self._data_fd, self._in_fd):
            if fd >= 0:
                os.close(fd)
        read_fd, self._data_fd = os.pipe()
        self._in_fd, write_fd = os.pipe()
        try:
            for fd in (self._data_fd, self._in_fd):
                _enlarge(fd)
                os.set_blocking(fd, False)
            more = {"data_fd": read_fd, "out_fd": write_fd, "order": list(self._order)}
            return super()._start(more, (read_fd, write_fd))
        finally:
            os.close(read_fd)
            os.close(write_fd)

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "removed":
            self._tell("removed", {"path": self.url_of(event["name"])})
            return
        super()._hear(event)


def _enlarge(pipe: int) -> None:
    for size in _PIPE_BYTES:
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
            return


@dataclass(frozen=True, slots=True)
class _StoredFile:
    """A file of a checkpoint in the store; see `ObjectReader`."""

    tier: StoreFirstTier
    place: str
    size_bytes: int

    def fetch_near(self, ranges: Ranges, near: Path) -> None:
        """See `ObjectReader`."""
        self.tier.fetch_near(self._request(ranges, near))

    def read(self, ranges: Ranges, near: Path, arrive: Callable[[int, Fill], None]) -> None:
        """See `ObjectReader`."""
        self.tier.read(self._request(ranges, near), arrive)

    def _request(self, ranges: Ranges, near: Path) -> Mapping[str, Any]:
        place = {"place": self.place, "bytes": self.size_bytes}
        return {**place, "ranges": list(ranges), "near": str(near)}
