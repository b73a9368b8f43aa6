"""What ranks report through their mapped files, read while they run and once more when they are gone."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.core.contract import records as reports
from phalanx.core.gang.stalls import StallWatch
from phalanx.core.training.ledger import Consumed, merge
from phalanx.kit.text import replace_unencodable
from phalanx.launch.space import TrimmedFile
from phalanx.schemas.wire.supervision import (
    CheckpointRemovedReport,
    CheckpointReport,
    GuardReport,
    Heartbeat,
    LedgerReport,
    LedgerRow,
    MetricPoint,
    ProfileReport,
    QuarantinedReport,
    Report,
    RestoredReport,
    WarningReport,
)
from phalanx.supervise.ranks.ledger_watermarks import LedgerWatermark, NoWatermarkLog, WatermarkLog

_READ_BYTES = 1 << 20
# Of a report file this much is kept after it was read, and this much at most until it is.
TRIM_BYTES = 4 << 20
BACKLOG_BYTES = 256 << 20
_MOST_WAITING = 200_000
_REMEMBERED = 10_000
_MOST_WARNINGS = 1000
_MOST_ROWS = 5000
# What a record raises that a user's process has written as it likes.
_NONSENSE = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError)
Record = dict[str, Any]
Put = Callable[[Callable[[int], Report]], object]


class RecordTail:
    """A reader's own position in one rank's report file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._position = 0
        self._broken = False

    @property
    def end(self) -> int:
        """Where in the file the first record begins that was not read."""
        return reports.HEADER_BYTES + self._position

    @property
    def broken(self) -> bool:
        """Whether the rest of the file cannot be read."""
        return self._broken

    def skip_to(self, end: int) -> None:
        """Pass over everything before `end`, as another reader of the same file gives it."""
        self._position = max(self._position, end - reports.HEADER_BYTES)

    def read(self) -> list[Record]:
        """Records that were committed since the last call, about a megabyte of them at most.

        A file that is no report file is left alone from then on: a rank's mistake is not ours.
        """
        if self._broken or not self._open():
            return []
        assert self._descriptor is not None
        try:
            length = reports.committed_length(os.pread(self._descriptor, reports.HEADER_BYTES, 0))
            size = min(length - self._position, _READ_BYTES)
            if size <= 0:
                return []
            chunk = os.pread(self._descriptor, size, reports.HEADER_BYTES + self._position)
            found: list[Record] = []
            end = 0
            for end, record in reports.decode(chunk):  # noqa: B007 - the last one counts
                if isinstance(record, dict):
                    found.append(record)
            if end == 0 and size == _READ_BYTES:
                raise ValueError("a record larger than a megabyte")
            self._position += end
            return found
        except (OSError, ValueError):
            self._broken = True
            return []

    def _open(self) -> bool:
        if self._descriptor is None:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor is not None

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class GenerationRecords:
    """All ranks of this node in one generation, read for everything but metrics."""

    def __init__(
        self, generation: int, files: dict[int, Path], put: Put, watch: StallWatch,
        watermarks: WatermarkLog | None = None,
    ) -> None:  # fmt: skip
        self._generation = generation
        self._watch = watch
        self.watermarks: WatermarkLog = NoWatermarkLog() if watermarks is None else watermarks
        self._tails = {rank: RecordTail(path) for rank, path in files.items()}
        self._put = put
        self.step: int | None = None
        self.epoch: int | None = None
        self.phase = ""
        self.done: set[int] = set()
        self.stopped: set[int] = set()
        self._began = False
        self._fresh_rows: list[Consumed] = []
        self._merge_at = _MOST_ROWS
        self._commits: list[Record] = []
        self._num_samples: int | None = None
        self._num_epochs: int | None = None
        self._said: dict[tuple[str, str], None] = {}
        self._num_warned = 0

    def read(self) -> None:
        """Take in what is new; reports worth sending are put at once."""
        for rank, tail in self._tails.items():
            while records := tail.read():
                for record in records:
                    # Written by a user's process: what cannot be understood is passed over.
                    with contextlib.suppress(*_NONSENSE):
                        self._take(rank, record)
        self._put_commits()

    def resume_from(self, last: LedgerWatermark) -> None:
        """Begin behind what was handed over in `last`, and with what that left over."""
        for rank, tail in self._tails.items():
            tail.skip_to(last.ends.get(rank, 0))
        self._fresh_rows.extend(last.left)
        for record in last.saves:
            with contextlib.suppress(*_NONSENSE):
                self._take(min(self._tails), record)

    def said(self, rank: int, record: Record) -> None:
        """Take in a record that the supervisor made itself, of what a rank printed or left in a folder."""
        self._take(rank, record)
        self._put_commits()

    @property
    def tails(self) -> dict[int, RecordTail]:
        """Its readers, by rank."""
        return self._tails

    def close(self) -> None:
        """Give descriptors back."""
        for tail in self._tails.values():
            tail.close()
        self.watermarks.close()

    @property
    def reached(self) -> int | None:
        """The last step that counts for the job."""
        return self.step

    def heartbeat(self) -> Heartbeat:
        """How far the node is."""
        return Heartbeat(
            generation=self._generation,
            step=self.step,
            epoch=self.epoch,
            num_epochs=self._num_epochs,
            phase=self.phase,
        )

    def put_ledger(self, put: Put) -> bool:
        """Queue what was consumed since the last time, in parts; says whether there was anything."""
        if not self._fresh_rows:
            return False
        merged = merge(self._fresh_rows)
        self._fresh_rows, self._merge_at = list(merged[_MOST_ROWS:]), _MOST_ROWS
        rows = [
            LedgerRow(epoch=r.epoch, lo=r.lo, hi=r.hi, times=r.times) for r in merged[:_MOST_ROWS]
        ]
        ends = {rank: tail.end for rank, tail in self._tails.items()}
        left, saves = tuple(self._fresh_rows), tuple(self._commits)

        def make(seq: int) -> Report:
            self.watermarks.write(LedgerWatermark(seq, ends, left, saves))
            return LedgerReport(
                seq=seq, generation=self._generation, num_samples=self._num_samples, rows=rows,
                added=True,
            )  # fmt: skip

        put(make)
        return True

    def _put_commits(self) -> None:
        """What was consumed before a checkpoint goes along with its report, not some time later.

        Ranks are read one after another: when the first tells of a checkpoint, the others' last steps
        before it are read in the same turn.
        """
        if self._commits:
            while self.put_ledger(self._put):
                pass
            commits, self._commits = self._commits, []
            for record in commits:
                self._put(self._about(record))

    def _consumed(self, row: Consumed) -> None:
        self._fresh_rows.append(row)
        if len(self._fresh_rows) > self._merge_at:
            # Nobody fetches them: slices of this node's ranks lie side by side.
            self._fresh_rows = list(merge(self._fresh_rows))
            self._merge_at = max(_MOST_ROWS, 2 * len(self._fresh_rows))

    def _take(self, rank: int, record: Record) -> None:
        kind = record["k"]
        if kind == "step":
            self.step = max(self.step or 0, int(record["step"]))
            self.epoch = int(record["epoch"])
            self.phase = "ready"
            self._watch.stepped(int(record["t"]))
        elif kind == "ledger":
            row = Consumed(int(record["epoch"]), int(record["lo"]), int(record["hi"]))
            self._consumed(row)
        elif kind == "metric":
            self._look_for_divergence(rank, record)
        elif kind == "phase":
            self.phase = str(record["name"])
            self._watch.turned()
        elif kind == "done":
            self.done.add(rank)
            self._watch.ended()
        elif kind == "stopped":
            self.stopped.add(rank)
            self._watch.ended()
        else:
            self._announce(rank, kind, record)

    def _announce(self, rank: int, kind: str, record: Record) -> None:
        if kind == "checkpoint":
            self._checkpoint(record)  # what makes no sense is refused here, not later
            if self._is_new(kind, record["path"]):
                self._commits.append(record)
        elif kind == "restored" and not self._began:
            self._began = True
            self._put(self._restored(record))
        elif kind == "data":
            self._num_samples = int(record["num_samples"])
            self._num_epochs = record.get("epochs")
            if not self._began:
                self._began = True
                self._put(self._restored({**record, "path": None}))
        elif kind in ("quarantined", "removed"):
            # Behind the news that it was made: told first, it would count as one that is still there.
            if self._is_new(kind, str(record["path"])):
                self._commits.append(record)
        elif kind == "guard":
            self._put(self._guard(record))
        elif kind == "profile":
            self._put(self._profile(record))
        elif kind == "warn":
            said = str(record["message"])
            self._warn_once(kind, said, rank, said, int(record["t"]))

    def _look_for_divergence(self, rank: int, record: Record) -> None:
        """What is not finite cannot be drawn; that it came about must be seen."""
        for name, value in record["values"].items():
            if isinstance(value, str):
                said = f"metric {name} is not finite: {value} at step {record['step']}"
                self._warn_once("metric", name, rank, said, int(record["t"]))

    def _warn_once(self, kind: str, what: str, rank: int, said: str, at: int) -> None:
        # A script that warns at every step must not fill the job's story.
        if (kind, what) in self._said or self._num_warned >= _MOST_WARNINGS:
            return
        self._num_warned += 1
        self._once(kind, what, lambda seq: WarningReport(
            seq=seq, generation=self._generation, rank=rank, message=said, at=at))  # fmt: skip

    def _once(self, kind: str, what: str, make: Callable[[int], Report]) -> None:
        """Ranks agree on what they say; it is passed on once per generation."""
        if self._is_new(kind, what):
            self._put(make)

    def _is_new(self, kind: str, what: str) -> bool:
        """Whether this was not said before.

        Ranks say it at about the same time, so only the newest has to be remembered.
        """
        if (kind, what) in self._said:
            return False
        self._said[kind, what] = None
        if len(self._said) > _REMEMBERED:
            del self._said[next(iter(self._said))]
        return True

    def _guard(self, record: Record) -> Callable[[int], Report]:
        fields: dict[str, Any] = {
            "generation": self._generation,
            "step": int(record["step"]),
            "what": str(record["what"]),
            "origin": str(record["origin"]),
            "action": str(record["action"]),
            "ranks": [int(rank) for rank in record.get("ranks", [])],
        }
        return lambda seq: GuardReport(seq=seq, **fields)

    def _profile(self, record: Record) -> Callable[[int], Report]:
        fields: dict[str, Any] = {
            "generation": self._generation,
            "request": int(record["request"]),
            "at": int(record["t"]),
            "first_step": int(record["first_step"]),
            "splits": [dict(one) for one in record["splits"]],
            "notes": [str(one) for one in record["notes"]],
            **{name: str(record[name]) for name in ("finding", "said", "advice", "trace")},
        }
        ProfileReport(seq=0, **fields)  # a user's process wrote it: refuse it here, not later
        return lambda seq: ProfileReport(seq=seq, **fields)

    def _about(self, record: Record) -> Callable[[int], Report]:
        """A checkpoint was made, found to be broken, or is gone."""
        generation, path = self._generation, str(record["path"])
        if record["k"] == "removed":
            return lambda seq: CheckpointRemovedReport(seq=seq, generation=generation, path=path)
        if record["k"] == "quarantined":
            why = str(record.get("why", ""))
            return lambda seq: QuarantinedReport(
                seq=seq, generation=generation, path=path, message=why
            )
        return self._checkpoint(record)

    def _checkpoint(self, record: Record) -> Callable[[int], Report]:
        fields: dict[str, Any] = {
            "generation": self._generation,
            "step": int(record["step"]),
            "epoch": record.get("epoch"),
            "path": str(record["path"]),
            "size_bytes": int(record.get("bytes") or 0),
            "took_s": record.get("save_s"),
            "metrics": finite(record.get("metrics") or {}),
            "at": int(record["t"]),
        }
        return lambda seq: CheckpointReport(seq=seq, **fields)

    def _restored(self, record: Record) -> Callable[[int], Report]:
        fields: dict[str, Any] = {
            "generation": self._generation,
            "path": record.get("path"),
            "step": int(record.get("step") or 0),
            "epoch": int(record.get("epoch") or 0),
            "position": int(record.get("position") or 0),
            "exact": bool(record.get("exact", True)),
            "took_s": record.get("restore_s"),
        }
        return lambda seq: RestoredReport(seq=seq, **fields)


class SideRecords(GenerationRecords):
    """Those of a role that is not the job's first: its steps and checkpoints are not the job's."""

    _OWN_BUSINESS = frozenset({"checkpoint", "restored", "data", "quarantined", "removed"})

    @property
    def reached(self) -> int | None:
        """Nothing that counts for the job."""
        return None

    def heartbeat(self) -> Heartbeat:
        """That it is there."""
        return Heartbeat(generation=self._generation, phase=self.phase)

    def put_ledger(self, put: Put) -> bool:
        """What it reads is not the job's data."""
        self._fresh_rows = []
        return False

    def _announce(self, rank: int, kind: str, record: Record) -> None:
        if kind == "guard":
            # It counts ranks in its role; the story counts them in the gang.
            record = {**record, "ranks": []}
        if kind not in self._OWN_BUSINESS:
            super()._announce(rank, kind, record)


class MetricTail:
    """The same files, read for metrics alone, and only as fast as they are carried away."""

    def __init__(self, files: dict[int, Path]) -> None:
        self._files = files
        self._tails = {rank: RecordTail(path) for rank, path in files.items()}
        self._waiting: list[MetricPoint] = []
        self._trimmed = {rank: TrimmedFile(reports.HEADER_BYTES) for rank in files}

    def said(self, rank: int, record: Record) -> None:
        """Take in a point that the supervisor made itself; some are left out where too many wait."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(_point(rank, record))

    def trim(self, read: dict[int, RecordTail]) -> list[int]:
        """Let go of what this and the readers in `read` have behind them; a file stays bounded.

        Metrics that nobody fetches for so long that `BACKLOG_BYTES` wait are passed over. Returns the
        ranks to which that happened.
        """
        lost: list[int] = []
        for rank, tail in self._tails.items():
            if read[rank].end - tail.end > BACKLOG_BYTES:
                tail.skip_to(read[rank].end)
                lost.append(rank)
            end = min(tail.end, read[rank].end)
            if end - self._trimmed[rank].begin < TRIM_BYTES:
                continue
            self._trimmed[rank].up_to(self._files[rank], end)
        return lost

    def take(self, limit: int) -> list[MetricPoint]:
        """Up to `limit` points that were not taken before."""
        if len(self._waiting) < limit:
            for rank, tail in self._tails.items():
                for record in tail.read():
                    if record.get("k") == "metric":
                        with contextlib.suppress(*_NONSENSE):
                            self._waiting.append(_point(rank, record))
        taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return taken

    def close(self) -> None:
        """Give descriptors back."""
        for tail in self._tails.values():
            tail.close()


def _point(rank: int, record: Record) -> MetricPoint:
    values = finite(record["values"])
    return MetricPoint(rank=rank, step=int(record["step"]), at=int(record["t"]), values=values)


def finite(values: dict[str, Any]) -> dict[str, float]:
    """Values that JSON can carry, by names that it can: what is not finite is left out."""
    found = {replace_unencodable(name): float(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}
