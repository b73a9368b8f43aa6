"""A small HashiCorp Vault on the loopback interface: real HTTP, the KV engine of version 2, and AppRoles.

It answers as the documented API does, down to the bodies of errors, and can be sealed, slow or a standby.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ROOT_TOKEN = "hvs.root-of-the-fake"
ROLE, SECRET_ID = "role-of-phalanx", "secret-id-of-phalanx"


@dataclass
class FakeSecretServer:
    """The state of one server. Tests change its fields."""

    url: str = ""
    #: versions by namespace, mount and path; None: a deleted version
    stored: dict[tuple[str, str, str], list[dict[str, Any] | None]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=lambda: {ROOT_TOKEN})
    allowed: tuple[str, ...] = ("",)  # beginnings of paths that tokens may read
    lease_s: int = 3600
    sealed: bool = False
    status: int | None = None  # every answer has it
    body: bytes | None = None  # and this body
    active: str | None = None  # this one is a standby of the server with that URL
    logins: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)  # methods and paths

    def put(self, path: str, *, namespace: str = "", mount: str = "secret", **values: Any) -> None:
        """Store a new version."""
        self.stored.setdefault((namespace, mount, path), []).append(dict(values))

    def delete(self, path: str) -> None:
        """Delete the newest version."""
        self.stored["", "secret", path][-1] = None

    def answer(self, method: str, path: str, headers: Any, sent: bytes) -> tuple[int, Any]:
        """Status and JSON of one request."""
        self.asked.append((method, path))
        if self.sealed:
            return 503, {"errors": ["Vault is sealed"]}
        if self.status is not None:
            return self.status, {"errors": ["told by the test"]}
        namespace = headers.get("X-Vault-Namespace", "").strip("/")
        if method == "POST" and path.startswith("/v1/auth/") and path.endswith("/login"):
            return self._login(json.loads(sent))
        if headers.get("X-Vault-Token") not in self.tokens:
            return 403, {
                "errors": ["2 errors occurred:\n\t* permission denied\n\t* invalid token\n\n"]
            }
        mount, _, rest = path.removeprefix("/v1/").partition("/data/")
        if method != "GET" or not rest:
            return 404, {"errors": []}
        if not rest.startswith(self.allowed):
            return 403, {"errors": ["1 error occurred:\n\t* permission denied\n\n"]}
        versions = self.stored.get((namespace, mount, rest))
        if not versions:
            return 404, {"errors": []}
        metadata = {
            "created_time": "2026-01-01T00:00:00Z",
            "custom_metadata": None,
            "deletion_time": "" if versions[-1] is not None else "2026-01-02T00:00:00Z",
            "destroyed": False,
            "version": len(versions),
        }
        found = _wrapped({"data": versions[-1], "metadata": metadata})
        return (200 if versions[-1] is not None else 404), found

    def _login(self, given: dict[str, str]) -> tuple[int, Any]:
        if (given.get("role_id"), given.get("secret_id")) != (ROLE, SECRET_ID):
            return 400, {"errors": ["invalid role or secret ID"]}
        self.logins += 1
        token = f"hvs.of-login-{self.logins}"
        self.tokens.add(token)
        auth = {
            "client_token": token,
            "accessor": "a",
            "policies": ["default"],
            "token_policies": ["default"],
            "metadata": {"role_name": "phalanx"},
            "lease_duration": self.lease_s,
            "renewable": True,
            "entity_id": "e",
            "token_type": "service",
            "orphan": True,
        }
        return 200, _wrapped(None) | {"auth": auth}


def _wrapped(data: Any) -> dict[str, Any]:
    return {
        "request_id": "r",
        "lease_id": "",
        "renewable": False,
        "lease_duration": 0,
        "data": data,
        "wrap_info": None,
        "warnings": None,
        "auth": None,
    }


@contextmanager
def secret_server(tls: ssl.SSLContext | None = None) -> Iterator[FakeSecretServer]:
    """A running server; `tls`: with a certificate."""
    state = FakeSecretServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body, location = 307, None, state.active
            if state.active is None:
                status, body = state.answer(self.command, self.path, self.headers, sent)
            data = b"" if body is None else json.dumps(body).encode()
            data = data if state.body is None else state.body
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location + self.path)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that leaves early is no error here."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
