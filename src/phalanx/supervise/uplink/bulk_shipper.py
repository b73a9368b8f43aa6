"""Shipping of bulk data: log bytes, metric points and ledger rows, read from the files of the ranks.

At most one batch is in flight, so that a slow control plane delays bulk data and nothing else.
"""

from __future__ import annotations

import base64
from typing import Any

from phalanx.kit.clock import Clock
from phalanx.schemas.wire.supervision import LogReport, WarningReport
from phalanx.supervise.ranks.generation import Generation
from phalanx.supervise.ranks.rank import Stream
from phalanx.supervise.uplink.link import Outbox

LOG_BYTES = 1 << 20
# A backlog above the limit is cut to this share of it, so that it is cut seldom.
_SHARE_KEPT = 0.5


class BulkShipper:
    """Fills the outbox with bulk data, the oldest generation first."""

    def __init__(self, outbox: Outbox, clock: Clock, log_limit: int | None = None) -> None:
        """`log_limit`: bytes of output that are stored of the job; more of a backlog is not sent."""
        self._log_limit = log_limit
        self._outbox = outbox
        self._clock = clock
        # Generations with data that was not shipped yet.
        self._generations: list[Generation] = []
        self._warned: set[tuple[int, int, str]] = set()

    def add(self, generation: Generation) -> None:
        """Ship this generation's bulk data, too."""
        self._generations.append(generation)

    def ship(self) -> bool:
        """Queue the next batch unless one is in flight; returns whether anything was queued."""
        in_flight = self._outbox.bulk_in_flight
        for generation in self._generations:
            self._trim(generation, logs=not in_flight)
        return False if in_flight else self.ship_now()

    def ship_now(self) -> bool:
        """Queue the next batch although one may be in flight; returns whether anything was queued.

        For the end of a generation: the last output of the ranks then arrives before the report of
        their end, unless the backlog is larger than one batch.
        """
        self._pass_over()
        left, queued = LOG_BYTES, False
        for generation in self._generations:
            # The least shipped first, so that a stream with much output does not delay the others.
            for stream in sorted(generation.streams, key=lambda one: one.num_sent):
                taken = self._ship_log(generation.number, stream, left)
                left, queued = left - taken, queued or taken > 0
            put = self._outbox.put_bulk
            queued = generation.records.put_ledger(put) or queued
            queued = generation.metrics.put(put, generation.number, generation.leads) or queued
        while len(self._generations) > 1 and not queued:
            # An older generation without a backlog produces nothing more.
            self._generations.pop(0).close()
        return queued

    @property
    def backlog(self) -> int:
        """Bytes of output that were not queued yet."""
        return sum(stream.backlog for one in self._generations for stream in one.streams)

    def give_up(self) -> None:
        """Report how much output each stream has, of which the rest will not be sent."""
        for generation in self._generations:
            for stream in generation.streams:
                if stream.backlog and not stream.ended:
                    self._put_end(generation.number, stream)

    def close(self) -> None:
        """Ship nothing more."""
        self._generations = []

    def _pass_over(self) -> None:
        """Leave out what would be deleted again at once: the output that is stored of a job is limited."""
        limit = self._log_limit
        if limit is None or self.backlog <= limit:
            return
        streams = [one for each in self._generations for one in each.streams if one.backlog]
        kept = round(limit * _SHARE_KEPT) // len(streams)
        for stream in streams:
            stream.pass_over(stream.capture.num_written - kept)

    def _ship_log(self, number: int, stream: Stream, left: int) -> int:
        if stream.capture.num_dropped:
            said = f"output of rank {stream.rank} could not be stored: {stream.capture.error}"
            self._warn_once(number, stream.rank, stream.name, said)
        lost = stream.take_loss()
        data = stream.read_back(left)
        if not data:
            if lost and stream.closed and not stream.ended:
                self._put_end(number, stream, lost)
            elif lost:
                stream.capture.losses.appendleft((stream.num_sent, lost))
            return 0
        fields = self._fields(number, stream, lost)
        offset, encoded = stream.num_sent, base64.b64encode(data).decode()
        self._outbox.put_bulk(lambda seq: LogReport(seq=seq, offset=offset, data=encoded, **fields))
        stream.num_sent += len(data)
        return len(data)

    def _put_end(self, number: int, stream: Stream, lost: int = 0) -> None:
        fields, size = self._fields(number, stream, lost), stream.capture.num_written
        stream.ended = True
        self._outbox.put_bulk(
            lambda seq: LogReport(seq=seq, offset=size, data="", end=True, **fields)
        )

    def _fields(self, number: int, stream: Stream, lost: int) -> dict[str, Any]:
        named = {"rank": stream.rank, "stream": stream.name}
        return {"generation": number, "dropped": lost, **named}

    def _trim(self, generation: Generation, *, logs: bool) -> None:
        """Free the disk space of what was shipped, however long a generation lasts.

        Of `logs` only while all that was shipped is stored: until then the file may be needed again.
        """
        for stream in generation.streams if logs else ():
            stream.trim()
        for rank in generation.metrics.trim(generation.records.tails):
            said = f"metrics of rank {rank} were dropped: the control plane was away for too long"
            self._warn_once(generation.number, rank, "metrics", said)

    def _warn_once(self, number: int, rank: int, what: str, message: str) -> None:
        if (number, rank, what) in self._warned:
            return
        self._warned.add((number, rank, what))
        at = self._clock.now()
        self._outbox.put(
            lambda seq: WarningReport(seq=seq, generation=number, rank=rank, message=message, at=at)
        )
