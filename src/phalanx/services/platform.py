"""What every service may use."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.executors.protocol import Executor
from phalanx.schemas.home import HomeLayout
from phalanx.store.database import Store


@dataclass(frozen=True, slots=True)
class Platform:
    """The store, the executor, and the few facts that do not change while a control plane lives.

    `base_env` is what ranks of `submit` jobs start from. `signing_key` makes the supervisors' tokens:
    the same one for the same attempt, so that a launch that is repeated after a crash fits the
    supervisor that was started before it.
    """

    store: Store
    executor: Executor
    home: HomeLayout
    server_url: str
    signing_key: bytes
    base_env: Mapping[str, str] = field(default_factory=dict)
    contact_lost_after_s: float = 480.0

    def supervisor_token(self, job: int, attempt: int) -> str:
        """The secret by which the supervisors of one attempt are known."""
        text = f"supervisor/{job}/{attempt}".encode()
        return hmac.new(self.signing_key, text, hashlib.sha256).hexdigest()


def token_hash(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
