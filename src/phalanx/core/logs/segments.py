"""Bytes of one rank's output as they arrived, and the unfinished lines between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

StreamKey = tuple[int, int, int, str]
"""(attempt, generation, rank, stream)."""
MAX_LINE_BYTES = 1 << 20
"""A longer line is returned in pieces of this size, so that readers see it before it ends."""


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Bytes [offset, offset + len(data)) of one rank's stream in one generation.

    Without data: the stream has ended at `offset`.
    """

    id: int  # order of arrival
    job: int  # job number
    attempt: int  # number in the job
    generation: int  # number in the attempt
    rank: int  # global rank
    stream: str  # `out` or `err`
    offset: int  # of the first byte in the stream
    dropped: int  # bytes lost before this segment
    at: int  # µs UTC
    data: bytes  # raw output

    @property
    def key(self) -> StreamKey:
        """(attempt, generation, rank, stream)."""
        return self.attempt, self.generation, self.rank, self.stream

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line that had not ended when the bytes behind it were taken."""

    start: int  # offset of its first byte in the stream
    at: int  # arrival of its last bytes, µs UTC
    data: bytes


def older(keys: Iterable[StreamKey], fresh: Iterable[StreamKey]) -> set[StreamKey]:
    """Those of `keys` with a newer generation of their rank and stream in `fresh`: they have ended."""
    newest: dict[tuple[int, str], tuple[int, int]] = {}
    for attempt, generation, rank, stream in fresh:
        place = (rank, stream)
        newest[place] = max(newest.get(place, (0, 0)), (attempt, generation))
    return {key for key in keys if key[:2] < newest.get(key[2:], (0, 0))}


def folded(line: bytes) -> bytes:
    """What a terminal shows of a line: a carriage return begins it again, as progress bars do."""
    return line.removesuffix(b"\r").rpartition(b"\r")[2]
