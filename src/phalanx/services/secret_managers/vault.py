"""HashiCorp Vault and OpenBao as a secret manager: the KV engine of version 2, a token or an AppRole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from phalanx.errors import SecretManagerUnavailable, SecretRefused
from phalanx.kit.text import shorten
from phalanx.launch.tls.trust import client_context

_MAX_BYTES = 4 << 20
_RENEW_AT = 0.8
"""The part of a token's lifetime after which another one is made."""
_AWAY = frozenset({408, 412, 429, 472, 473})
"""Answers below 500 that a later request may not get: limits, a standby, a replica that is behind."""
_REDIRECTS = frozenset({301, 302, 307, 308})


@dataclass(frozen=True, slots=True)
class VaultConfig:
    """The server, the KV engine and the credentials of the control plane."""

    address: str  # URL of the server
    token: Callable[[], str] | None = field(default=None, repr=False)  # None: an AppRole
    role_id: str = ""  # of the AppRole
    secret_id: Callable[[], str] | None = field(
        default=None, repr=False
    )  # None: a role without one
    namespace: str = ""  # of all requests; empty: the root
    mount: str = "secret"  # path of the KV engine
    auth_mount: str = "approle"  # path of the AppRole method
    project_path: str = "phalanx/{project}"  # a project reads below it
    ca: str = ""  # authority of the certificate, in PEM; empty: those of the system
    timeout_s: float = 3.0  # limit on connecting, and on each wait for data


class VaultSource:
    """Reads the newest version of secrets of one server."""

    name = "vault"

    def __init__(self, config: VaultConfig, monotonic: Callable[[], float]) -> None:
        self.project_path = config.project_path
        self._config = config
        self._monotonic = monotonic
        self._login = threading.Lock()
        self._token: tuple[str, float | None] | None = None  # of an AppRole, and its end
        self._http = httpx.Client(
            verify=client_context(config.ca),
            timeout=config.timeout_s,
            # Proxies of the environment are for the internet: these requests carry credentials.
            trust_env=False,
            # A connection that was idle may be closed on the way, which looks like an outage.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def read(self, path: str, keys: Collection[str]) -> Mapping[str, str]:
        """The values of some keys of a secret. Raises SecretManagerUnavailable, SecretRefused."""
        url = f"/v1/{quote(self._config.mount)}/data/{quote(path)}"
        place = f"{self._config.mount}/{path}"
        token, fresh = self._credential()
        status, body = self._ask("GET", url, token)
        if status == 403 and self._config.token is None and not fresh:
            # A token may be revoked before its end.
            token, _ = self._credential(instead_of=token)
            status, body = self._ask("GET", url, token)
        if status == 404:
            gone = isinstance(body.get("data"), Mapping)
            raise SecretRefused(
                f"vault has no secret {place}: "
                + (
                    "its newest version is deleted"
                    if gone
                    else "the path or the KV engine is unknown"
                )
            )
        if status != 200:
            raise SecretRefused(f"vault refuses to read {place}: {_said(status, body)}")
        return _chosen(place, body, keys)

    def _credential(self, instead_of: str | None = None) -> tuple[str, bool]:
        """A token, and whether it was made now. One thread logs in, the others wait for it."""
        if self._config.token is not None:
            return self._config.token(), False
        with self._login:
            if self._token is not None and self._token[0] != instead_of:
                token, until = self._token
                if until is None or self._monotonic() < until:
                    return token, False
            return self._log_in(), True

    def _log_in(self) -> str:
        config = self._config
        given = {"role_id": config.role_id}
        if config.secret_id is not None:
            given["secret_id"] = config.secret_id()
        at = self._monotonic()
        url = f"/v1/auth/{quote(config.auth_mount)}/login"
        status, body = self._ask("POST", url, None, given)
        auth = body.get("auth")
        token = auth.get("client_token") if isinstance(auth, Mapping) else None
        if status != 200 or not isinstance(token, str) or not isinstance(auth, Mapping):
            raise SecretRefused(
                f"vault refuses the login with the AppRole: {_said(status, body)}",
                "check PHALANX__VAULT__ROLE_ID and PHALANX__VAULT__SECRET_ID",
            )
        lease_s = auth.get("lease_duration")
        # A lifetime of 0: the token has no end.
        lives_s = lease_s if isinstance(lease_s, int) else 0
        self._token = (token, at + lives_s * _RENEW_AT if lives_s > 0 else None)
        return token

    def _ask(
        self, method: str, url: str, token: str | None, sent: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        """Status and JSON of one answer. Raises SecretManagerUnavailable; no message has what was read."""
        address = self._config.address.rstrip("/") + url
        headers = {"X-Vault-Request": "true"}
        if token is not None:
            headers["X-Vault-Token"] = token
        if self._config.namespace:
            headers["X-Vault-Namespace"] = self._config.namespace
        status, location, content = self._send(method, address, headers, sent)
        if status in _REDIRECTS:
            # A standby names the active server. The credentials go to no server without TLS.
            if urlsplit(location).scheme != urlsplit(address).scheme:
                raise SecretManagerUnavailable("vault redirects to an address of another scheme")
            status, _, content = self._send(method, location, headers, sent)
        body = _object(content)
        if status in _AWAY or status >= 500 or status in _REDIRECTS:
            raise SecretManagerUnavailable(f"vault is not available: {_said(status, body)}")
        if status == 200 and not body:
            raise SecretManagerUnavailable(f"{self._config.address} does not answer as vault does")
        return status, body

    def _send(
        self, method: str, address: str, headers: Mapping[str, str], sent: Mapping[str, str] | None
    ) -> tuple[int, str, bytes]:
        try:
            with self._http.stream(method, address, headers=dict(headers), json=sent) as answer:
                content = b""
                for part in answer.iter_bytes():
                    content += part
                    if len(content) > _MAX_BYTES:
                        raise SecretManagerUnavailable("an answer of vault is too long")
                return answer.status_code, answer.headers.get("location", ""), content
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = shorten(str(error) or type(error).__name__, 200)
            raise SecretManagerUnavailable(
                f"vault at {self._config.address} does not answer: {why}"
            ) from None


def _chosen(place: str, body: Mapping[str, Any], keys: Collection[str]) -> Mapping[str, str]:
    outer = body.get("data")
    found = outer.get("data") if isinstance(outer, Mapping) else None
    if not isinstance(found, Mapping):
        raise SecretRefused(f"vault: {place} is not in a KV engine of version 2")
    for key in sorted(keys):
        if key not in found:
            raise SecretRefused(f"vault: the secret {place} has no key {key}")
        if not isinstance(found[key], str):
            raise SecretRefused(f"vault: the key {key} of {place} is not a text")
    return {key: found[key] for key in keys}


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        found = httpx.Response(200, content=content).json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(status: int, body: Mapping[str, Any]) -> str:
    """The errors of an answer; they name no value."""
    errors = body.get("errors")
    told = "; ".join(str(one) for one in errors) if isinstance(errors, list) else ""
    return f"{status} {shorten(' '.join(told.split()), 200)}".strip()


def credential_error(said: str) -> SecretManagerUnavailable:
    """The error of a credential in a file that cannot be read; `said` has its path and the reason."""
    return SecretManagerUnavailable(f"the credential of vault in {said}")
