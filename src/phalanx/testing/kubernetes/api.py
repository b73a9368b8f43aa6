"""A fake API server: real HTTP on loopback, with lists in pages, watches, patches and faults."""

from __future__ import annotations

import bisect
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from phalanx.testing.kubernetes.admission import FakeAdmission
from phalanx.testing.kubernetes.custom import JOBS, CustomKind
from phalanx.testing.kubernetes.objects import CLUSTER_WIDE, ApiError, KubernetesObjects, Object

_BOOKMARK_S = 1.0
_GROUPS = (
    "apps/v1",
    "admissionregistration.k8s.io/v1",
    "resource.k8s.io/v1",
    "kueue.x-k8s.io/v1beta2",
)
"""Groups of the API beside the core, without those of custom resources."""
_GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


class FakeKubernetes:
    """One API server. Faults are attributes: each is on while it is set."""

    def __init__(
        self, token: str = "kube-token", *, store: KubernetesObjects | None = None
    ) -> None:
        self.store = KubernetesObjects() if store is None else store
        self.token = token
        self.away = False  # connections are closed without an answer
        self.busy = 0  # so many requests are answered with 429
        self.silent = False  # watches stay open and tell nothing
        self.denied: dict[tuple[str, str], str] = {}  # message of a 403, by verb and plural
        self.calls: list[tuple[str, str]] = []  # verb and plural of every request
        self.groups: dict[str, tuple[str, ...]] = {}  # plurals of further kinds, by group/version
        self.admission = FakeAdmission()
        self.custom: dict[str, CustomKind] = {JOBS.plural: JOBS}  # by plural
        self.webhook: Callable[[Object], None] | None = None  # changes new pods
        self.lock = threading.Lock()
        self._order: dict[str, tuple[int, list[tuple[tuple[str, str], Object]]]] = {}
        self._server = _serve(self)

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": self.token}}],
        }
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)
        return path

    def add_namespace(self, name: str) -> None:
        """Create a namespace."""
        self.store.create("namespaces", "", {"metadata": {"name": name}})

    def add_custom(self, path: Path) -> None:
        """Install the CustomResourceDefinition of a file."""
        kind = CustomKind.read(path)
        self.custom[kind.plural] = kind

    def close(self) -> None:
        """Stop listening and end all watches."""
        self.away = True
        with self.store.changed:
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # -- requests ----------------------------------------------------------------------------------

    def answer(self, method: str, target: str, data: bytes, kind: str) -> Object:
        """The body of an answer. Raises ApiError."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if (group := self._group(parts.path)) is not None:
            return group
        plural, namespace, name, sub = self._route(parts.path)
        verb = _verb(method, name)
        with self.lock:
            self.calls.append((verb, plural))
            if self.busy:
                self.busy -= 1
                raise ApiError(429, "TooManyRequests", "try again later")
            if (verb, plural) in self.denied:
                raise ApiError(403, "Forbidden", self.denied[verb, plural])
        body = json.loads(data) if data else {}
        if verb == "list":
            return self._list(plural, namespace, query)
        if verb == "get":
            return self.store.get(plural, namespace, name)
        if verb == "delete":
            return self.store.delete(plural, namespace, name, body)
        if verb == "patch":
            return self._patch((plural, namespace, name, sub), body, kind)
        if verb == "update":
            return self._update((plural, namespace, name, sub), body)
        if sub == "binding":
            return self._bind(namespace, name, body)
        return self._create(plural, namespace, body, query)

    def _create(self, plural: str, namespace: str, body: Object, query: dict[str, str]) -> Object:
        with self.store.changed:
            if plural == "pods":
                if self.webhook is not None:
                    self.webhook(body)
                if body["spec"].get("schedulingGates"):
                    body["status"] = {"conditions": [_GATED]}
                self.admission.check(self.store, namespace, body)
            if query.get("dryRun") == "All":
                return self.store.tried(plural, namespace, body)
            if plural in self.custom:
                body = self.custom[plural].created(body)
            return self.store.create(plural, namespace, body)

    def _update(self, path: tuple[str, str, str, str], body: Object) -> Object:
        plural, namespace, name, sub = path
        kind = self.custom.get(plural)
        with self.store.changed:
            if kind is not None:
                body = kind.updated(self.store.get(plural, namespace, name), body, sub)
            return self.store.update(plural, namespace, name, body)

    def _bind(self, namespace: str, name: str, body: Object) -> Object:
        with self.store.changed:
            pod = self.store.get("pods", namespace, name)
            if pod["spec"].get("nodeName"):
                raise ApiError(409, "Conflict", f"pod {name} is already assigned to a node")
            pod["spec"]["nodeName"] = body["target"]["name"]
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
            return self.store.update("pods", namespace, name, pod)

    def _patch(self, path: tuple[str, str, str, str], body: Any, kind: str) -> Object:
        plural, namespace, name, sub = path
        with self.store.changed:
            one = self.store.get(plural, namespace, name)
            uid = one["metadata"]["uid"]
            if kind == "application/json-patch+json":
                for step in body:
                    _json_patch(one, step)
            elif sub == "status":
                one["status"] = _merged(one.get("status") or {}, body.get("status") or {})
            else:
                one = _merged(one, body)
            if one["metadata"]["uid"] != uid:
                raise ApiError(409, "Conflict", f"the uid is {uid}")
            return self._update(path, one)

    def _list(self, plural: str, namespace: str, query: dict[str, str]) -> Object:
        with self.store.changed:
            version, after = str(self.store.version), ""
            if query.get("continue"):
                version, _, after = query["continue"].partition(":")
                if int(version) < self.store.oldest:
                    raise ApiError(410, "Expired", "the continue token is too old")
            found = self._ordered(plural)
            if namespace or query.keys() & {"labelSelector", "fieldSelector"}:
                found = [one for one in found if _matches(one[1], namespace, query)]
        if after:
            found = found[bisect.bisect_right(found, after, key=lambda one: "/".join(one[0])) :]
        limit = int(query.get("limit", 0)) or len(found)
        meta = {"resourceVersion": version}
        if len(found) > limit:
            meta["continue"] = f"{version}:{'/'.join(found[limit - 1][0])}"
        # Stored objects are replaced, never changed.
        items = [one for _, one in found[:limit]]
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}

    def _ordered(self, plural: str) -> list[tuple[tuple[str, str], Object]]:
        """The objects of a collection by namespace and name; pages of one list share it."""
        version, known = self._order.get(plural, (-1, []))
        if version != self.store.version:
            known = sorted(
                ((key[1:], one) for key, one in self.store.objects.items() if key[0] == plural),
                key=lambda one: "/".join(one[0]),
            )
            self._order[plural] = (self.store.version, known)
        return known

    def _group(self, path: str) -> Object | None:
        """The resources of a group of the API, where a path asks for them."""
        words = [one for one in path.split("/") if one]
        if len(words) != 3 or words[0] != "apis":
            return None
        name = "/".join(words[1:])
        known = [
            {"name": one.plural, "kind": one.kind}
            for one in self.custom.values()
            if [one.group, one.version] == words[1:]
        ]
        known += [{"name": one} for one in self.groups.get(name, ())]
        if not known and name not in _GROUPS:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return {"kind": "APIResourceList", "groupVersion": name, "resources": known}

    def _route(self, path: str) -> tuple[str, str, str, str]:
        """Plural, namespace, name and subresource of a path. Raises ApiError."""
        words = [one for one in path.split("/") if one]
        group = "/".join(words[1:3])
        if words[:2] == ["api", "v1"]:
            words = words[2:]
        elif words[:1] == ["apis"] and (group in _GROUPS or self._group(f"/apis/{group}")):
            words = words[3:]
        else:
            raise ApiError(404, "NotFound", f"there is no {path}")
        namespace = ""
        if len(words) > 2 and words[0] == "namespaces":
            namespace, words = words[1], words[2:]
        words += [""] * (3 - len(words))
        return words[0], "" if words[0] in CLUSTER_WIDE else namespace, words[1], words[2]

    def watch(self, target: str) -> Iterator[Object]:
        """The events of a watch, until its time is over."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        plural, namespace, _, _ = self._route(parts.path)
        until = time.monotonic() + float(query.get("timeoutSeconds", 300))
        seen = int(query["resourceVersion"])
        told_at = time.monotonic()
        while time.monotonic() < until and not self.away:
            with self.store.changed:
                if seen < self.store.oldest:
                    gone = ApiError(410, "Expired", "too old resource version")
                    yield {"type": "ERROR", "object": gone.body}
                    return
                fresh = [one for one in self.store.history if one.version > seen]
                version = self.store.version
                if not fresh or self.silent:
                    self.store.changed.wait(0.1)
            if self.silent:
                continue
            for change in fresh:
                if change.plural == plural and _matches(change.body, namespace, query):
                    yield {"type": change.kind, "object": change.body}
            seen = version
            if fresh or time.monotonic() - told_at > _BOOKMARK_S:
                told_at = time.monotonic()
                yield {
                    "type": "BOOKMARK",
                    "object": {"metadata": {"resourceVersion": str(version), "name": ""}},
                }


def _verb(method: str, name: str) -> str:
    if method == "GET":
        return "get" if name else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]


def _matches(one: Object, namespace: str, query: dict[str, str]) -> bool:
    meta = one["metadata"]
    if namespace and meta.get("namespace") != namespace:
        return False
    labels = meta.get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, negated, value = term.partition("!=")
        if not negated:
            path, _, value = term.partition("=")
        found: Any = one
        for word in path.split("."):
            found = (found or {}).get(word, "")
        if (str(found) == value) == bool(negated):
            return False
    return True


def _merged(one: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    found = dict(one) if isinstance(one, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


def _json_patch(one: Object, step: Object) -> None:
    *above, last = [word for word in step["path"].split("/") if word]
    place: Any = one
    for word in above:
        place = place[int(word)] if isinstance(place, list) else place.get(word, {})
    index = int(last) if isinstance(place, list) else last
    try:
        found = place[index]
    except (KeyError, IndexError):
        found = None
    if step["op"] == "test":
        if found != step["value"]:
            raise ApiError(422, "Invalid", f"{step['path']} is not {step['value']}")
    elif step["op"] == "remove":
        if found is None:
            raise ApiError(422, "Invalid", f"there is no {step['path']}")
        del place[index]
    else:
        place[index] = step["value"]


def _serve(api: FakeKubernetes) -> ThreadingHTTPServer:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _do(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if api.away:
                self.close_connection = True
                return
            if self.headers.get("Authorization") != f"Bearer {api.token}":
                self._send(ApiError(401, "Unauthorized", "Unauthorized").body, 401)
                return
            if "watch=true" in self.path:
                self._stream()
                return
            try:
                kind = self.headers.get("Content-Type", "")
                self._send(api.answer(self.command, self.path, data, kind), 200)
            except ApiError as error:
                self._send(error.body, error.code)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                for event in api.watch(self.path):
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                if not api.away:
                    self.wfile.write(b"0\r\n\r\n")

        def _send(self, body: Object, status: int) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing: tests end clients during a call."""

    server = Server(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
