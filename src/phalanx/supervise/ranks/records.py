"""Records of ranks, read from their mapped report files while they run and once more when they are gone.

`RecordTail` reads one file. `GenerationRecords` turns the records of a node's ranks into reports at once;
`MetricTail` reads metrics from the same files, and only as fast as they are shipped, so that a backlog
lies on disk. Each record is decoded once, by one of the two.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.core.contract import records as contract
from phalanx.core.contract.records import MetricPoint, MetricRecord, Record
from phalanx.core.experiments.parameters import ParamSource, params_of
from phalanx.core.gang.stalls import StallWatch
from phalanx.core.telemetry.instruments import observed
from phalanx.core.training.ledger import Consumed, merge
from phalanx.kit.text import replace_unencodable
from phalanx.launch.space import TrimmedFile
from phalanx.schemas.wire.supervision import (
    CheckpointCopyReport,
    CheckpointRemovedReport,
    CheckpointReport,
    GuardReport,
    Heartbeat,
    LedgerReport,
    LedgerRow,
    MetricsReport,
    ParamsReport,
    ProfileReport,
    QuarantinedReport,
    Report,
    RestoredReport,
    SaveBegunReport,
    SeedReport,
    TrialReport,
    WarningReport,
)
from phalanx.supervise.ranks.ledger_watermarks import LedgerWatermark, WatermarkLog

_READ_BYTES = 1 << 20
# Of a report file this much is kept after it was read, and this much at most until it is.
TRIM_BYTES = 4 << 20
BACKLOG_BYTES = 256 << 20
_MOST_WAITING = 200_000
_REMEMBERED = 10_000
_MOST_WARNINGS = 1000
_MOST_ROWS = 5000
NUM_POINTS = 2000
# Errors that the values of a record raise: it was written by a user's process.
_INVALID = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError)
Put = Callable[[Callable[[int], Report]], object]

# Records that stay on the node, in the rank's report file, and why.
NOT_FORWARDED: Mapping[type[Record], str] = {}


class RecordTail:
    """A reader's own position in one rank's report file.

    `wanted` selects records by their encoded text: those it refuses are passed over without decoding.
    """

    def __init__(self, path: Path, wanted: Callable[[bytes], bool] = lambda _frame: True) -> None:
        self._path = path
        self._wanted = wanted
        self._descriptor: int | None = None
        self._position = 0
        self._broken = False

    @property
    def end(self) -> int:
        """Where in the file the first record begins that was not read."""
        return contract.HEADER_BYTES + self._position

    @property
    def broken(self) -> bool:
        """Whether the rest of the file cannot be read."""
        return self._broken

    def skip_to(self, end: int) -> None:
        """Pass over everything before `end`, as another reader of the same file gives it."""
        self._position = max(self._position, end - contract.HEADER_BYTES)

    def read(self) -> list[tuple[int, Record]] | None:
        """Times and records committed since the last call, from about a megabyte; None: nothing is new.

        Records that cannot be decoded are passed over. A file that is no report file is not read again.
        """
        if self._broken or not self._open():
            return None
        assert self._descriptor is not None
        try:
            head = os.pread(self._descriptor, contract.HEADER_BYTES, 0)
            size = min(contract.committed_length(head) - self._position, _READ_BYTES)
            if size <= 0:
                return None
            chunk = os.pread(self._descriptor, size, contract.HEADER_BYTES + self._position)
            found: list[tuple[int, Record]] = []
            end = 0
            for end, frame in contract.frames(chunk):  # noqa: B007 - the last one counts
                if self._wanted(frame):
                    with contextlib.suppress(ValueError):
                        record = contract.parse(frame)
                        found += [] if record is None else [record]
            if end == 0 and size == _READ_BYTES:
                raise ValueError("a record larger than a megabyte")
            self._position += end
            return found if end else None
        except (OSError, ValueError):
            self._broken = True
            return None

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
        self,
        generation: int,
        files: dict[int, Path],
        put: Put,
        watch: StallWatch,
        watermarks: WatermarkLog | None = None,
        measured: Callable[[int, int, MetricRecord], None] = lambda _rank, _at, _record: None,
    ) -> None:
        """`measured` takes metrics that records other than metrics hold, with rank and time."""
        self._measured = measured
        self._generation = generation
        self._watch = watch
        self.watermarks = WatermarkLog() if watermarks is None else watermarks
        self._tails = {rank: RecordTail(path, _wanted_by(watch)) for rank, path in files.items()}
        self._put = put
        self.step: int | None = None
        #: steps of earlier generations that `step` includes without proof that the script resumed
        self.assumed_steps = 0
        self.epoch: int | None = None
        self.phase = ""
        self.done: set[int] = set()
        self.unsaved = ""
        self.stopped: set[int] = set()
        #: the target that the trial has reached, so that its ranks left
        self.target: int | None = None
        self._began, self._merge_at = False, _MOST_ROWS
        self._fresh_rows: list[Consumed] = []
        # Records of checkpoints, with their times, that are reported after the ledger before them.
        self._checkpoints: list[tuple[int, Record]] = []
        self._num_samples: int | None = None
        self._num_epochs: int | None = None
        self._reported: dict[tuple[str, str], None] = {}
        self._num_warned = 0

    def read(self) -> None:
        """Read what is new in the ranks' files; reports are queued at once."""
        for rank, tail in self._tails.items():
            while (found := tail.read()) is not None:
                for at, record in found:
                    # Written by a user's process: a record with invalid values is passed over.
                    with contextlib.suppress(*_INVALID):
                        self._handle(rank, at, record)
        self._put_checkpoints()

    def resume_from(self, last: LedgerWatermark) -> None:
        """Begin behind what was reported up to `last`, and with what that left over."""
        for rank, tail in self._tails.items():
            tail.skip_to(last.ends.get(rank, 0))
        self._fresh_rows.extend(last.left)
        for at, record in last.saves:
            with contextlib.suppress(*_INVALID):
                self._handle(min(self._tails), at, record)

    def add(self, rank: int, at: int, record: Record) -> None:
        """Add a record that the supervisor made itself, from a rank's output or checkpoint folder."""
        self._handle(rank, at, record)
        self._put_checkpoints()

    @property
    def tails(self) -> dict[int, RecordTail]:
        """The readers of the report files, by rank."""
        return self._tails

    def close(self) -> None:
        """Close the files."""
        for tail in self._tails.values():
            tail.close()
        self.watermarks.close()

    @property
    def reached(self) -> int | None:
        """The last step that counts as progress of the job."""
        return None if self.step is None else self.step - self.assumed_steps

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
        """Queue the rows consumed since the last call, in parts; returns whether there were any."""
        if not self._fresh_rows:
            return False
        merged = merge(self._fresh_rows)
        self._fresh_rows, self._merge_at = list(merged[_MOST_ROWS:]), _MOST_ROWS
        rows = [
            LedgerRow(epoch=r.epoch, lo=r.lo, hi=r.hi, times=r.times) for r in merged[:_MOST_ROWS]
        ]
        ends = {rank: tail.end for rank, tail in self._tails.items()}
        left, saves = tuple(self._fresh_rows), tuple(self._checkpoints)

        def make(seq: int) -> Report:
            self.watermarks.write(LedgerWatermark(seq, ends, left, saves))
            return LedgerReport(
                seq=seq,
                generation=self._generation,
                num_samples=self._num_samples,
                rows=rows,
                added=True,
            )

        put(make)
        return True

    def warn_not_finite(self, rank: int, at: int, record: MetricRecord) -> None:
        """Warn of values that cannot be drawn, once for each metric."""
        for name, value in record.values.items():
            if isinstance(value, str):
                message = f"metric {name} is not finite: {value} at step {record.step}"
                self._warn("metric", name, rank, message, at)

    def _put_checkpoints(self) -> None:
        """Report checkpoints behind the ledger rows that were consumed before them.

        Ranks are read one after another: when the first reports a checkpoint, the others' last steps
        before it are read in the same turn.
        """
        if self._checkpoints:
            while self.put_ledger(self._put):
                pass
            waiting, self._checkpoints = self._checkpoints, []
            for at, record in waiting:
                self._put(self._checkpoint_report(at, record))

    # -- one kind of record each, see `_HANDLERS` -----------------------------------------------------

    def _handle(self, rank: int, at: int, record: Record) -> None:
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, rank, at, record)

    def _step(self, _rank: int, _at: int, record: contract.StepRecord) -> None:
        self.step = max(self.step or 0, record.step)
        self.epoch = record.epoch
        self.phase = "ready"
        self._watch.stepped(record.step)

    def _ledger(self, _rank: int, _at: int, record: contract.LedgerRecord) -> None:
        self._fresh_rows.append(Consumed(record.epoch, record.lo, record.hi))
        if len(self._fresh_rows) > self._merge_at:
            # The control plane is away: slices of this node's ranks lie side by side.
            self._fresh_rows = list(merge(self._fresh_rows))
            self._merge_at = max(_MOST_ROWS, 2 * len(self._fresh_rows))

    def _phase(self, _rank: int, _at: int, record: contract.PhaseRecord) -> None:
        self.phase = record.name
        self._watch.entered(record.name)

    def _done(self, rank: int, _at: int, record: contract.DoneRecord) -> None:
        self.done.add(rank)
        self.unsaved = self.unsaved or record.unsaved
        self._watch.ended()

    def _stopped(self, rank: int, _at: int, record: contract.StoppedRecord) -> None:
        self.stopped.add(rank)
        self.target = record.target
        self._watch.ended()

    def _metric(self, rank: int, at: int, record: MetricRecord) -> None:
        """Only metrics from output lines pass here; those of report files are read by `MetricTail`."""
        self._watch.measured()
        self.warn_not_finite(rank, at, record)

    def _checkpoint(self, _rank: int, at: int, record: contract.CheckpointRecord) -> None:
        self._checkpoint_report(at, record)  # raises for invalid values here, not when it is sent
        if self._is_new("checkpoint", record.path):
            self._checkpoints.append((at, record))

    def _gone(
        self, _rank: int, at: int, record: contract.RemovedRecord | contract.QuarantinedRecord
    ) -> None:
        # Behind the report of its commit: before it, the checkpoint would count as one that exists.
        if self._is_new(record.kind, record.path):
            self._checkpoints.append((at, record))

    def _copy(
        self, _rank: int, at: int, record: contract.UploadedRecord | contract.UploadingRecord
    ) -> None:
        self._checkpoint_report(at, record)  # raises for invalid values here, not when it is sent
        self._checkpoints.append((at, record))

    def _report_of_trial(self, _rank: int, at: int, record: contract.ReportRecord) -> None:
        # Behind the report of its checkpoint.
        self._checkpoint_report(at, record)
        self._checkpoints.append((at, record))

    def _restored(self, _rank: int, _at: int, record: contract.RestoredRecord) -> None:
        if not self._began:
            self._began = True
            self._report(
                RestoredReport,
                path=record.path,
                step=record.step,
                epoch=record.epoch,
                position=record.position,
                exact=record.exact,
                took_s=record.restore_s,
            )

    def _data(self, rank: int, at: int, record: contract.DataRecord) -> None:
        self._num_samples, self._num_epochs = record.num_samples, record.epochs
        start = contract.RestoredRecord(path=None, epoch=record.epoch, position=record.position)
        self._restored(rank, at, start)

    def _guard(self, _rank: int, _at: int, record: contract.GuardRecord) -> None:
        self._report(GuardReport, **{**_fields(record), "ranks": list(record.ranks)})

    def _stragglers(self, rank: int, at: int, record: contract.StragglersRecord) -> None:
        self._per_rank("straggler_score", rank, at, record.scores)

    def _shares(self, rank: int, at: int, record: contract.SharesRecord) -> None:
        self._per_rank("batch_share", rank, at, record.shares)

    def _per_rank(self, name: str, first: int, at: int, values: Sequence[Any]) -> None:
        """Make values by rank, which the first rank of a world wrote, a metric of each rank."""
        for rank, value in enumerate(values, first):
            self._measured(rank, at, MetricRecord(step=self.step or 0, values={name: float(value)}))

    def _weight_sync(self, rank: int, at: int, record: contract.WeightSyncRecord) -> None:
        values = observed("weight_sync_seconds", record.seconds)
        values["weight_sync_bytes"] = float(record.bytes)
        self._measured(rank, at, MetricRecord(step=record.step, values=values))

    def _compression(self, rank: int, at: int, record: contract.CompressionRecord) -> None:
        times = ", ".join(f"{name} {value:.3g} s" for name, value in record.median_s.items())
        said = f"compression auto chose {record.method}; median step with each: {times}"
        self._warn("compression", record.method, rank, said, at)

    def _profile(self, _rank: int, at: int, record: contract.ProfileRecord) -> None:
        self._report(ProfileReport, **{**_fields(record), "at": at})

    def _save_begun(self, _rank: int, _at: int, record: contract.SaveBegunRecord) -> None:
        self._report(SaveBegunReport, **_fields(record))

    def _warning(self, rank: int, at: int, record: contract.WarningRecord) -> None:
        self._warn("warn", record.message, rank, record.message, at, record.code)

    def _warn(self, kind: str, what: str, rank: int, message: str, at: int, code: str = "") -> None:
        # A script that warns at every step must not fill the job's event history.
        if (kind, what) in self._reported or self._num_warned >= _MOST_WARNINGS:
            return
        self._num_warned += 1
        self._is_new(kind, what)
        known = code if code == contract.SAVE_FAILED else ""  # scripts write records, too
        self._report(WarningReport, rank=rank, message=message, code=known, at=at)

    def _report(self, kind: Callable[..., Report], **fields: Any) -> None:
        """Queue a report of this generation. Invalid fields raise here, not when it is sent."""
        fields["generation"] = self._generation
        kind(seq=0, **fields)
        self._put(lambda seq: kind(seq=seq, **fields))

    def _is_new(self, kind: str, what: str) -> bool:
        """Remember that this is reported; False when it was before.

        All ranks write it at about the same time, so only the newest have to be remembered.
        """
        if (kind, what) in self._reported:
            return False
        self._reported[kind, what] = None
        if len(self._reported) > _REMEMBERED:
            del self._reported[next(iter(self._reported))]
        return True

    def _checkpoint_report(self, at: int, record: Record) -> Callable[[int], Report]:
        generation = self._generation
        if isinstance(record, contract.RemovedRecord):
            path = record.path
            return lambda seq: CheckpointRemovedReport(seq=seq, generation=generation, path=path)
        if isinstance(record, contract.QuarantinedRecord):
            path, why = record.path, record.why
            return lambda seq: QuarantinedReport(
                seq=seq, generation=generation, path=path, message=why
            )
        if isinstance(record, contract.UploadedRecord | contract.UploadingRecord):
            return _copy_report(generation, at, record)
        if isinstance(record, contract.ReportRecord):
            return _trial_report(generation, at, record)
        assert isinstance(record, contract.CheckpointRecord)
        fields: dict[str, Any] = {
            "generation": generation,
            "step": record.step,
            "epoch": record.epoch,
            "path": record.path,
            "size_bytes": record.bytes,
            "took_s": record.save_s,
            "metrics": finite(record.metrics),
            "at": at,
        }
        return lambda seq: CheckpointReport(seq=seq, **fields)


def _seed(here: GenerationRecords, _rank: int, _at: int, record: contract.SeedRecord) -> None:
    here._report(SeedReport, seed=str(record.seed))


def _params(here: GenerationRecords, _rank: int, _at: int, record: contract.ParamsRecord) -> None:
    # What a rank wrote is not known to be flat, or small.
    flat = params_of(ParamSource.SCRIPT, record.values)
    here._report(ParamsReport, values={one.name: one.value for one in flat})


_HANDLERS: Mapping[type[Record], Callable[[GenerationRecords, int, int, Any], None]] = {
    contract.StepRecord: GenerationRecords._step,
    contract.LedgerRecord: GenerationRecords._ledger,
    contract.PhaseRecord: GenerationRecords._phase,
    contract.DoneRecord: GenerationRecords._done,
    contract.StoppedRecord: GenerationRecords._stopped,
    contract.MetricRecord: GenerationRecords._metric,
    contract.CheckpointRecord: GenerationRecords._checkpoint,
    contract.ReportRecord: GenerationRecords._report_of_trial,
    contract.RemovedRecord: GenerationRecords._gone,
    contract.QuarantinedRecord: GenerationRecords._gone,
    contract.UploadingRecord: GenerationRecords._copy,
    contract.UploadedRecord: GenerationRecords._copy,
    contract.RestoredRecord: GenerationRecords._restored,
    contract.DataRecord: GenerationRecords._data,
    contract.SeedRecord: _seed,
    contract.ParamsRecord: _params,
    contract.GuardRecord: GenerationRecords._guard,
    contract.ProfileRecord: GenerationRecords._profile,
    contract.SaveBegunRecord: GenerationRecords._save_begun,
    contract.WarningRecord: GenerationRecords._warning,
    contract.StragglersRecord: GenerationRecords._stragglers,
    contract.SharesRecord: GenerationRecords._shares,
    contract.WeightSyncRecord: GenerationRecords._weight_sync,
    contract.CompressionRecord: GenerationRecords._compression,
}


class SideRecords(GenerationRecords):
    """Records of a role that is not the job's first: its steps and checkpoints are not the job's."""

    _NOT_THE_JOBS = (
        contract.CheckpointRecord,
        contract.SaveBegunRecord,
        contract.ReportRecord,
        contract.RestoredRecord,
        contract.DataRecord,
        contract.SeedRecord,
        contract.ParamsRecord,
        contract.QuarantinedRecord,
        contract.RemovedRecord,
        contract.UploadingRecord,
        contract.UploadedRecord,
    )

    @property
    def reached(self) -> int | None:
        """No step of this role counts for the job."""
        return None

    def heartbeat(self) -> Heartbeat:
        """A sign of life without a step."""
        return Heartbeat(generation=self._generation, phase=self.phase)

    def put_ledger(self, put: Put) -> bool:
        """Queue nothing: what this role reads is not the job's data."""
        self._fresh_rows = []
        return False

    def _handle(self, rank: int, at: int, record: Record) -> None:
        if isinstance(record, contract.GuardRecord):
            # Its ranks are numbered in the role, those of the job's events in the gang.
            record = dataclasses.replace(record, ranks=())
        if not isinstance(record, self._NOT_THE_JOBS):
            super()._handle(rank, at, record)


class MetricTail:
    """The same files, read for metrics alone, and only as fast as they are shipped.

    `check` receives each record with its rank and time before it is shipped.
    """

    def __init__(
        self,
        files: dict[int, Path],
        check: Callable[[int, int, MetricRecord], None] = lambda _rank, _at, _record: None,
    ) -> None:
        self._files = files
        self.check = check
        self._tails = {rank: RecordTail(path, contract.is_metric) for rank, path in files.items()}
        self._waiting: list[MetricPoint] = []
        self._trimmed = {rank: TrimmedFile(contract.HEADER_BYTES) for rank in files}

    def add(self, rank: int, at: int, record: MetricRecord) -> None:
        """Add a point that the supervisor made itself; dropped where too many wait."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(_point(rank, at, record))

    def trim(self, read: dict[int, RecordTail]) -> list[int]:
        """Free the disk blocks that this and the readers in `read` have behind them.

        Metrics are passed over when `BACKLOG_BYTES` of them wait to be shipped. Returns the ranks that
        lost some.
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

    def put(self, put: Put, generation: int, leads: bool) -> bool:
        """Queue the next points as one report; returns whether there were any.

        `services.lifecycle.reports` stores it. `leads`: the steps of these ranks are those of the job.
        """
        points = self.take(NUM_POINTS)
        if points:
            put(
                lambda seq: MetricsReport(
                    seq=seq, generation=generation, points=points, leads=leads
                )
            )
        return bool(points)

    def take(self, limit: int) -> list[MetricPoint]:
        """Up to `limit` points that were not taken before."""
        if len(self._waiting) < limit:
            for rank, tail in self._tails.items():
                for at, record in tail.read() or ():
                    with contextlib.suppress(*_INVALID):
                        assert isinstance(record, MetricRecord)
                        self._waiting.append(_point(rank, at, record))
                        self.check(rank, at, record)
        taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return taken

    def close(self) -> None:
        """Close the files."""
        for tail in self._tails.values():
            tail.close()


def _copy_report(
    generation: int, at: int, record: contract.UploadedRecord | contract.UploadingRecord
) -> Callable[[int], Report]:
    stored = isinstance(record, contract.UploadedRecord)
    failed = isinstance(record, contract.UploadingRecord) and record.failed
    fields: dict[str, Any] = {
        "generation": generation,
        "name": record.name,
        "state": "stored" if stored else "failed" if failed else "uploading",
        "size_bytes": record.bytes,
        "took_s": getattr(record, "took_s", None),
        "at": at,
    }
    CheckpointCopyReport(seq=0, **fields)
    return lambda seq: CheckpointCopyReport(seq=seq, **fields)


def _trial_report(
    generation: int, at: int, record: contract.ReportRecord
) -> Callable[[int], Report]:
    fields: dict[str, Any] = {
        "generation": generation,
        "unit": record.unit,
        "value": record.value,
        "metrics": {replace_unencodable(name): one for name, one in record.metrics.items()},
        "checkpoint": record.checkpoint,
        "final": record.final,
        "at": at,
    }
    TrialReport(seq=0, **fields)
    return lambda seq: TrialReport(seq=seq, **fields)


def _wanted_by(watch: StallWatch) -> Callable[[bytes], bool]:
    """Tells frames of metrics from others; metrics are only counted as signs of life here."""

    def wanted(frame: bytes) -> bool:
        if contract.is_metric(frame):
            watch.measured()
            return False
        return True

    return wanted


def _fields(record: Any) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}


def _point(rank: int, at: int, record: MetricRecord) -> MetricPoint:
    return MetricPoint(rank, record.step, at, finite(record.values))


def finite(values: Mapping[str, float | str]) -> dict[str, float]:
    """Values that JSON can carry, under names that it can: what is not finite is left out."""
    found = {replace_unencodable(name): float(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}
