"""A login that has begun, as a text that its client carries and cannot read or change.

So that no replica keeps it in memory, and no database has a code of the identity provider.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from dataclasses import asdict, dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from phalanx.errors import Unauthenticated

MAX_SEALED = 8192
"""Characters of a sealed login; a code of a provider may be long."""
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login that waits for its user."""

    id: str  # random; a login ends once
    kind: str  # flows.DEVICE, BROWSER or PAGES
    expires_at: int  # µs UTC
    device_code: str = field(default="", repr=False)  # of the device flow
    state: str = field(default="", repr=False)  # what the browser has to bring back
    nonce: str = field(default="", repr=False)  # what the signed answer has to contain
    verifier: str = field(default="", repr=False)  # of PKCE (RFC 7636)
    redirect_uri: str = ""  # where the browser comes back


def seal(signing_key: bytes, login: PendingLogin) -> str:
    """Encrypt and authenticate a login for its client."""
    nonce = os.urandom(_NONCE_BYTES)
    text = json.dumps(asdict(login)).encode()
    sealed = AESGCM(_key(signing_key)).encrypt(nonce, text, login.kind.encode())
    return base64.urlsafe_b64encode(nonce + sealed).decode()


def unseal(signing_key: bytes, text: str, kind: str, now: int) -> PendingLogin:
    """A login of a kind that this platform has begun. Raises Unauthenticated."""
    try:
        raw = base64.b64decode(text.encode(), b"-_", validate=True)
        plain = AESGCM(_key(signing_key)).decrypt(
            raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], kind.encode()
        )
    except (InvalidTag, ValueError, binascii.Error):
        raise Unauthenticated("this login was not begun here", _AGAIN) from None
    login = PendingLogin(**json.loads(plain))
    if login.expires_at <= now:
        raise Unauthenticated("this login has expired", _AGAIN)
    return login


_AGAIN = "run `phalanx login` again"


def _key(signing_key: bytes) -> bytes:
    return hmac.new(signing_key, b"phalanx login", hashlib.sha256).digest()
