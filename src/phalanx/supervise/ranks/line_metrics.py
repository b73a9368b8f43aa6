"""Steps and metrics from the output lines of ranks that do not use the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.core.contract.records import MetricRecord, PhaseRecord, Record, StepRecord
from phalanx.core.telemetry.line_patterns import MOST_CHARACTERS, LinePattern, LineReader
from phalanx.kit.clock import Clock
from phalanx.supervise.ranks.checkpoint_folder import ScriptProgress
from phalanx.supervise.ranks.rank import LocalRank
from phalanx.supervise.ranks.records import GenerationRecords, MetricTail

Add = Callable[[int, int, Record], None]
"""Takes the rank, the time in microseconds UTC, and the record."""


class StreamLines:
    """One stream of one rank, cut into lines. A carriage return ends a line, too: see progress bars."""

    def __init__(
        self, rank: int, reader: LineReader, clock: Clock, add: Add, counted: Callable[[], None]
    ) -> None:
        """`counted` is called before a step is added that is a count of lines."""
        self._rank, self._reader, self._clock, self._add = rank, reader, clock, add
        self._counted = counted
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
            # What the rank does until the next line is unknown: an evaluation must not count as a hang.
            self._add(self._rank, at, PhaseRecord("ready"))
        if found.values:
            self._add(self._rank, at, MetricRecord(step=found.step, values=dict(found.values)))


class RecordsFromOutput:
    """The records of one generation that its ranks did not write: from output lines and their folder."""

    def __init__(
        self, lines: Sequence[str], clock: Clock, records: GenerationRecords, metrics: MetricTail
    ) -> None:
        """`lines` are patterns of `core.telemetry.line_patterns`."""
        self._patterns = [LinePattern.parse(text) for text in lines]
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
        for stream in rank.streams:
            lines = StreamLines(rank.rank, reader, self._clock, self._add, self._counted)
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
