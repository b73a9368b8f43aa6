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

LOG_BYTES = 256 * 1024


class BulkShipper:
    """Fills the outbox with bulk data, the oldest generation first."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
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
        for generation in self._generations:
            self._trim(generation)
        return False if self._outbox.bulk_in_flight else self.ship_now()

    def ship_now(self) -> bool:
        """Queue the next batch although one may be in flight; returns whether anything was queued.

        For the end of a generation: the last output of the ranks then arrives before the report of
        their end, unless the backlog is larger than one batch.
        """
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

    def _ship_log(self, number: int, stream: Stream, left: int) -> int:
        lost = stream.capture.num_dropped
        if lost:
            said = f"output of rank {stream.rank} could not be stored: {stream.capture.error}"
            self._warn_once(number, stream.rank, stream.name, said)
        data = stream.read_back(left)
        if not data:
            return 0
        fields: dict[str, Any] = {
            "generation": number,
            "rank": stream.rank,
            "stream": stream.name,
            "offset": stream.num_sent,
            "data": base64.b64encode(data).decode(),
            "dropped": lost - stream.num_dropped_sent,
        }
        self._outbox.put_bulk(lambda seq: LogReport(seq=seq, **fields))
        stream.num_sent += len(data)
        stream.num_dropped_sent = lost
        return len(data)

    def _trim(self, generation: Generation) -> None:
        """Free the disk space of what was shipped, however long a generation lasts."""
        for stream in generation.streams:
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
