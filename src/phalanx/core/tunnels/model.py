"""One tunnel: what it is for, its two directions, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from phalanx.core.tunnels.streams import ByteStream

JOIN_WITHIN_S = 30.0
"""Time in which the supervisor must come."""
SILENT_S = 60.0
"""Time without a request of one side after which the tunnel is over."""
LINGER_S = 30.0
"""Time for which a tunnel that is over can still be read."""
MAX_OF_JOB = 16
MAX_TUNNELS = 256
"""Most tunnels of a job, and of a control plane process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPurpose:
    """What a node does for a tunnel: run a command in the environment of a rank, or reach a port."""

    kind: Literal["exec", "forward"]
    rank: int  # in the gang
    command: tuple[str, ...] = ()
    tty: bool = False
    rows: int = 24
    columns: int = 80
    port: int = 0  # of the node's loopback


@dataclass(slots=True)
class Tunnel:
    """One tunnel; times are those of a monotonic clock in seconds."""

    id: str  # random, in hexadecimal
    owner: str  # the actor that opened it; no other one may use it
    job: int  # number of the job
    attempt: int  # the live one of the job
    node_rank: int  # of the node that it leads to
    purpose: TunnelPurpose  # what the node does
    opened_at: float  # when the client asked for it
    up: ByteStream = field(default_factory=ByteStream)  # from the node to the client
    down: ByteStream = field(default_factory=ByteStream)  # from the client to the node
    client_at: float = 0.0  # last request of the client
    node_at: float | None = None  # last request of the supervisor; None: it has not come yet
    over_at: float | None = None  # None: bytes go through
    why: str = ""  # why it is over

    def __post_init__(self) -> None:
        """Count the opening as the client's first request."""
        self.client_at = self.opened_at

    @property
    def is_over(self) -> bool:
        """Whether nothing more goes through."""
        return self.over_at is not None

    def end(self, now: float, why: str) -> None:
        """End it, unless it is over already."""
        if self.over_at is None:
            self.over_at, self.why = now, why

    def check(self, now: float) -> bool:
        """End it where a side is missing for too long; returns whether it can be forgotten."""
        if self.over_at is not None:
            return now - self.over_at > LINGER_S
        if self.node_at is None:
            if now - self.opened_at > JOIN_WITHIN_S:
                said = f"the supervisor of node rank {self.node_rank} did not come within"
                self.end(now, f"{said} {JOIN_WITHIN_S:.0f} s")
        elif now - self.node_at > SILENT_S:
            self.end(now, f"the supervisor has been silent for {SILENT_S:.0f} s")
        if now - self.client_at > SILENT_S:
            self.end(now, "the client is gone")
        return False
