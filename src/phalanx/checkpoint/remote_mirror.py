"""The process that copies the checkpoints of a local folder to an object store, for rank 0.

Requests and replies are JSON lines, and it ends with its parent. It stores no list of uploads: a
checkpoint that is committed locally and not remotely has to be uploaded, so that a new process can
continue after a SIGKILL at any point.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.catalog import CommittedCheckpoint, read_pins, scan
from phalanx.checkpoint.remote import CheckpointUpload, RemoteListing, fetch, look, remove, retain
from phalanx.checkpoint.remote_store import ObjectStore, brief, open_store
from phalanx.checkpoint.store_first.requests import WITHOUT_REPLY, StoreFirstRequests
from phalanx.core.training.checkpoints import Keep, Manifest, expired, is_of_job
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointUnavailable,
    PlatformError,
)
from phalanx.kit.clock import Clock, SystemClock
from phalanx.kit.text import random_hex

_RETRY_S = 30.0
_PARENT_TICK_S = 1.0

Emit = Callable[[Mapping[str, Any]], None]


class Mirror:
    """Uploads missing checkpoints, newest first, and deletes copies that `keep` does not retain.

    With `job_uid` it neither lists nor deletes checkpoints of other jobs: one of a lost database, or of
    another home with the same store, may have had the same number.
    """

    def __init__(
        self,
        store: ObjectStore,
        local: Path,
        keep: Keep,
        emit: Emit,
        clock: Clock,
        job_uid: str | None = None,
    ) -> None:
        self._store, self._local, self._keep = store, local, keep
        self._emit, self._clock = emit, clock
        self._known: Mapping[str, Manifest] = {}
        self._refused: set[str] = set()
        self._job_uid, self._told = job_uid, False

    def look(self) -> RemoteListing:
        """List the remote checkpoints. Raises CheckpointUnavailable, PermissionDenied."""
        listing = look(self._store, self._known)
        self._known = listing.good
        mine = {
            name: manifest
            for name, manifest in listing.good.items()
            if self._job_uid is None or manifest.job_uid == self._job_uid
        }
        others = len(listing.good) - len(mine)
        if others and not self._told:
            self._told = True
            said = f"{others} checkpoints there are of another job with this number, of another database"
            self._emit({"event": "warn", "message": f"{said}: they are neither used nor deleted"})
        return replace(listing, good=mine)

    def pending(self, listing: RemoteListing) -> list[CommittedCheckpoint]:
        """Checkpoints to upload, newest first, without those that retention would delete."""
        good = scan(self._local).good
        here = [one for one in good if is_of_job(one.manifest, self._job_uid)]
        both = {one.manifest.name: one.manifest for one in here} | dict(listing.good)
        now, pinned = self._clock.now(), read_pins(self._local)
        doomed = {manifest.name for manifest in expired(both, self._keep, now, pinned=pinned)}
        past = {*self._known, *doomed, *self._refused}
        return [one for one in here if one.manifest.name not in past]

    def step(self) -> bool:
        """Upload one checkpoint, or apply retention if there is none; returns whether to continue.

        Raises CheckpointUnavailable, PermissionDenied.
        """
        listing = self.look()
        waiting = self.pending(listing)
        if waiting:
            self._upload(waiting[0], listing)
            return True
        here = {one.manifest.name for one in scan(self._local).good} - self._refused
        now, busy, pinned = self._clock.now(), here.__contains__, read_pins(self._local)
        for name in retain(self._store, listing, self._keep, now, busy=busy, pinned=pinned):
            self._emit({"event": "removed", "name": name})
        return False

    def _upload(self, one: CommittedCheckpoint, listing: RemoteListing) -> None:
        name, began = one.manifest.name, self._clock.monotonic()
        try:
            upload = CheckpointUpload(one.path)
        except (OSError, CheckpointNotFound):
            return  # retention has let go of it in this moment
        except CheckpointCorrupt as error:
            self._refuse(name, error)
            return
        size = one.manifest.size_bytes
        self._emit({"event": "uploading", "name": name, "bytes": size})
        try:
            sent = upload.send(self._store, listing.objects.get(name, {}))
        except (CheckpointCorrupt, OSError) as error:
            self._refuse(name, error)
            return
        finally:
            upload.close()
        took = round(self._clock.monotonic() - began, 6)
        self._emit({"event": "stored", "name": name, "bytes": sent, "took_s": took})

    def _refuse(self, name: str, error: Exception) -> None:
        self._refused.add(name)
        self._emit({"event": "uploading", "name": name, "bytes": 0, "failed": True})
        why = error.message if isinstance(error, PlatformError) else brief(error)
        self._emit({"event": "warn", "message": f"{name} is not uploaded: {why}"})


def _listed(mirror: Mirror) -> dict[str, Any]:
    listing = mirror.look()
    manifests = [manifest.to_json() for manifest in listing.good.values()]
    return {"event": "listed", "manifests": manifests, "bad": dict(listing.bad)}


def _refusal(error: Exception) -> dict[str, Any]:
    code, message, hint = "unavailable", brief(error), None
    if isinstance(error, PlatformError):
        code, message, hint = error.code, error.message, error.hint
    return {"event": "failed", "error": code, "message": message, "hint": hint}


class Program:
    """Requests first, uploads in between; after a failure uploads wait for `_RETRY_S`, or a request."""

    def __init__(self, opening: Mapping[str, Any], requests: queue.Queue[Any], emit: Emit) -> None:
        """Raises NotSupported."""
        self._store = open_store(opening["url"], os.environ)  # noqa: TID251
        self._local = Path(opening["local"])
        keep, clock = Keep.from_json(opening["keep"]), SystemClock()
        uid = opening.get("job_uid")
        self._mirror = Mirror(self._store, self._local, keep, emit, clock, uid)
        self._parts = (
            StoreFirstRequests(self._store, opening, keep, emit, clock)
            if "order" in opening
            else None
        )
        self._requests, self._emit = requests, emit
        self._warned = ""

    def run(self) -> None:
        """Run until a `finish` request."""
        busy, finishing, wait_s = False, False, None
        while True:
            request = self._next(busy, wait_s)
            if request is not None:
                finishing = finishing or request["op"] == "finish"
                if self._parts is None:
                    busy = busy or request["op"] in ("mirror", "finish")
                self._answer(request)
                wait_s = None
                if finishing and self._parts is not None:
                    self._parts.finish()
                    break  # a rank waits for every part that it uploads: nothing else is left
                continue
            try:
                busy, wait_s = self._mirror.step(), None
            except Exception as error:  # the uploads wait; the training does not
                self._warn(f"checkpoints are not uploaded for now: {_refusal(error)['message']}")
                busy, wait_s = True, _RETRY_S
                if not isinstance(error, CheckpointUnavailable) and finishing:
                    break
            if finishing and not busy:
                break
        self._emit({"event": "finished", "all": not busy})

    def _warn(self, message: str) -> None:
        if message != self._warned:
            self._warned = message
            self._emit({"event": "warn", "message": message})

    def _next(self, busy: bool, wait_s: float | None) -> Any:
        try:
            if busy and wait_s is None:
                return self._requests.get_nowait()
            return self._requests.get(timeout=wait_s)
        except queue.Empty:
            return None

    def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            if request["op"] == "list":
                self._emit(_listed(self._mirror))
            elif request["op"] == "fetch":
                path = fetch(self._store, request["name"], self._local, random_hex(8))
                self._emit({"event": "fetched", "path": str(path)})
            elif request["op"] == "discard":
                objects = self._mirror.look().objects
                for name in request["names"]:
                    remove(self._store, name, objects.get(name, {}))
                self._emit({"event": "discarded"})
            elif self._parts is not None:
                self._parts.answer(request)
        except Exception as error:
            if request["op"] in WITHOUT_REPLY:
                self._warn(f"in the object store: {_refusal(error)['message']}")
            else:
                self._emit(_refusal(error))


def listen(lines: IO[bytes], requests: queue.Queue[Any], parent: int) -> None:
    """Pass requests on; end this process at once when the parent is gone.

    A forked worker of the parent may hold the pipe open for longer than the parent lives.
    """
    rest = b""
    while True:
        ready, _, _ = select.select([lines], [], [], _PARENT_TICK_S)
        data = os.read(lines.fileno(), 1 << 16) if ready else b""
        if (ready and not data) or os.getppid() != parent:
            os._exit(0)
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            requests.put(json.loads(line))


def main() -> None:
    """Serve the parent until it says finish, or dies."""
    out = sys.stdout.buffer

    def emit(event: Mapping[str, Any]) -> None:
        out.write(json.dumps(event).encode() + b"\n")
        out.flush()

    requests: queue.Queue[Any] = queue.Queue()
    arguments = (sys.stdin.buffer, requests, os.getppid())
    threading.Thread(target=listen, args=arguments, daemon=True).start()
    try:
        program = Program(requests.get(), requests, emit)
    except PlatformError as error:
        emit({"event": "warn", "message": error.message})
        emit(_refusal(error))
        emit({"event": "finished", "all": False})
        return
    program.run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
