"""Checkpoint tiers of rank 0: the local folder, and optional copies in an object store."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phalanx.core.training.checkpoints import Keep, Manifest
from phalanx.errors import (
    CheckpointCorrupt,
    CheckpointUnavailable,
    Conflict,
    NotFound,
    NotSupported,
    PermissionDenied,
    PlatformError,
)
from phalanx.kit.interpreter import own_python

_RAISED: dict[str, type[PlatformError]] = {
    "not_found": NotFound,
    "permission_denied": PermissionDenied,
    "not_supported": NotSupported,
    "checkpoint_corrupt": CheckpointCorrupt,
    "conflict": Conflict,
}

Tell = Callable[[str, Mapping[str, Any]], None]


class CheckpointTier:
    """Where the checkpoints of a job are kept beyond its local folder; here nowhere."""

    def manifests(self) -> Mapping[str, Manifest]:
        """What is there, by name. Raises CheckpointUnavailable, PermissionDenied, NotSupported."""
        return {}

    def bring(self, path: Path) -> bool:
        """Fetch the checkpoint at `path` if it is missing; returns whether it is there."""
        return path.is_dir()

    def has_another(self, path: Path) -> bool:
        """Whether there is a copy of a bad checkpoint that was not fetched yet."""
        return False

    def discard(self, names: Sequence[str]) -> None:
        """Delete checkpoints that no run may resume from; raises as `manifests` does."""

    def committed(self) -> None:
        """Start copying new checkpoints, without waiting."""

    def finish(self, limit_s: float) -> None:
        """Wait until everything is copied, for `limit_s`; the next start continues with the rest."""

    def leave(self) -> None:
        """Copy nothing more; a `finish` that waits in another thread returns."""


class RemoteTier(CheckpointTier):
    """A prefix of an object store, reached through a process of its own (`remote_mirror`).

    From another thread `tell` gets ("warn", {"message"}), ("uploading", {"name", "bytes"}), where it was
    given up with "failed", and ("uploaded", {"name", "bytes", "took_s"}).
    The process has this one's environment, if none is given. With `job_uid` checkpoints of other jobs are
    neither listed nor deleted.
    """

    def __init__(
        self,
        url: str,
        local: Path,
        keep: Keep,
        tell: Tell,
        env: Mapping[str, str] | None = None,
        job_uid: str | None = None,
    ) -> None:
        self._opening = {
            "url": url.rstrip("/"),
            "local": str(local),
            "keep": asdict(keep),
            "job_uid": job_uid,
        }
        self._tell, self._env = tell, env
        self._child: subprocess.Popen[bytes] | None = None
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._far: set[str] = set()
        self._fetched: set[str] = set()

    def manifests(self) -> Mapping[str, Manifest]:
        """Remote checkpoints by name; bad ones are reported and kept."""
        return self._listed({"op": "list"})

    def _listed(self, request: Mapping[str, Any]) -> Mapping[str, Manifest]:
        reply = self._ask(request)
        for why in reply["bad"].values():
            self._tell("warn", {"message": f"in the object store: {why}"})
        found = [Manifest.from_json(body) for body in reply["manifests"]]
        self._far = {manifest.name for manifest in found}
        return {manifest.name: manifest for manifest in found}

    def bring(self, path: Path) -> bool:
        """Fetch the checkpoint if it is missing; bad or missing remote copies are reported."""
        if path.is_dir():
            return True
        self._fetched.add(path.name)
        try:
            self._ask({"op": "fetch", "name": path.name})
        except (CheckpointCorrupt, NotFound) as error:
            self._tell("warn", {"message": f"{path.name} in the object store: {error.message}"})
            return False
        except CheckpointUnavailable:
            # Another node that shares the folder may have been quicker.
            if not path.is_dir():
                raise
        return True

    def has_another(self, path: Path) -> bool:
        """Whether a remote copy exists that has not been fetched yet."""
        return path.name in self._far and path.name not in self._fetched and not path.exists()

    def discard(self, names: Sequence[str]) -> None:
        """See `CheckpointTier`."""
        self._ask({"op": "discard", "names": list(names)})

    def committed(self) -> None:
        """Make the upload process look for new checkpoints."""
        self._send({"op": "mirror"})

    def finish(self, limit_s: float) -> None:
        """Wait for the uploads, then end the process."""
        if self._child is None:
            return
        reply: Mapping[str, Any] = {}
        self._forget_replies()
        self._send({"op": "finish"})
        with contextlib.suppress(queue.Empty):
            reply = self._replies.get(timeout=limit_s)
        if not reply.get("all"):
            text = "not all checkpoints are in the object store yet; the next start continues the copies"
            self._tell("warn", {"message": text})
        self.leave()

    def leave(self) -> None:
        """Kill the process; unfinished uploads continue at the next start."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._begin(request)
        return self._reply()

    def _begin(self, request: Mapping[str, Any]) -> None:
        """Send a request; `_reply` waits for its answer."""
        self._forget_replies()
        self._send(request)

    def _reply(self) -> dict[str, Any]:
        reply = self._replies.get()
        if reply["event"] == "failed":
            raised = _RAISED.get(reply["error"], CheckpointUnavailable)
            raise raised(f"{self._opening['url']}: {reply['message']}", reply.get("hint"))
        return reply

    def _forget_replies(self) -> None:
        """A process that died may have left one that was never read."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._replies.get_nowait()

    def _send(self, request: Mapping[str, Any]) -> None:
        """Send a request to the process, which is restarted if it has died."""
        with self._lock:
            for _ in range(2):
                child = self._child
                if child is not None and child.poll() is not None:
                    _end(child)
                    child = None
                if child is None:
                    child = self._start()
                try:
                    _write(child, request)
                    return
                except BrokenPipeError:
                    # It is ending: until that is done it still counts as a process that runs.
                    _end(child)
                    self._child = None

    def _start(
        self, more: Mapping[str, Any] | None = None, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            own_python("-m", "phalanx.checkpoint.remote_mirror"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=self._env,
            pass_fds=pass_fds,
        )
        self._child = child
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        _write(child, {**self._opening, **(more or {})})
        return child

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        last: dict[str, Any] = {}
        with contextlib.suppress(ValueError, OSError), child.stdout:
            for line in child.stdout:
                last = json.loads(line)
                self._hear(dict(last))
        # The end of a process that was replaced is no answer to what the new one was asked.
        if last.get("event") != "finished" and self._child in (child, None):
            message = "the process that copies checkpoints has died"
            self._replies.put({"event": "failed", "error": "unavailable", "message": message})

    def _hear(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "warn":
            self._tell("warn", event)
        elif kind == "stored":
            self._tell("uploaded", event)
        elif kind == "uploading":
            self._tell("uploading", event)
        elif kind != "removed":
            self._replies.put({"event": kind, **event})


def _write(child: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(request).encode() + b"\n")
    child.stdin.flush()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()


def known(
    tier: CheckpointTier, near: Sequence[Manifest], warn: Callable[[str], object]
) -> dict[str, Manifest]:
    """Checkpoints of both tiers, by name; local copies take precedence.

    A store that does not answer costs a warning when there is something here to go on with. With
    nothing here it ends the run, to be tried again: to begin anew would be worse. Raises
    CheckpointUnavailable, PermissionDenied, NotSupported.
    """
    try:
        far: Mapping[str, Manifest] = tier.manifests()
    except PlatformError as error:
        if not near:
            raise
        warn(error.message)
        far = {}
    return {**far, **{manifest.name: manifest for manifest in near}}
