"""Output that is not stored any more, or never was: its bytes are counted, each once.

Before a segment that follows stored or told bytes nothing is missing. What is missing at another place of a
job's output, such as the range that its limit deleted, is told by a mark with a place of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from phalanx.core.logs.segments import StreamKey

GapCause = Literal["lost", "limit", "expired", "quota", "unsent", "unreadable"]


@dataclass(frozen=True, slots=True)
class MissingBytes:
    """Bytes of a stream that cannot be read. `begin` and `end` are offsets; None: they were in no file."""

    cause: GapCause
    num_bytes: int
    begin: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class MissingMark:
    """What is missing of a stream at a place in the order of arrival."""

    id: int  # of a segment that was there, or of no segment
    key: StreamKey
    at: int  # µs UTC
    missing: tuple[MissingBytes, ...]
    end: int  # all bytes before this offset are stored or told behind this place


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """What is known of a stream beside the segments at hand."""

    begin: int = 0  # up to where the bytes before the first of these segments are stored or told
    expired: int = 0  # bytes before this were deleted because of their age …
    by_quota: int = 0  # … or, the last ones of them, by the quota of all jobs


_WHY: Mapping[GapCause, str] = {
    "lost": "the node could not write them to its disk",
    "limit": "more output than is stored of one job; the file on the node may have them",
    "expired": "older than the retention of logs",
    "quota": "deleted by the quota of stored output of all jobs, which takes that of the oldest ones",
    "unsent": "the supervisor ended before it had sent them; the file on the node may have them",
    "unreadable": "the file with them was deleted or is damaged; a backup may have it",
}


def words_of(one: MissingBytes) -> str:
    """What is missing and why, in place of it."""
    where = "" if one.begin is None else f" (offset {one.begin:,} to {one.end:,})"
    return f"[{one.num_bytes:,} bytes are missing here{where}: {_WHY[one.cause]}]"


def missing_between(
    begin: int,
    end: int,
    *,
    expired: int,
    lost: int,
    by_quota: int = 0,
    cause: GapCause = "limit",
) -> list[MissingBytes]:
    """What is missing in [begin, end) of a stream: up to `expired` because of its age, then by `cause`.

    The last `by_quota` of the expired bytes were deleted by the quota of all jobs. `lost` bytes were in
    no file.
    """
    found: list[MissingBytes] = []
    gone = min(end, max(begin, expired))
    aged = min(gone, max(begin, expired - by_quota))
    for why, start, stop in (("expired", begin, aged), ("quota", aged, gone), (cause, gone, end)):
        if stop > start:
            found.append(MissingBytes(why, stop - start, start, stop))  # type: ignore[arg-type]
    if lost:
        found.append(MissingBytes("lost", lost))
    return found
