"""The child process that accesses the object store for one rank or worker.

The store's client runs threads of its own, which a fork leaves behind: a forked data worker that used
it would wait for ever. So it is never used in process. `RemoteStore` starts this module as a child on
first use, sends one JSON line per request through a pipe and reads one back; the child writes what it
fetches straight into the file it is told, and ends when its pipe does.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.digest import Digest
from phalanx.checkpoint.remote_store import client_options
from phalanx.errors import DataUnavailable, NotFound, NotSupported, PermissionDenied, PlatformError
from phalanx.kit.interpreter import own_python

_CHUNK_BYTES = 4 << 20
_RAISED: dict[str, type[PlatformError]] = {
    "not_found": NotFound,
    "permission_denied": PermissionDenied,
    "not_supported": NotSupported,
}


class RemoteStore:
    """One prefix of an object store, reached through a child process. May be pickled and forked.

    `options` are the client's own (`endpoint`, `region`, `access_key_id`, …); what is not given comes
    from the environment and the machine's credentials.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options or {})
        self._forget()

    def _forget(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["options"])  # type: ignore[misc]

    def list(self) -> list[tuple[str, int, str]]:
        """List (name, size, version) of all objects below the prefix."""
        return [tuple(row) for row in self._ask({"op": "list"})["objects"]]

    def fetch(self, name: str, path: Path, algorithm: str | None = None) -> tuple[int, str]:
        """Write an object into a file, from its start; returns its size and digest."""
        reply = self._ask({"op": "fetch", "name": name, "path": str(path), "algorithm": algorithm})
        return reply["size"], reply["digest"]

    def store(self, name: str, path: Path) -> None:
        """Upload a file as an object, replacing an existing one."""
        self._ask({"op": "store", "name": name, "path": str(path)})

    def close(self) -> None:
        """End the child process."""
        child, owner = self._child, self._owner
        self._forget()
        if child is not None and owner == os.getpid():
            _end(child)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request. Raises NotFound, PermissionDenied, NotSupported or DataUnavailable."""
        if self._owner != os.getpid():
            self._forget()
        with self._lock:
            reply = self._exchange(json.dumps(request).encode() + b"\n")
        if "error" in reply:
            name = f"{self.url}/{request.get('name', '')}"
            raised = _RAISED.get(reply["error"], DataUnavailable)
            raise raised(f"{name}: {reply['message']}", reply.get("hint"))
        return reply

    def _exchange(self, line: bytes) -> dict[str, Any]:
        child = self._child or self._start()
        try:
            _stdin(child).write(line)
            _stdin(child).flush()
            answer = _stdout(child).readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._child = None
            _end(child)
            return {"error": "unavailable", "message": "the process that fetches objects has died"}
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            own_python("-m", "phalanx.train.data.readers.remote"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._child = child
        opening = {"url": self.url, "options": self.options}
        _stdin(child).write(json.dumps(opening).encode() + b"\n")
        return child


def _stdin(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdin is not None
    return child.stdin


def _stdout(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and close its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _open_store(url: str, options: Mapping[str, Any]) -> Any:
    from obstore.store import from_url

    own = os.environ  # noqa: TID251 - the address of the store, as for checkpoints
    return from_url(url, **client_options(url, options, own))


def _version(found: Mapping[str, Any]) -> str:
    """What changes with an object's content: its version or entity tag, else when it was written."""
    known = (found["version"] or found["e_tag"] or "").strip('"')
    return known or str(found["last_modified"])


def _answer(store: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    if request["op"] == "list":
        rows = [
            (found["path"], found["size"], _version(found))
            for chunk in store.list()
            for found in chunk
        ]
        return {"objects": sorted(rows)}
    if request["op"] == "store":
        with open(request["path"], "rb") as file:
            store.put(request["name"], file)
        return {}
    digest, size = Digest(*filter(None, [request["algorithm"]])), 0
    with open(request["path"], "r+b", buffering=0) as file:
        for chunk in store.get(request["name"]).stream(min_chunk_size=_CHUNK_BYTES):
            data = memoryview(chunk)
            digest.update(data)
            size += len(data)
            while data:
                data = data[file.write(data) :]
    return {"size": size, "digest": digest.text}


def _refusal(error: Exception) -> dict[str, Any]:
    message = str(error).partition("\n")[0][:500]
    kind = type(error).__name__
    if isinstance(error, FileNotFoundError):
        return {"error": "not_found", "message": "there is no such object"}
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        hint = "check the credentials and the rights on this prefix"
        return {"error": "permission_denied", "message": message, "hint": hint}
    if isinstance(error, ImportError):
        hint = "pip install 'phalanx[data]'"
        return {
            "error": "not_supported",
            "message": f"object storage needs obstore: {error}",
            "hint": hint,
        }
    return {"error": "unavailable", "message": f"{kind}: {message}"}


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the input ends."""
    opening = json.loads(requests.readline() or b"null")
    if opening is None:
        return
    store = None
    for line in requests:
        try:
            store = store or _open_store(opening["url"], opening["options"])
            reply = _answer(store, json.loads(line))
        except Exception as error:
            reply = _refusal(error)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
