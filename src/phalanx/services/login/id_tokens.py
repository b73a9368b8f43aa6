"""Check ID tokens of an identity provider: signature, issuer, audience, time and nonce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.errors import Unauthenticated

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures with a private key. With HS256 the published key of the provider would be the secret."""
_KEY_TYPES = ("RSA", "EC", "OKP")
LEEWAY_S = 60
"""Tolerance between the clocks of the provider and of this machine."""

Jwk = Mapping[str, Any]


def claims_of(
    text: str,
    keys: Callable[[str | None], Sequence[Jwk]],
    *,
    issuer: str,
    client_id: str,
    nonce: str | None,
    now_s: int,
) -> dict[str, object]:
    """The claims of an ID token that the provider signed for this client and this login.

    `keys` has the published keys, of which one has the given id if there is one. `nonce` None: the flow has
    none. Raises Unauthenticated.
    """
    from authlib.oidc.core import CodeIDToken
    from joserfc import jws, jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        header = jws.extract_compact(text.encode()).headers()
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise _refused("the id of its key is not a text")
        found = [one for one in keys(kid) if _signs(one)]
        decoded = jwt.decode(text, _set_of(KeySet, found, kid), algorithms=ALGORITHMS)
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            options={
                "iss": {"essential": True, "value": issuer},
                "aud": {"essential": True, "value": client_id},
            },
            params={"nonce": nonce, "client_id": client_id},
        )
        claims.validate(now_s, LEEWAY_S)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        # The library's words name the check and quote nothing of the token.
        raise _refused(getattr(error, "error", "") or type(error).__name__) from None
    return dict(claims)


def _signs(key: Jwk) -> bool:
    return key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig"


def _set_of(kind: Any, found: Sequence[Jwk], kid: str | None) -> Any:
    if kid is not None:
        found = [one for one in found if one.get("kid") == kid]
    if len(found) != 1:
        raise _refused("the provider publishes no key with the id of its signature")
    return kind.import_key_set({"keys": [dict(one) for one in found]})


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(f"the answer of the identity provider is not valid: {why}")
