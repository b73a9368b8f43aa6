"""Requests of a rank about the parts of checkpoints, answered in the process with the store's client."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.catalog import read_manifest
from phalanx.checkpoint.remote import CheckpointUpload, RemoteListing, look
from phalanx.checkpoint.remote_store import ObjectStore
from phalanx.checkpoint.store_first import operations
from phalanx.checkpoint.store_first.operations import Order
from phalanx.core.training.checkpoints import MANIFEST, Keep, Manifest
from phalanx.errors import CheckpointCorrupt, CheckpointNotFound, UserError
from phalanx.kit.clock import Clock

WITHOUT_REPLY = frozenset({"mirror", "finish", "abandon", "retire"})
Emit = Callable[[Mapping[str, Any]], None]


class StoreFirstRequests:
    """Answers one request after another.

    `opening` has the rank's `order` (attempt, generation) and `data_fd`, the pipe that its parts come from.
    """

    def __init__(
        self, store: ObjectStore, opening: Mapping[str, Any], keep: Keep, emit: Emit, clock: Clock
    ) -> None:
        self._store, self._keep, self._emit, self._clock = store, keep, emit, clock
        self._local = Path(opening["local"])
        self._order: Order = (int(opening["order"][0]), int(opening["order"][1]))
        self._pipe: IO[bytes] = os.fdopen(int(opening["data_fd"]), "rb", buffering=0)
        self._known: Mapping[str, Manifest] = {}
        self._answers: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]] = {
            "claim": self._claim,
            "put": self._put,
            "commit": self._commit,
            "abandon": self._abandon,
            "retire": self._retire,
            "ranges": self._ranges,
            "manifest": self._manifest,
            "send": self._send,
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

    def _put(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        operations.put_part(
            self._store,
            request["place"],
            operations.frames(self._pipe),
            int(request["bytes"]),
            None if request["near"] is None else Path(request["near"]),
        )
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
        now = self._clock.now()
        try:
            gone = operations.retire(
                self._store, listing, self._order, self._keep, now, request["head"]
            )
        except UserError as error:
            self._emit({"event": "warn", "message": f"old checkpoints stay: {error.message}"})
            return
        for name in gone:
            self._emit({"event": "removed", "name": name})

    def _ranges(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        place, into = request["place"], Path(request["into"])
        operations.fetch_ranges(self._store, place, request["ranges"], into)
        return {"event": "ranges"}

    def _manifest(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        data = self._store.get(f"{request['name']}/{MANIFEST}")
        return {"event": "manifest", "text": data.decode("utf-8", "surrogateescape")}

    def _send(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Upload a checkpoint that was committed in the local folder, before other ranks need it."""
        upload = CheckpointUpload(self._local / request["name"])
        try:
            there = look(self._store, self._known).objects.get(request["name"], {})
            upload.send(self._store, there)
        finally:
            upload.close()
        return {"event": "sent"}
