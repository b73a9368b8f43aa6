"""A mirror of one collection of the API server, by list and watch."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.kubernetes.client import (
    SILENT_S,
    Expired,
    KubernetesClient,
    KubernetesRefused,
    Object,
)

_LOG = logging.getLogger(__name__)
_WATCH_S = (240, 300)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 15.0
_NOT_READ = "the first list has not been read yet"


class Reflector:
    """The objects of one collection by namespace and name, as the API server last told them.

    It is whole only between a full list and the end of the contact: `read` raises ExecutorUnavailable in
    every gap, so that nothing is concluded from absence.
    """

    def __init__(
        self,
        client: KubernetesClient,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        changed: Callable[[], None] = lambda: None,
        trim: Callable[[Object], Object] = lambda one: one,
        keep: Callable[[Object], bool] = lambda one: True,
    ) -> None:
        """`trim` takes what is needed of an object; one that `keep` refuses is not in the mirror."""
        self._client, self._path, self._query = client, path, dict(query or {})
        self._changed, self._trim, self._keep = changed, trim, keep
        self._lock = threading.Condition()
        self._objects: dict[tuple[str, str], Object] = {}
        self._version = ""
        self._problem = _NOT_READ
        self._heard_at = time.monotonic()
        self._closed = False
        self.num_lists = 0
        self.num_changes = 0  # grows with every change of the objects
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self._thread.start()

    def read(self) -> list[Object]:
        """All objects. Raises ExecutorUnavailable while the mirror may lack something."""
        with self._lock:
            self._check()
            return list(self._objects.values())

    def find(self, namespace: str, name: str) -> Object | None:
        """One object; None where the mirror has none. Raises ExecutorUnavailable."""
        with self._lock:
            self._check()
            return self._objects.get((namespace, name))

    def wait(self, timeout_s: float) -> None:
        """Wait for the next change, or for this time."""
        with self._lock:
            self._lock.wait(timeout_s)

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether a full list has been read within this time."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._problem, timeout_s)

    def wait_answer(self, timeout_s: float) -> None:
        """Wait until the API server has answered for the first time, be it with a refusal."""
        with self._lock:
            self._lock.wait_for(lambda: self._problem != _NOT_READ, timeout_s)

    def put(self, one: Object) -> None:
        """Take over an object that this program has just read or written, if it is newer."""
        with self._lock:
            key = _key(one)
            known = self._objects.get(key)
            if known is None or _version(one) >= _version(known):
                self.num_changes += 1
                self._objects[key] = self._trim(one)

    def close(self) -> None:
        """Stop watching; the open stream ends with its client."""
        with self._lock:
            self._closed = True
            self._problem = "closed"
            self._lock.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, after `close` and the end of the connections."""
        self._thread.join(timeout_s)

    # -- the thread --------------------------------------------------------------------------------

    def _is_closed(self) -> bool:
        """Whether another thread has closed it meanwhile."""
        return self._closed

    def _check(self) -> None:
        problem = self._problem
        if not problem and time.monotonic() - self._heard_at > SILENT_S + 20.0:
            problem = "the stream of changes is silent"
        if problem:
            raise ExecutorUnavailable(f"{self._path} of the Kubernetes API: {problem}")

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._closed:
            try:
                if not self._version:
                    self._list()
                self._follow()
                wait_s = _FIRST_WAIT_S
                continue
            except Expired:
                self._version = ""
                continue
            except (ExecutorUnavailable, KubernetesRefused) as error:
                problem = getattr(error, "message", str(error))
            except Exception as error:
                if self._is_closed():
                    return
                _LOG.exception("%s cannot be watched", self._path)
                problem, self._version = f"{type(error).__name__}: {error}", ""
            with self._lock:
                if not self._closed:
                    self._problem = problem
                    self._lock.notify_all()
                    self._lock.wait(wait_s * self._rng.uniform(0.5, 1.0))
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    def _list(self) -> None:
        listed = self._client.list(self._path, self._query, self._trim, self._keep)
        with self._lock:
            # The new list replaces everything: deletions in a gap are in no event.
            self._objects = {_key(one): one for one in listed.items}
            self._version = listed.version
            self.num_lists += 1
            self.num_changes += 1
            self._told()
        self._changed()

    def _follow(self) -> None:
        timeout_s = self._rng.randint(*_WATCH_S)
        with self._client.watch(self._path, self._version, self._query, timeout_s) as events:
            with self._lock:
                self._told()
            for event in events:
                if self._closed:
                    return
                if self._take(event):
                    self._changed()

    def _take(self, event: Mapping[str, Any]) -> bool:
        one: Object = event["object"]
        kind: str = event["type"]
        with self._lock:
            self._version = str(one["metadata"]["resourceVersion"])
            told = kind != "BOOKMARK" and (_key(one) in self._objects or self._keep(one))
            self.num_changes += told
            if kind == "DELETED" or (told and not self._keep(one)):
                self._objects.pop(_key(one), None)
            elif told and kind in ("ADDED", "MODIFIED"):
                one["metadata"].pop("managedFields", None)
                known = self._objects.get(_key(one))
                if known is None or _version(one) >= _version(known):
                    self._objects[_key(one)] = self._trim(one)
            self._told()
        return told

    def _told(self) -> None:
        self._problem, self._heard_at = ("closed" if self._closed else ""), time.monotonic()
        self._lock.notify_all()


def _key(one: Object) -> tuple[str, str]:
    meta = one["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _version(one: Object) -> int:
    """Versions are numbers of one store; others, such as of aggregated servers, count as equal."""
    text = str(one["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
