"""Numbered reports that wait for the control plane, in memory and, while it is away, on disk."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from phalanx.schemas.wire.supervision import Report

MAX_WAITING = 20_000
_BATCH_BYTES = 1 << 20


class Outbox:
    """Reports in order, each with a number, until they are acknowledged. Safe for several threads.

    Bulk data (logs, metrics, ledgers) does not pile up here while the control plane is away: it stays in
    files of its own. Other reports that wait are written to `spool`, so that a reader of the node's
    folder finds what the control plane did not receive.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._lock = threading.Lock()
        self._waiting: deque[Report] = deque()
        self._next = 1
        self._acked = 0
        self._bulk_until = 0
        self._spooled = 0
        self._away = False

    def put(self, make: Callable[[int], Report]) -> Report:
        """Number a report and queue it; `make` is given its number."""
        with self._lock:
            report = make(self._next)
            self._next += 1
            self._waiting.append(report)
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
            if self._away:
                self._write(report)
            return report

    def put_bulk(self, make: Callable[[int], Report]) -> None:
        """Queue a part of a bulk batch: `bulk_in_flight` until it is acknowledged."""
        self._bulk_until = self.put(make).seq

    @property
    def bulk_in_flight(self) -> bool:
        """Whether a bulk batch still waits to be acknowledged."""
        with self._lock:
            return bool(self._waiting) and self._waiting[0].seq <= self._bulk_until

    @property
    def acked(self) -> int:
        """The number of the last report that is known to be stored. Takes no lock."""
        return self._acked

    def pending(self) -> list[Report]:
        """The reports to send now, in order, about a megabyte at most."""
        with self._lock:
            batch: list[Report] = []
            size = 0
            for report in self._waiting:
                batch.append(report)
                size += len(report.data) if report.kind == "log" else 400
                if size > _BATCH_BYTES:
                    break
            return batch

    def acknowledge(self, seq: int) -> bool:
        """Drop the reports up to `seq`, which are stored; returns whether there were any."""
        with self._lock:
            self._acked = max(self._acked, seq)
            news = bool(self._waiting) and self._waiting[0].seq <= seq
            while self._waiting and self._waiting[0].seq <= seq:
                self._waiting.popleft()
            self._away = False
            if self._spooled and not self._waiting:
                self._spooled = 0
                with contextlib.suppress(OSError):
                    (self._spool / "reports.jsonl").unlink()
            return news

    def control_plane_away(self) -> None:
        """Begin to write what waits to disk."""
        with self._lock:
            if self._away:
                return
            self._away = True
            for report in self._waiting:
                self._write(report)

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged."""
        with self._lock:
            return not self._waiting

    def _write(self, report: Report) -> None:
        if report.kind in ("log", "metrics", "ledger") or report.seq <= self._spooled:
            return
        # A full disk must not stop a job that trains: the report still waits in memory.
        with contextlib.suppress(OSError):
            self._spool.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._spool / "reports.jsonl", flags, 0o600)
            with open(descriptor, "ab") as file:
                file.write(report.model_dump_json().encode() + b"\n")
        self._spooled = report.seq
