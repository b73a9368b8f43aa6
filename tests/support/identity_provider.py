"""A small OpenID Connect provider on the loopback interface: real HTTP, real keys, ways to misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "phalanx-of-tests", "the-secret-of-the-client"
_MADE: list[RSAKey] = []


def rsa_key(index: int) -> RSAKey:
    """A key with an id of its own; made once a process, as that takes a while."""
    while len(_MADE) <= index:
        _MADE.append(RSAKey.generate_key(2048, {"kid": f"key-{len(_MADE)}", "use": "sig"}))
    return _MADE[index]


@dataclass
class Grant:
    """A code that was given out."""

    user: dict[str, Any] | None = None  # its claims, once the user has confirmed
    denied: bool = False
    nonce: str | None = None
    challenge: str | None = None
    redirect_uri: str | None = None
    used: bool = False


@dataclass
class LocalProvider:
    """The state of one provider. Tests change its fields."""

    url: str
    now_s: Callable[[], float]
    user: dict[str, Any] = field(default_factory=dict)  # the browser's user
    keys: list[RSAKey] = field(default_factory=lambda: [rsa_key(0)])
    grants: dict[str, Grant] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # paths, in order
    document: dict[str, Any] = field(default_factory=dict)  # changes of the discovery document
    claims: dict[str, Any] = field(default_factory=dict)  # changes of ID tokens; None: left out
    sign: Callable[[dict[str, Any]], str] | None = None  # another signature
    replays: bool = False  # codes count again
    slow: bool = False  # the next poll is told to slow down

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "device_authorization_endpoint": f"{self.url}/device",
        } | self.document

    def confirm(self, user_code: str, denied: bool = False, **user: Any) -> None:
        """What the user does at the page of the provider."""
        grant = self.grants[f"device-{user_code}"]
        grant.user, grant.denied = user, denied

    def browse(self, url: str) -> str:
        """What a browser does with the page of the provider; returns where it is sent."""
        given = {name: one[0] for name, one in parse_qs(urlsplit(url).query).items()}
        assert given["client_id"] == CLIENT and given["response_type"] == "code"
        assert given["code_challenge_method"] == "S256"
        code = f"code-{len(self.grants)}"
        self.grants[code] = Grant(
            self.user,
            nonce=given["nonce"],
            challenge=given["code_challenge"],
            redirect_uri=given["redirect_uri"],
        )
        return f"{given['redirect_uri']}?{urlencode({'code': code, 'state': given['state']})}"

    def id_token(self, grant: Grant) -> str:
        now = int(self.now_s())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            **(grant.user or {}),
        }
        if grant.nonce is not None:
            claims["nonce"] = grant.nonce
        claims |= self.claims
        claims = {name: one for name, one in claims.items() if one is not None}
        if self.sign is not None:
            return self.sign(claims)
        key = self.keys[-1]
        return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)

    def answer(self, path: str, form: dict[str, str], client: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            return 200, self.discovery()
        if path == "/keys":
            return 200, {"keys": [one.as_dict(private=False) for one in self.keys]}
        if client != f"{CLIENT}:{SECRET}":
            return 401, {"error": "invalid_client"}
        if path == "/device":
            user_code = f"ABCD-{len(self.grants)}"
            self.grants[f"device-{user_code}"] = Grant()
            shown = {"user_code": user_code, "verification_uri": f"{self.url}/enter"}
            rest = {"device_code": f"device-{user_code}", "expires_in": 600, "interval": 1}
            return 200, shown | rest
        return self._redeem(form)

    def _redeem(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        grant = self.grants.get(form.get("code") or form.get("device_code") or "")
        if grant is None or (grant.used and not self.replays):
            return 400, {"error": "invalid_grant"}
        if grant.denied:
            return 400, {"error": "access_denied"}
        if grant.user is None:
            said, self.slow = "slow_down" if self.slow else "authorization_pending", False
            return 400, {"error": said}
        if grant.challenge is not None:
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            right = base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == grant.challenge
            if not right or form.get("redirect_uri") != grant.redirect_uri:
                return 400, {"error": "invalid_grant"}
        grant.used = True
        return 200, {"id_token": self.id_token(grant), "access_token": "access-of-the-provider"}


@contextmanager
def local_provider(now_s: Callable[[], float]) -> Iterator[LocalProvider]:
    """A provider that answers until the end of the context."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.reply({name: one[0] for name, one in parse_qs(body).items()})

        def reply(self, form: dict[str, str]) -> None:
            basic = self.headers.get("Authorization", "").removeprefix("Basic ")
            client = base64.b64decode(basic).decode()
            status, said = provider.answer(urlsplit(self.path).path, form, client)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = LocalProvider(f"http://127.0.0.1:{server.server_address[1]}", now_s)
    serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield provider
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
