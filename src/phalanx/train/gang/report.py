"""The report file of a rank: an append-only mapping that survives its SIGKILL, see `core.contract`."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phalanx.core.contract import records
from phalanx.core.contract.records import MetricRecord, Record, WarningRecord

CHUNK_BYTES = 256 * 1024


class Report:
    """The report of a rank, a sequence of records; this class drops them. Never raises into training."""

    def write(self, record: Record) -> None:
        """Append one record."""

    def close(self) -> None:
        """Close the report."""


class NoReport(Report):
    """The report of a rank without a report file: records are dropped."""


class ReportFile(Report):
    """A report in a mapped file. On a full disk records are dropped and counted.

    The blocks behind the mapping are allocated before they are touched: a write to an unallocated block
    of a full disk would be a SIGBUS. Only the header and the last chunk are mapped, and only that chunk is
    ever allocated: the supervisor frees the blocks that it has read.
    """

    def __init__(self, path: Path, *, now: Callable[[], int]) -> None:
        """`now` gives integer microseconds UTC. A file that cannot be made drops every record."""
        self.dropped = 0
        self._lock = threading.Lock()  # checkpoints are written, and reported, by another thread
        self._now = now
        self._size = 0
        self._window_at = 0
        self._committed = 0
        self._retry_after = 0
        self._head: mmap.mmap | None = None
        self._map: mmap.mmap | None = None
        self._fd = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._begin()

    def _begin(self) -> bool:
        """Write the header. A rank may start on a full disk, so a later record tries it again."""
        if not self._size and not self._grow(0, records.HEADER_BYTES):
            return False
        try:
            self._head = mmap.mmap(self._fd, mmap.PAGESIZE)
        except (OSError, ValueError):
            return False
        self._head[: records.HEADER_BYTES] = records.header(os.getpid())
        return True

    def _grow(self, start: int, need: int) -> bool:
        """Map the chunks from the one that holds `start` to the one that holds the last byte."""
        begin, size = start // CHUNK_BYTES * CHUNK_BYTES, -(-need // CHUNK_BYTES) * CHUNK_BYTES
        try:
            os.posix_fallocate(self._fd, self._size, size - self._size)
            fresh = mmap.mmap(self._fd, size - begin, offset=begin)
        except (OSError, ValueError):
            return False
        if self._map is not None:
            self._map.close()
        self._map, self._size, self._window_at = fresh, size, begin
        return True

    def write(self, record: Record) -> None:
        """Append one record: the bytes first, the committed length last."""
        with self._lock:
            self._write(record)

    def _write(self, record: Record) -> None:
        if self._retry_after > 0:
            self._retry_after -= 1
            self.dropped += 1
            return
        lost, self.dropped = self.dropped, 0
        if lost and not self._append(WarningRecord(f"{lost} reports could not be written")):
            self.dropped = lost
        if not self._append(record):
            self.dropped += 1
            self._retry_after = 100

    def _append(self, record: Record) -> bool:
        try:
            body = records.encode(record, self._now())
        except (TypeError, ValueError):
            return False
        start = records.HEADER_BYTES + self._committed
        end = start + len(body)
        if self._fd < 0 or (self._head is None and not self._begin()):
            return False
        if end > self._size and not self._grow(start, end):
            return False
        if self._map is None or self._head is None:
            return False
        self._map[start - self._window_at : end - self._window_at] = body
        self._committed += len(body)
        at = records.LENGTH_OFFSET
        self._head[at : at + 8] = records.pack_length(self._committed)
        return True

    @property
    def closed(self) -> bool:
        """Return whether records are dropped because the file is closed, or could not be opened."""
        return self._fd < 0

    def close(self) -> None:
        """Unmap and close; the records stay."""
        for one in (self._map, self._head):
            if one is not None:
                one.close()
        self._map = self._head = None
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


_open: dict[tuple[int, Path], ReportFile] = {}


def report_to(path: Path | None, now: Callable[[], int]) -> Report:
    """Return this process's report in the file at `path`; without one, records are dropped.

    A script may use several parts that report. Two writers of one file would overwrite each other's
    records, so they get the same one.
    """
    if path is None:
        return NoReport()
    key = (os.getpid(), path)
    if key not in _open or _open[key].closed:
        _open[key] = ReportFile(path, now=now)
    return _open[key]


class Journal:
    """A buffer of logged metrics that reads their tensors one step later.

    Reading a tensor would wait for the device, so `log` only keeps it; the value is taken when the next
    step commits or logs. `latest` holds the newest value of each name that has been read.
    """

    def __init__(self, report: Report) -> None:
        self.latest: dict[str, float | str] = {}
        self._report = report
        self.read_step = -1
        self._step = 0
        self._pending: dict[str, Any] = {}
        self._refused: set[str] = set()

    def log(self, step: int, values: dict[str, Any]) -> None:
        """Keep values of `step` without reading tensors."""
        if self._pending and step != self._step:
            self.flush()
        self._step = step
        for name, value in values.items():
            detach = getattr(value, "detach", None)
            self._pending[name] = value if detach is None else detach()

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Begin with the values that a checkpoint holds."""
        for name, value in saved.items():
            if isinstance(value, int | float | str):
                self.latest.setdefault(name, value)

    def flush(self) -> None:
        """Read the pending values and report them."""
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        values: dict[str, float | str] = {}
        for name, value in pending.items():
            try:
                values[name] = plain(value.item() if hasattr(value, "item") else value)
            except (TypeError, ValueError, RuntimeError):
                if name not in self._refused:
                    self._refused.add(name)
                    message = f"run.log({name}=…): {type(value).__name__} is not a single number"
                    self._report.write(WarningRecord(message))
        if values:
            self.latest.update(values)
            self.read_step = self._step
            self._report.write(MetricRecord(step=self._step, values=values))


def plain(value: Any) -> float | str:
    """A number for JSON; what is not finite becomes "nan", "inf" or "-inf". Raises TypeError."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):  # booleans, too
        return int(value)
    raise TypeError(f"{type(value).__name__} is not a number")
