"""The bytes of one direction of a tunnel, with positions: a transfer that is repeated changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

LIMIT_BYTES = 1 << 20
"""Most bytes that wait for their reader: a sender that is faster is told to wait."""


class Misplaced(ValueError):
    """A position outside of what a stream has."""


@dataclass(slots=True)
class ByteStream:
    """Bytes that a sender has put and a reader has not confirmed. `begin` is the position of the first."""

    limit: int = LIMIT_BYTES
    begin: int = 0
    _waiting: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        """The position behind the last byte."""
        return self.begin + len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken until the reader confirms."""
        return len(self._waiting) >= self.limit

    def put(self, at: int, data: bytes) -> int:
        """Take bytes that begin at the position `at`; returns the position up to which all are taken.

        Bytes that were taken before are passed over, those without room are left. A gap raises Misplaced.
        """
        end = self.end
        if at > end or at < 0:
            raise Misplaced(f"bytes at {at} do not follow those up to {end}")
        room = self.limit - len(self._waiting)
        self._waiting += data[end - at :][: max(0, room)]
        return self.end

    def read(self, after: int, most: int) -> bytes:
        """Confirm the bytes before the position `after`, and return the next ones. Raises Misplaced."""
        if not self.begin <= after <= self.end:
            raise Misplaced(f"the bytes at {after} are not here, but those from {self.begin}")
        del self._waiting[: after - self.begin]
        self.begin = after
        return bytes(self._waiting[:most])
