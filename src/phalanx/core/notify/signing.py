"""Webhooks as Standard Webhooks describes them: signatures, and the times of the tries."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

_S = 1_000_000
PREFIX = "whsec_"
RETRY_AFTER_S: tuple[int, ...] = (5, 300, 1800, 7200, 28_800, 86_400)
"""The pauses between tries. After the last one a message is dead."""
JITTER = 0.2
"""A pause is this part longer at most, so that receivers that come back are not flooded."""
_LEAST_KEY, _MOST_KEY = 24, 64


def key_of(secret: str) -> bytes:
    """The key of a secret such as `whsec_MfKQ…`: 24 to 64 bytes in base64. Raises ValueError."""
    try:
        found = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not whsec_ with base64 behind it") from None
    if not _LEAST_KEY <= len(found) <= _MOST_KEY:
        raise ValueError(f"has {len(found)} bytes: {_LEAST_KEY} to {_MOST_KEY} are needed")
    return found


def signature(key: bytes, id: str, at_s: int, body: bytes) -> str:
    """The signature of one key."""
    signed = f"{id}.{at_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def signed_headers(keys: Sequence[bytes], id: str, at_s: int, body: bytes) -> Mapping[str, str]:
    """The headers of a message, with one signature for each key: two while keys are changed."""
    signatures = " ".join(signature(key, id, at_s, body) for key in keys)
    headers = {"webhook-id": id, "webhook-timestamp": str(at_s)}
    return headers | ({"webhook-signature": signatures} if keys else {})


def next_try(num_tries: int, now: int, random: float) -> int | None:
    """When to try again after so many tries; None: never. `random` is from 0 to 1."""
    if num_tries > len(RETRY_AFTER_S):
        return None
    pause_s = RETRY_AFTER_S[num_tries - 1]
    return now + round(pause_s * (1.0 + JITTER * random) * _S)
