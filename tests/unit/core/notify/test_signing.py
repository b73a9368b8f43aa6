"""Signatures of webhooks, against the example of Standard Webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from phalanx.core.notify.signing import key_of, signature, signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT_S = 1_614_265_330
BODY = b'{"test": 2432232314}'
KNOWN = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_published_example_has_its_signature() -> None:
    assert signature(key_of(SECRET), ID, AT_S, BODY) == KNOWN


def test_headers_have_one_signature_for_each_key() -> None:
    other = base64.b64encode(b"k" * 24).decode()
    found = signed_headers([key_of(SECRET), key_of(other)], ID, AT_S, BODY)
    assert (found["webhook-id"], found["webhook-timestamp"]) == (ID, str(AT_S))
    first, second = found["webhook-signature"].split(" ")
    assert first == KNOWN
    made = hmac.new(b"k" * 24, f"{ID}.{AT_S}.".encode() + BODY, hashlib.sha256).digest()
    assert second == "v1," + base64.b64encode(made).decode()


def test_without_keys_there_is_no_signature() -> None:
    assert "webhook-signature" not in signed_headers([], ID, AT_S, BODY)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("whsec_!", "base64"),
        ("", "0 bytes"),
        ("whsec_QUJD", "3 bytes"),
        ("whsec_" + "A" * 120, "90"),
    ],
)
def test_secrets_that_cannot_be_keys_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        key_of(text)
