"""Connections to a control plane with a pinned authority, and plain words for failed handshakes.

The pinned authority is text in PEM: with it, no other authority is accepted. Without it, those of the
system are. The name and the dates of a certificate are always checked.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from phalanx.errors import UserError
from phalanx.kit.interpreter import AUTHORITIES, tree_root

MAX_CA_BYTES = 256 << 10
"""The longest file of authorities."""
# Where distributions keep the authorities that they and their administrators accept.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_EXPIRED, _NOT_YET = 10, 9
_NAMES = (62, 64)  # another host name, another address
_UNKNOWN = (18, 19, 20, 21)  # self-signed, or signed by an authority that is not accepted
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE")


def read_ca(path: Path) -> str:
    """The authorities in a PEM file, after a check that there are some. Raises UserError."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_CA_BYTES + 1).decode("ascii")
        if len(text) > MAX_CA_BYTES:
            raise UserError(f"{path}: is longer than {MAX_CA_BYTES} bytes")
        client_context(text)
    except OSError as error:
        if isinstance(error, ssl.SSLError):
            raise UserError(f"{path}: is not a certificate in PEM") from None
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # UnicodeDecodeError is one, too
        raise UserError(f"{path}: is not a certificate in PEM") from None
    return text


def client_context(ca: str = "") -> ssl.SSLContext:
    """What a client accepts: the given authorities alone, or those of the system. Raises ssl.SSLError."""
    if not ca:
        return _of_system(tree_root(), ssl.get_default_verify_paths())
    if "-----BEGIN CERTIFICATE-----" not in ca:
        raise ssl.SSLError("no certificate in PEM")
    context = ssl.create_default_context(cadata=ca)
    # A certificate that is pinned itself is an authority, also when another one signed it.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _of_system(
    tree: Path | None, paths: ssl.DefaultVerifyPaths, bundles: Iterable[str] = _BUNDLES
) -> ssl.SSLContext:
    """The authorities of the file system; those of a tree where the file system has none.

    OpenSSL of a tree looks where the system that the tree was built on has them.
    """
    if tree is None or paths.cafile:
        return ssl.create_default_context()
    found = next((one for one in bundles if Path(one).is_file()), str(tree / AUTHORITIES))
    return ssl.create_default_context(cafile=found)


def connection(
    url: str, ca: str = "", timeout_s: float | None = None
) -> http.client.HTTPConnection:
    """A connection, not opened yet, to the host of a URL; encrypted where that is an https URL."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    return http.client.HTTPSConnection(
        host, parts.port, timeout=timeout_s, context=client_context(ca)
    )


def refusal(error: BaseException, url: str) -> tuple[str, str] | None:
    """Why a handshake failed, and what to do; None for an error that is not about TLS."""
    for one in _chain(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return _of_certificate(one, url)
        if isinstance(one, ssl.SSLError):
            if one.reason in _NOT_TLS:
                return f"the server at {url} does not use TLS", "use an http URL, or `up --tls`"
            return f"no TLS connection to {url}: {one.reason or one}", "check what listens there"
    return None


def told(error: BaseException, url: str) -> str:
    """An error in one line, in plain words where it is about TLS."""
    found = refusal(error, url)
    return str(error) if found is None else f"{found[0]}: {found[1]}"


def _of_certificate(error: ssl.SSLCertVerificationError, url: str) -> tuple[str, str]:
    code, host = error.verify_code, urlsplit(url).hostname
    if code == _EXPIRED:
        return f"the certificate of {url} has expired", "renew it, and check the clock"
    if code == _NOT_YET:
        return f"the certificate of {url} is not valid yet", "check the clocks of both machines"
    if code in _NAMES:
        return (
            f"the certificate of {url} is not for {host}",
            "use a name that it has, or add this one to PHALANX__API__ALLOWED_HOSTS of the server",
        )
    if code in _UNKNOWN:
        return (
            f"the certificate of {url} is not from the accepted authority",
            "give the server's authority with --ca-file; if that was given before, another machine may "
            "answer in its place",
        )
    return f"the certificate of {url} is refused: {error.verify_message}", "check the certificate"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
