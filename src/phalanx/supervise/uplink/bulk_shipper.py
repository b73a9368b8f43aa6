"""Bulk on its way up: log bytes, metric points and ledgers, read again from where they lie.

At most one batch is in flight, so that a slow control plane slows nothing but the carriage.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Literal, cast

from phalanx.kit.clock import Clock
from phalanx.schemas.wire.supervision import LogReport, MetricPoint, MetricsReport, WarningReport
from phalanx.supervise.ranks.generation import Generation
from phalanx.supervise.ranks.rank import Stream
from phalanx.supervise.uplink.outbox import Outbox

LOG_BYTES = 256 * 1024
NUM_POINTS = 2000


@dataclass(slots=True)
class Backlog:
    """What one generation still has to carry."""

    generation: Generation
    warned: set[tuple[int, str]] = field(default_factory=set)

    @property
    def streams(self) -> list[Stream]:
        """All captured streams of this node."""
        return [stream for rank in self.generation.ranks for stream in rank.streams]


class BulkShipper:
    """Feeds the outbox with bulk, oldest generation first."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._cargos: list[Backlog] = []

    def add(self, generation: Generation) -> None:
        """Carry this generation's bulk too."""
        self._cargos.append(Backlog(generation))

    def load(self) -> bool:
        """Queue the next batch unless one is in flight; says whether anything was queued."""
        for cargo in self._cargos:
            self._trim(cargo)
        return False if self._outbox.bulk_in_flight else self._queue()

    def load_last(self) -> None:
        """A generation has ended: queue the next batch although one may be in flight.

        Whoever hears of the end finds what the ranks said last: not all of a long backlog, but all of an
        ordinary one.
        """
        self._queue()

    def _queue(self) -> bool:
        left, loaded = LOG_BYTES, False
        for cargo in self._cargos:
            for stream in self._fair(cargo):
                taken = self._load_log(cargo, stream, left)
                left, loaded = left - taken, loaded or taken > 0
            loaded = cargo.generation.records.put_ledger(self._outbox.put_bulk) or loaded
            loaded = self._load_metrics(cargo) or loaded
        while len(self._cargos) > 1 and not loaded:
            # An older generation with nothing left to say will say nothing more.
            self._cargos.pop(0).generation.close()
        return loaded

    def _fair(self, cargo: Backlog) -> list[Stream]:
        """Streams with the least carried first, so that a chatty rank does not hide the others."""
        return sorted(cargo.streams, key=lambda stream: stream.num_sent)

    def _load_log(self, cargo: Backlog, stream: Stream, left: int) -> int:
        number = cargo.generation.number
        lost = stream.capture.num_dropped
        key = (stream.rank, stream.name)
        if lost and key not in cargo.warned:
            cargo.warned.add(key)
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

    def _trim(self, cargo: Backlog) -> None:
        """Files that were carried away do not fill the disk, however long a generation lasts."""
        for stream in cargo.streams:
            stream.trim()
        generation = cargo.generation
        for rank in generation.metrics.trim(generation.records.tails):
            self._warn_left_out(cargo, rank)

    def _warn_left_out(self, cargo: Backlog, rank: int) -> None:
        number, at = cargo.generation.number, self._clock.now()
        if (rank, "metrics") not in cargo.warned:
            cargo.warned.add((rank, "metrics"))
            said = f"metrics of rank {rank} were left out: nobody has fetched them for too long"
            self._outbox.put(lambda seq: WarningReport(
                seq=seq, generation=number, rank=rank, message=said, at=at))  # fmt: skip

    def _load_metrics(self, cargo: Backlog) -> bool:
        points: list[MetricPoint] = cargo.generation.metrics.take(NUM_POINTS)
        if not points:
            return False
        number, leads = cargo.generation.number, cargo.generation.leads
        self._outbox.put_bulk(lambda seq: MetricsReport(
            seq=seq, generation=number, points=points, leads=leads))  # fmt: skip
        return True
