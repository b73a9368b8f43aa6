"""Tokens of `phalanx login`, by the address of their control plane, in a file of mode 0600 of the user.

And the way by which a browser brings a code back to this command.
"""

from __future__ import annotations

import hmac
import html
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phalanx.cli.client.invocation import Invocation
from phalanx.errors import PermissionDenied, UserError
from phalanx.launch.files import distrusted, private_folder, write_file
from phalanx.schemas.api.login import BrowserLogin

_MAX_TEXT = 4096


class StoredLogin(BaseModel):
    """The token of one login."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    account: str
    expires_at: datetime
    token: str = Field(repr=False)


class _Logins(BaseModel):
    """The stored file."""

    model_config = ConfigDict(extra="ignore")

    logins: dict[str, StoredLogin] = Field(default_factory=dict)


def file_of(invocation: Invocation) -> Path:
    """The file with the tokens of this user's logins."""
    home = Path(invocation.env.get("HOME", "/"))
    given = Path(invocation.env.get("XDG_CONFIG_HOME", ""))
    base = given if given.is_absolute() else home / ".config"
    return base / "phalanx" / "logins.json"


def find(invocation: Invocation, url: str) -> StoredLogin | None:
    """The login at a control plane, which may have expired. Raises UserError for a damaged file."""
    return _read(file_of(invocation)).logins.get(_key(url))


def store(invocation: Invocation, url: str, login: StoredLogin | None) -> None:
    """Keep the login at a control plane in place of the one before; None: forget it."""
    path = file_of(invocation)
    found = _read(path)
    found.logins.pop(_key(url), None)
    if login is not None:
        found.logins[_key(url)] = login
    try:
        private_folder(path.parent)
        write_file(path, found.model_dump_json().encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> _Logins:
    problem = distrusted(path)
    if problem:
        raise UserError(f"tokens are not read: {problem}", f"remove {path}")
    try:
        return _Logins.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return _Logins()
    except (OSError, ValidationError):
        raise UserError(f"{path} is damaged", f"remove {path} and run `phalanx login`") from None


def _key(url: str) -> str:
    return url.rstrip("/")


class Callback:
    """A server on the loopback interface at which a browser arrives with the code of one login."""

    def __init__(self) -> None:
        self.code = ""
        self.refused = ""
        self.wanted = ""
        callback = self

        class Visitor(BaseHTTPRequestHandler):
            """Answers one browser."""

            def do_GET(self) -> None:
                status, said = callback.take(self.path)
                body = f"<!doctype html><title>Phalanx</title><p>{html.escape(said)}".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing: the path has the code."""

        self._server = HTTPServer(("127.0.0.1", 0), Visitor)

    @property
    def address(self) -> str:
        """Where the browser has to arrive."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/callback"

    def take(self, path: str) -> tuple[int, str]:
        """Note what a browser brings; returns status and text of the answer."""
        parts = urlsplit(path[:_MAX_TEXT])
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        right = hmac.compare_digest(given.get("state", "").encode(), self.wanted.encode())
        if parts.path != "/callback" or not self.wanted or not right:
            return 400, "This is not the end of the login that a command waits for."
        self.code = given.get("code", "")
        if not self.code:
            self.refused = "the identity provider refused it"
            return 400, "The login was refused."
        return 200, "You are logged in. Go back to the terminal."

    def wait(self, begun: BrowserLogin, within_s: float) -> str:
        """The code of a login that has begun; other visitors are sent away.

        Raises PermissionDenied where it is refused, and UserError when the browser does not arrive.
        """
        self.wanted = begun.state
        self._server.timeout = within_s
        arrived = True
        while arrived and not self.code and not self.refused:
            arrived = self._visited()
        if self.refused:
            raise PermissionDenied(f"the login failed: {self.refused}")
        if not self.code:
            raise UserError("no browser has brought the login back in time", "run it again")
        return self.code

    def _visited(self) -> bool:
        """Serve one visitor; returns whether there was one in time."""
        missed = []
        self._server.handle_timeout = lambda: missed.append(True)  # type: ignore[method-assign]
        self._server.handle_request()
        return not missed

    def close(self) -> None:
        """Stop listening."""
        self._server.server_close()


@contextmanager
def callback() -> Iterator[Callback]:
    """A `Callback` that is closed at the end of the context."""
    made = Callback()
    try:
        yield made
    finally:
        made.close()
