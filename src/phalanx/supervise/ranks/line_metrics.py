"""Steps and metrics from the output lines of ranks that do not use the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.core.contract.records import (
    MetricRecord,
    Record,
    ReportRecord,
    StepRecord,
    WarningRecord,
)
from phalanx.core.contract.trial import TrialContract
from phalanx.core.telemetry.line_patterns import (
    MOST_CHARACTERS,
    LinePattern,
    LineReader,
    ParsedLine,
    names_metric,
)
from phalanx.kit.clock import Clock
from phalanx.supervise.ranks.checkpoint_folder import ScriptProgress
from phalanx.supervise.ranks.rank import LocalRank
from phalanx.supervise.ranks.records import GenerationRecords, MetricTail

Add = Callable[[int, int, Record], None]
"""Takes the rank, the time in microseconds UTC, and the record."""


# Reports of one trial from its output; a script that prints without end must not fill the database.
MOST_REPORTS = 100_000
MAX_UNIT = 2**53


class OutputReports:
    """The reports of a trial with a script that prints its objective."""

    def __init__(self, trial: TrialContract) -> None:
        self._trial = trial
        self._last = 0
        self._from_zero = False
        self._position: float | str | None = None
        self._num_left = MOST_REPORTS

    def read(self, found: ParsedLine) -> ReportRecord | WarningRecord | None:
        """The report that a line makes; None where it has no objective, or its unit has one already."""
        value = found.values.get(self._trial.objective)
        unit = self._unit(found)
        if value is None or unit is None or unit <= self._last:
            return None
        self._last = unit
        self._num_left -= 1
        if self._num_left < 0:
            said = f"the output has more than {MOST_REPORTS:,} reports; later ones are not read"
            return WarningRecord(said) if self._num_left == -1 else None
        return ReportRecord(unit=unit, value=value, metrics=dict(found.values))

    def _unit(self, found: ParsedLine) -> int | None:
        unit = self._trial.unit
        if unit in ("sample", "token"):
            self._position = found.values.get(unit, self._position)
            known = isinstance(self._position, int | float) and abs(self._position) < MAX_UNIT
            return int(self._position) if known and self._position is not None else None
        if unit != "epoch" or not found.has_epoch:
            return found.step
        # A script that prints epoch 0 has completed one epoch by then.
        self._from_zero = self._from_zero or found.epoch == 0
        return found.epoch + self._from_zero


class StreamLines:
    """One stream of one rank, cut into lines. A carriage return ends a line, too: see progress bars."""

    def __init__(
        self,
        rank: int,
        reader: LineReader,
        clock: Clock,
        add: Add,
        counted: Callable[[], None],
        reports: OutputReports | None = None,
    ) -> None:
        """`counted` is called before a step is added that is a count of lines.

        `reports` makes the reports of a trial that prints its objective.
        """
        self._rank, self._reader, self._clock, self._add = rank, reader, clock, add
        self._counted, self._reports = counted, reports
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Read the lines that end in `data`, which was read from the pipe."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._read(line)
        # Longer lines than the reader takes are cut; UTF-8 takes up to four bytes a character.
        self._rest = self._rest[: 4 * MOST_CHARACTERS]

    def _read(self, line: bytes) -> None:
        found = self._reader.read(line.decode("utf-8", "replace"))
        if found is None:
            return
        at = self._clock.now()
        if found.counted:
            self._counted()
        if found.stepped:
            self._add(self._rank, at, StepRecord(step=found.step, epoch=found.epoch))
        if found.values:
            self._add(self._rank, at, MetricRecord(step=found.step, values=dict(found.values)))
        report = None if self._reports is None else self._reports.read(found)
        if report is not None:
            self._add(self._rank, at, report)


class RecordsFromOutput:
    """The records of one generation that its ranks did not write: from output lines and their folder."""

    def __init__(
        self,
        lines: Sequence[str],
        clock: Clock,
        records: GenerationRecords,
        metrics: MetricTail,
        trial: TrialContract | None = None,
    ) -> None:
        """`lines` are patterns of `core.telemetry.line_patterns`; `trial` that of ranks that lead."""
        self._patterns = [LinePattern.parse(text) for text in lines]
        reads = trial is not None and names_metric(self._patterns, trial.objective)
        self._reports = OutputReports(trial) if reads and trial is not None else None
        self._first = self._assumed = 0
        self._clock, self._records, self._metrics = clock, records, metrics
        self._latest: dict[str, float | str] = {}

    def begin(self, restored: int | None, last_known: int) -> None:
        """Set where the count of lines begins, for patterns without a step; called before the ranks start.

        `restored` is the step of the checkpoint that the script's folder was restored from, 0 for none. It
        is None where the job has no such folder: the script may resume on its own, so the count goes on
        from the job's `last_known` step, but that alone is no proof of progress.
        """
        self._first = last_known if restored is None else restored
        self._assumed = self._first if restored is None else 0

    def attach(self, rank: LocalRank) -> None:
        """Read the output of a rank after its pipes were opened."""
        if not self._patterns:
            return
        # One reader for both streams: a step named on one of them holds for values on the other.
        reader = LineReader(self._patterns, self._first)
        reports = self._reports if rank.rank == 0 else None
        for stream in rank.streams:
            lines = StreamLines(rank.rank, reader, self._clock, self._add, self._counted, reports)
            stream.listener = lines.feed

    def add_folder_record(self, at: int, record: Record) -> None:
        """Add a record of the watched checkpoint folder."""
        self._records.add(0, at, record)

    def progress(self) -> ScriptProgress:
        """The newest step and metrics; called by the folder's thread, too."""
        return ScriptProgress(self._records.step, dict(self._latest))

    def _counted(self) -> None:
        self._records.assumed_steps = self._assumed

    def _add(self, rank: int, at: int, record: Record) -> None:
        self._records.add(rank, at, record)
        if isinstance(record, MetricRecord):
            self._metrics.add(rank, at, record)
            self._latest.update(record.values)
