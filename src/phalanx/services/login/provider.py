"""The identity provider: its discovery document, its keys, and its answers to requests of this client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus as quote
from urllib.parse import urlsplit

import httpx

from phalanx.core.tenancy.identities import ClaimNames
from phalanx.errors import PermissionDenied, ServerError, ServerUnavailable, Unauthenticated
from phalanx.kit.text import shorten
from phalanx.services.login.id_tokens import Jwk, claims_of

LOOPBACK = frozenset({"127.0.0.1", "::1"})
"""Hosts that are reached without TLS: nothing leaves this machine."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
_KEPT_S = 3600.0
_KEYS_AGAIN_S = 60.0
"""Unknown ids of keys make this process ask for the keys at most this often."""
_REDIRECT_METHOD = "S256"


@dataclass(frozen=True, slots=True)
class LoginConfig:
    """The provider and this client of it."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)  # None: a public client
    provider_name: str = "the identity provider"
    scopes: Sequence[str] = ("openid", "profile")
    claims: ClaimNames = ClaimNames()
    token_s: float = 12 * 3600.0  # lifetime of a token of Phalanx


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the discovery document; an empty one: the provider has none."""

    authorization: str
    token: str
    keys: str
    device: str


class IdentityProvider:
    """Asks one provider. Threads share it; two may ask for the same document, which harms nothing."""

    def __init__(self, config: LoginConfig, monotonic: Callable[[], float]) -> None:
        self.config = config
        self._monotonic = monotonic
        self._endpoints: tuple[float, Endpoints] | None = None
        self._keys: tuple[float, Sequence[Jwk]] | None = None

    def endpoints(self) -> Endpoints:
        """The addresses of the provider, asked for once an hour. Raises ServerUnavailable, ServerError."""
        if self._endpoints is None or self._monotonic() - self._endpoints[0] > _KEPT_S:
            found = self._discover()
            self._endpoints = (self._monotonic(), found)
        return self._endpoints[1]

    def _discover(self) -> Endpoints:
        issuer = self.config.issuer
        status, said = self._ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if status != 200:
            raise ServerUnavailable(f"the identity provider at {issuer} has no discovery document")
        if said.get("issuer") != issuer:
            raise ServerError(
                f"the discovery document at {issuer} is that of another issuer",
                "PHALANX__LOGIN__ISSUER must be exactly what the document names, also a slash at its end",
            )
        wanted = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        missing = [one for one in wanted if not said.get(one)]
        if missing:
            raise ServerError(f"the discovery document at {issuer} has no {', '.join(missing)}")
        names = (*wanted, "device_authorization_endpoint")
        found = Endpoints(*(str(said.get(one) or "") for one in names))
        for address in (found.authorization, found.token, found.keys, found.device):
            if address and not is_protected(address, local=is_local(issuer)):
                raise ServerError(
                    f"the identity provider at {issuer} names an address without https"
                )
        return found

    def start_device(self) -> dict[str, Any]:
        """Begin a login on another device. Raises PermissionDenied where the provider refuses it."""
        address = self.endpoints().device
        if not address:
            raise PermissionDenied(
                f"{self.config.provider_name} offers no login by a code",
                "run `phalanx login --browser`",
            )
        status, said = self._ask(address, {"scope": " ".join(self.config.scopes)})
        if status != 200:
            raise _refused(said)
        return said

    def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """The page of the provider that a browser is sent to."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        return str(
            prepare_grant_uri(
                self.endpoints().authorization,
                self.config.client_id,
                "code",
                redirect_uri=redirect_uri,
                scope=list(self.config.scopes),
                state=state,
                nonce=nonce,
                code_challenge=create_s256_code_challenge(verifier),
                code_challenge_method=_REDIRECT_METHOD,
            )
        )

    def redeem(self, form: Mapping[str, str]) -> dict[str, Any]:
        """The answer of the token endpoint, with an ID token or with an `error`."""
        status, said = self._ask(self.endpoints().token, form)
        if status == 200 and isinstance(said.get("id_token"), str):
            return said
        if isinstance(said.get("error"), str):
            return said
        raise _refused(said)

    def claims(self, id_token: str, nonce: str | None, now_s: int) -> dict[str, object]:
        """The claims of a valid ID token. Raises Unauthenticated."""
        return claims_of(
            id_token,
            self._published,
            issuer=self.config.issuer,
            client_id=self.config.client_id,
            nonce=nonce,
            now_s=now_s,
        )

    def _published(self, kid: str | None) -> Sequence[Jwk]:
        """The keys of the provider; asked for again where none has the id, as after a rotation."""
        now = self._monotonic()
        if self._keys is not None and now - self._keys[0] <= _KEPT_S:
            asked_at, known = self._keys
            is_known = kid is None or any(one.get("kid") == kid for one in known)
            if is_known or now - asked_at < _KEYS_AGAIN_S:
                return known
        status, said = self._ask(self.endpoints().keys)
        found = said.get("keys")
        if status != 200 or not isinstance(found, list):
            raise ServerUnavailable("the identity provider publishes no keys", "try again")
        keys = [one for one in found if isinstance(one, dict)]
        self._keys = (now, keys)
        return keys

    def _ask(
        self, address: str, form: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of an answer. Redirects are not followed."""
        config, auth, sent = self.config, None, None
        if form is not None:
            sent = {**form, "client_id": config.client_id}
            if config.client_secret is not None:
                auth = httpx.BasicAuth(quote(config.client_id), quote(config.client_secret))
        try:
            with (
                httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False) as http,
                http.stream(
                    "GET" if sent is None else "POST",
                    address,
                    data=sent,
                    auth=auth,
                    headers={"Accept": "application/json"},
                ) as answer,
            ):
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > _MAX_BYTES:
                        raise ServerUnavailable("an answer of the identity provider is too long")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerUnavailable(
                f"the identity provider does not answer: {shorten(str(error))}", "try again"
            ) from None
        return answer.status_code, _object(answer, body)


def is_local(address: str) -> bool:
    """Whether an address is one of this machine."""
    return urlsplit(address).hostname in LOOPBACK


def is_protected(address: str, *, local: bool) -> bool:
    """Whether an address has TLS; one of this machine needs none if that is permitted."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (local and parts.scheme == "http" and is_local(address))


def _object(answer: httpx.Response, body: bytes) -> dict[str, Any]:
    try:
        found = httpx.Response(answer.status_code, content=body).json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServerUnavailable(
            f"the identity provider answers {answer.status_code} without a JSON object", "try again"
        )
    return found


def _refused(said: Mapping[str, Any]) -> Unauthenticated:
    why = shorten(str(said.get("error") or "it gives no reason"), 100)
    return Unauthenticated(f"the identity provider refuses the login: {why}")
