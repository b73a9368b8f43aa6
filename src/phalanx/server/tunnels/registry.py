"""The tunnels of this process. They live in memory: one that ends with the process ends for both sides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.tunnels.model import MAX_OF_JOB, MAX_TUNNELS, Tunnel, TunnelPurpose
from phalanx.core.tunnels.streams import ByteStream, Misplaced
from phalanx.errors import Conflict, NotFound, TooManyRequests
from phalanx.kit.text import job_label, random_hex

_ID_DIGITS = 32
ELSEWHERE = "this process has no such tunnel"


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The supervisor of one node."""

    job: int
    attempt: int
    node_rank: int


@dataclass(frozen=True, slots=True)
class Transferred:
    """The outcome of one transfer: a position, bytes that were read, and whether the tunnel is over."""

    at: int
    data: bytes
    over: bool
    why: str


def topic_of(tunnel: str) -> str:
    """The topic that is published when bytes of a tunnel arrive or are confirmed."""
    return f"tunnel:{tunnel}"


class TunnelRegistry:
    """All tunnels of this process. Safe for several threads."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._tunnels: dict[str, Tunnel] = {}

    def open(self, key: NodeKey, owner: str, purpose: TunnelPurpose) -> Tunnel:
        """Add a tunnel that its supervisor has not joined yet. Raises TooManyRequests."""
        with self._lock:
            now = self._sweep()
            live = [one for one in self._tunnels.values() if not one.is_over]
            if len(live) >= MAX_TUNNELS or sum(one.job == key.job for one in live) >= MAX_OF_JOB:
                raise TooManyRequests(
                    f"{job_label(key.job)} has as many open commands and forwarded ports as it may",
                    "close one, or try again later",
                )
            made = Tunnel(
                id=random_hex(_ID_DIGITS),
                owner=owner,
                job=key.job,
                attempt=key.attempt,
                node_rank=key.node_rank,
                purpose=purpose,
                opened_at=now,
            )
            self._tunnels[made.id] = made
            return made

    def drop(self, tunnel: str) -> None:
        """Forget a tunnel that was never announced."""
        with self._lock:
            self._tunnels.pop(tunnel, None)

    def close(self, tunnel: str, job: int, owner: str, why: str) -> None:
        """End a tunnel at the request of its client; may be repeated. Raises NotFound."""
        with self._lock:
            self._of_client(tunnel, job, owner).end(self._monotonic(), why)

    def join(self, key: NodeKey) -> list[Tunnel]:
        """The tunnels that wait for this supervisor; each is given once."""
        with self._lock:
            now = self._sweep()
            found = [
                one
                for one in self._tunnels.values()
                if one.node_at is None and not one.is_over and _key(one) == key
            ]
            for one in found:
                one.node_at = now
            return found

    def is_open(self, tunnel: str) -> bool:
        """Whether bytes go through a tunnel."""
        with self._lock:
            self._sweep()
            found = self._tunnels.get(tunnel)
            return found is not None and not found.is_over

    def attempt_of(self, tunnel: str) -> int:
        """The attempt that a tunnel belongs to; 0 for one that is not here."""
        with self._lock:
            found = self._tunnels.get(tunnel)
            return 0 if found is None else found.attempt

    # -- transfers ---------------------------------------------------------------------------------

    def client_reads(self, tunnel: str, job: int, owner: str, after: int, most: int) -> Transferred:
        """Bytes from the node. Raises NotFound, Conflict."""
        with self._lock:
            one = self._of_client(tunnel, job, owner)
            return _read(one, one.up, after, most)

    def client_sends(self, tunnel: str, job: int, owner: str, at: int, data: bytes) -> Transferred:
        """Bytes for the node. Raises NotFound, Conflict."""
        with self._lock:
            one = self._of_client(tunnel, job, owner)
            return _put(one, one.down, at, data)

    def node_reads(self, tunnel: str, key: NodeKey, after: int, most: int) -> Transferred:
        """Bytes from the client. Raises NotFound, Conflict."""
        with self._lock:
            one = self._of_node(tunnel, key)
            return _read(one, one.down, after, most)

    def node_sends(
        self, tunnel: str, key: NodeKey, at: int, data: bytes, *, over: bool
    ) -> Transferred:
        """Bytes for the client; `over`: nothing follows those. Raises NotFound, Conflict."""
        with self._lock:
            one = self._of_node(tunnel, key)
            done = _put(one, one.up, at, data)
            if over and done.at >= at + len(data):
                one.end(self._monotonic(), "")
            return done

    # -- inside ------------------------------------------------------------------------------------

    def _of_client(self, tunnel: str, job: int, owner: str) -> Tunnel:
        now = self._sweep()
        found = self._tunnels.get(tunnel)
        if found is None or (found.job, found.owner) != (job, owner):
            raise NotFound(ELSEWHERE)
        found.client_at = now
        return found

    def _of_node(self, tunnel: str, key: NodeKey) -> Tunnel:
        now = self._sweep()
        found = self._tunnels.get(tunnel)
        if found is None or _key(found) != key or found.node_at is None:
            raise NotFound(ELSEWHERE)
        found.node_at = now
        return found

    def _sweep(self) -> float:
        now = self._monotonic()
        gone = [name for name, one in self._tunnels.items() if one.check(now)]
        for name in gone:
            del self._tunnels[name]
        return now


def _key(one: Tunnel) -> NodeKey:
    return NodeKey(one.job, one.attempt, one.node_rank)


def _read(one: Tunnel, stream: ByteStream, after: int, most: int) -> Transferred:
    try:
        data = stream.read(after, most)
    except Misplaced as error:
        raise Conflict(str(error)) from None
    return Transferred(after, data, one.is_over and after + len(data) == stream.end, one.why)


def _put(one: Tunnel, stream: ByteStream, at: int, data: bytes) -> Transferred:
    if one.is_over:
        return Transferred(at, b"", True, one.why)
    try:
        return Transferred(stream.put(at, data), b"", False, "")
    except Misplaced as error:
        raise Conflict(str(error)) from None
