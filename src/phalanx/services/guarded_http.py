"""POST to an address that users or operators gave, without reaching what is behind the control plane.

A name is resolved once, and the connection goes to that very address: a second answer of the name server
changes nothing. Addresses that are not public are refused, redirects are not followed, and no proxy of the
environment is used.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from phalanx.errors import UserError

TIMEOUT_S = 10.0
"""Limit on connecting, on each wait for data, and on reading the answer."""
MOST_BYTES = 64 << 10
"""The most of an answer that is read, unless more is asked for."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]
_SHARED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses inside of IPv6 ones


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and the beginning of the text of an answer."""

    status: int
    text: str
    body: bytes = b""  # of it all that was read


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name. Raises UserError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"the name {host} has no address: {error}") from None
    return [str(one[4][0]) for one in found]


def is_public(address: str) -> bool:
    """Whether an address is of the internet: not private, local, shared, reserved or multicast."""
    try:
        found: _Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is not None:
            return is_public(str(inner))
        if found in _SHARED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast and not found.is_reserved


@dataclass(frozen=True, slots=True)
class GuardedHttp:
    """Sends requests; `allow_private` is the setting that lets them reach every address, without TLS."""

    allow_private: bool
    monotonic: Callable[[], float]
    tls: ssl.SSLContext
    find: Resolve = resolve
    setting: str = "PHALANX__NOTIFY__ALLOW_PRIVATE"  # its variable, for messages
    most_bytes: int = MOST_BYTES  # of an answer

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """The answer to a POST. Raises UserError where there is none, or the address is refused."""
        try:
            target = httpx.URL(url)
            host = target.raw_host.decode("ascii")
        except (httpx.InvalidURL, UnicodeError):
            raise UserError("the URL of the receiver cannot be read") from None
        if target.scheme != "https" and not (self.allow_private and target.scheme == "http"):
            raise UserError("the URL of the receiver does not begin with https://")
        port = target.port or (443 if target.scheme == "https" else 80)
        address = self._address(host.strip("[]"), port)
        plain = target.copy_with(host=address, userinfo=b"")
        named = target.netloc.decode("ascii").rpartition("@")[2]
        return self._send(plain, host.strip("[]"), {**headers, "host": named}, body)

    def _address(self, host: str, port: int) -> str:
        addresses = self.find(host, port)
        refused = [one for one in addresses if not is_public(one)]
        if not addresses:
            raise UserError(f"the name {host} has no address")
        if refused and not self.allow_private:
            raise UserError(
                f"{host} has the address {refused[0]}, which is not a public one",
                f"{self.setting}=true allows such receivers",
            )
        return addresses[0]

    def _send(
        self, url: httpx.URL, host: str, headers: Mapping[str, str], body: bytes
    ) -> HttpAnswer:
        began = self.monotonic()
        try:
            with (
                httpx.Client(
                    verify=self.tls, trust_env=False, follow_redirects=False, timeout=TIMEOUT_S
                ) as client,
                client.stream(
                    "POST",
                    url,
                    headers=dict(headers),
                    content=body,
                    # The certificate must be of the name, although the URL has the address.
                    extensions={"sni_hostname": host},
                ) as answer,
            ):
                found = bytearray()
                for part in answer.iter_raw():
                    found += part
                    if len(found) > self.most_bytes or self.monotonic() - began > TIMEOUT_S:
                        break
                text = found[:200].decode("utf-8", "replace")
                return HttpAnswer(answer.status_code, text, bytes(found))
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise UserError(f"the receiver does not answer: {said}") from None
