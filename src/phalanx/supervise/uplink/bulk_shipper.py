"""Shipping of bulk data: log bytes, metric points and ledger rows, read from the files of the ranks.

At most one batch is in flight, so that a slow control plane delays bulk data and nothing else.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Literal, cast

from phalanx.kit.clock import Clock
from phalanx.schemas.wire.supervision import LogReport, MetricsReport, WarningReport
from phalanx.supervise.ranks.generation import Generation
from phalanx.supervise.ranks.rank import Stream
from phalanx.supervise.uplink.outbox import Outbox

LOG_BYTES = 256 * 1024
NUM_POINTS = 2000


@dataclass(slots=True)
class Backlog:
    """The bulk data of one generation that was not shipped yet."""

    generation: Generation
    warned: set[tuple[int, str]] = field(default_factory=set)

    @property
    def streams(self) -> list[Stream]:
        """All captured streams of this node."""
        return [stream for rank in self.generation.ranks for stream in rank.streams]


class BulkShipper:
    """Fills the outbox with bulk data, the oldest generation first."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._backlogs: list[Backlog] = []

    def add(self, generation: Generation) -> None:
        """Ship this generation's bulk data, too."""
        self._backlogs.append(Backlog(generation))

    def ship(self) -> bool:
        """Queue the next batch unless one is in flight; returns whether anything was queued."""
        for backlog in self._backlogs:
            self._trim(backlog)
        return False if self._outbox.bulk_in_flight else self._queue()

    def ship_last(self) -> None:
        """Queue the next batch at the end of a generation, although one may be in flight.

        The last output of the ranks then arrives before the report of their end: not all of a long
        backlog, but all of an ordinary one.
        """
        self._queue()

    def _queue(self) -> bool:
        left, queued = LOG_BYTES, False
        for backlog in self._backlogs:
            for stream in self._fair(backlog):
                taken = self._ship_log(backlog, stream, left)
                left, queued = left - taken, queued or taken > 0
            queued = backlog.generation.records.put_ledger(self._outbox.put_bulk) or queued
            queued = self._ship_metrics(backlog) or queued
        while len(self._backlogs) > 1 and not queued:
            # An older generation without a backlog produces nothing more.
            self._backlogs.pop(0).generation.close()
        return queued

    def _fair(self, backlog: Backlog) -> list[Stream]:
        """Streams with the least shipped first, so that one that prints much does not delay the others."""
        return sorted(backlog.streams, key=lambda stream: stream.num_sent)

    def _ship_log(self, backlog: Backlog, stream: Stream, left: int) -> int:
        number = backlog.generation.number
        lost = stream.capture.num_dropped
        key = (stream.rank, stream.name)
        if lost and key not in backlog.warned:
            backlog.warned.add(key)
            said = f"output of rank {stream.rank} could not be stored: {stream.capture.error}"
            at = self._clock.now()
            self._outbox.put(lambda seq: WarningReport(
                seq=seq, generation=number, rank=stream.rank, message=said, at=at))  # fmt: skip
        data = stream.read_back(left)
        if not data:
            return 0
        dropped, offset = lost - stream.num_dropped_sent, stream.num_sent
        name = cast("Literal['out', 'err']", stream.name)
        text = base64.b64encode(data).decode()
        self._outbox.put_bulk(lambda seq: LogReport(
            seq=seq, generation=number, rank=stream.rank, stream=name, offset=offset, data=text,
            dropped=dropped))  # fmt: skip
        stream.num_sent += len(data)
        stream.num_dropped_sent = lost
        return len(data)

    def _trim(self, backlog: Backlog) -> None:
        """Free the disk space of what was shipped, however long a generation lasts."""
        for stream in backlog.streams:
            stream.trim()
        generation = backlog.generation
        for rank in generation.metrics.trim(generation.records.tails):
            self._warn_left_out(backlog, rank)

    def _warn_left_out(self, backlog: Backlog, rank: int) -> None:
        number, at = backlog.generation.number, self._clock.now()
        if (rank, "metrics") not in backlog.warned:
            backlog.warned.add((rank, "metrics"))
            said = (
                f"metrics of rank {rank} were left out: they waited too long for the control plane"
            )
            self._outbox.put(lambda seq: WarningReport(
                seq=seq, generation=number, rank=rank, message=said, at=at))  # fmt: skip

    def _ship_metrics(self, backlog: Backlog) -> bool:
        points = backlog.generation.metrics.take(NUM_POINTS)
        if not points:
            return False
        number, leads = backlog.generation.number, backlog.generation.leads
        self._outbox.put_bulk(lambda seq: MetricsReport(
            seq=seq, generation=number, points=points, leads=leads))  # fmt: skip
        return True
