"""Requests of a rank about the parts of checkpoints, answered in the process with the store's client."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.catalog import read_manifest, read_pins
from phalanx.checkpoint.remote import CheckpointUpload, RemoteListing, look
from phalanx.checkpoint.remote_store import ObjectStore
from phalanx.checkpoint.store_first import operations
from phalanx.checkpoint.store_first.operations import Order
from phalanx.checkpoint.store_first.transfers import CHUNK, Downloads, NearCopies, frames, put_part
from phalanx.core.training.checkpoints import MANIFEST, Keep, Manifest
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointUnavailable,
    UserError,
)
from phalanx.kit.clock import Clock

WITHOUT_REPLY = frozenset({"mirror", "finish", "abandon", "retire"})
Emit = Callable[[Mapping[str, Any]], None]


class StoreFirstRequests:
    """Answers one request after another.

    `opening` has the rank's `order` (attempt, generation) and two pipes: `data_fd`, from which its parts
    come, and `out_fd` for what it reads.
    """

    def __init__(
        self, store: ObjectStore, opening: Mapping[str, Any], keep: Keep, emit: Emit, clock: Clock
    ) -> None:
        self._store, self._keep, self._emit, self._clock = store, keep, emit, clock
        self._local = Path(opening["local"])
        self._order: Order = (int(opening["order"][0]), int(opening["order"][1]))
        self._pipe: IO[bytes] = os.fdopen(int(opening["data_fd"]), "rb", buffering=0)
        self._out_fd, self._out_lock = int(opening["out_fd"]), threading.Lock()
        self._near, self._downloads = NearCopies(), Downloads(store)
        self._known: Mapping[str, Manifest] = {}
        self._answers: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]] = {
            "claim": self._claim,
            "put": self._put,
            "commit": self._commit,
            "abandon": self._abandon,
            "retire": self._retire,
            "fetch_near": self._fetch_near,
            "read": self._read,
            "manifest": self._manifest,
            "send": self._send,
            "note": self._note,
            "keep_note": self._keep_note,
        }

    def answer(self, request: Mapping[str, Any]) -> None:
        """Carry a request out, and send the reply if one is expected.

        Requests of other kinds are passed over. Raises what the operation raises.
        """
        answer = self._answers.get(request["op"])
        reply = None if answer is None else answer(request)
        if reply is not None:
            self._emit(reply)

    def _claim(self, _request: Mapping[str, Any]) -> Mapping[str, Any]:
        listing = operations.claim(self._store, self._order, self._is_near)
        self._known = listing.good
        manifests = [manifest.to_json() for manifest in listing.good.values()]
        return {"event": "listed", "manifests": manifests, "bad": dict(listing.bad)}

    def _is_near(self, name: str) -> bool:
        try:
            read_manifest(self._local / name)
        except (CheckpointNotFound, CheckpointCorrupt, OSError):
            return False
        return True

    def finish(self) -> None:
        """Wait until the near copies are written."""
        self._downloads.close()
        self._near.finish()

    def _put(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self._downloads.close()  # training has begun
        copy = self._near.create(Path(request["near"]))
        size = int(request["bytes"])
        put_part(self._store, request["place"], frames(self._pipe), size, copy)
        return {"event": "put"}

    def _commit(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        operations.commit(self._store, request["name"], request["manifest"].encode(), self._order)
        return {"event": "committed"}

    def _abandon(self, request: Mapping[str, Any]) -> None:
        operations.abandon(self._store, request["name"])

    def _retire(self, request: Mapping[str, Any]) -> None:
        """Retention goes on behind the training; it costs a warning where it fails."""
        listing: RemoteListing = look(self._store, self._known)
        self._known = listing.good
        now, head = self._clock.now(), request["head"]
        try:
            pinned = read_pins(self._local)
            gone = operations.retire(
                self._store, listing, self._order, self._keep, now, head, pinned
            )
        except (UserError, CheckpointUnavailable) as error:
            self._emit({"event": "warn", "message": f"old checkpoints stay: {error.message}"})
            return
        for name in gone:
            self._emit({"event": "removed", "name": name})

    def _read(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send chunks of a file to the rank, and write them near as far as the disk takes them in time."""
        copy = self._near.fill(Path(request["near"]))

        def take(at: int, pieces: Sequence[memoryview]) -> None:
            self._pass_on(at, pieces)
            copy.offer(at, pieces)

        place, size = request["place"], int(request["bytes"])
        try:
            self._downloads.copy(place, size, request["ranges"], take, copy.offer)
        finally:
            copy.close()
            self._pass_on(0, [])
        return {"event": "read"}

    def _pass_on(self, at: int, pieces: Sequence[memoryview]) -> None:
        size = sum(piece.nbytes for piece in pieces)
        left: list[Any] = [CHUNK.pack(at, size), *pieces]
        with self._out_lock:
            while left:
                sent = os.writev(self._out_fd, left)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = memoryview(left[0])[sent:]

    def _fetch_near(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have ranges of a file in its near copy, from where ranks of this node will read them."""
        place, size = request["place"], int(request["bytes"])
        try:
            fd = os.open(request["near"], os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._downloads.copy(place, size, request["ranges"], partial(_write_at, fd))
            finally:
                os.close(fd)
        except OSError as error:
            text = f"the folder of checkpoints cannot be written: {error.strerror}"
            raise CheckpointUnavailable(text) from error
        return {"event": "fetched_near"}

    def _manifest(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        data = self._store.get(f"{request['name']}/{MANIFEST}")
        return {"event": "manifest", "text": data.decode("utf-8", "surrogateescape")}

    def _note(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "event": "note",
            "text": self._store.get(request["name"]).decode("utf-8", "replace"),
        }

    def _keep_note(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        operations.keep_note(self._store, request["name"], request["text"].encode(), self._order)
        return {"event": "noted"}

    def _send(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Upload a checkpoint that was committed in the local folder, before other ranks need it."""
        upload = CheckpointUpload(self._local / request["name"])
        try:
            there = look(self._store, self._known).objects.get(request["name"], {})
            upload.send(self._store, there)
        finally:
            upload.close()
        return {"event": "sent"}


def _write_at(fd: int, at: int, pieces: Sequence[memoryview]) -> None:
    for piece in pieces:
        while piece:
            size = os.pwrite(fd, piece, at)
            at, piece = at + size, piece[size:]
