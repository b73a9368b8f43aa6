"""Lines of ranks that report nothing themselves, turned into the records that others write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phalanx.core.telemetry.line_patterns import MOST_CHARACTERS, LinePattern, LineReader
from phalanx.kit.clock import Clock
from phalanx.supervise.ranks.checkpoint_folder import ScriptProgress
from phalanx.supervise.ranks.rank import LocalRank
from phalanx.supervise.ranks.records import GenerationRecords, MetricTail

Say = Callable[[int, dict[str, Any]], None]


class StreamLines:
    """One stream of one rank, cut into lines. A carriage return ends one too, as progress bars print it.

    `say` is given (rank, record).
    """

    def __init__(self, rank: int, reader: LineReader, clock: Clock, say: Say) -> None:
        self._rank, self._reader, self._clock, self._say = rank, reader, clock, say
        self._rest = b""

    def hear(self, data: bytes) -> None:
        """Take in what was read from the pipe."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._take(line)
        # What is longer than any line that is read is let go; UTF-8 takes up to four bytes.
        self._rest = self._rest[: 4 * MOST_CHARACTERS]

    def _take(self, line: bytes) -> None:
        spoken = self._reader.read(line.decode("utf-8", "replace"))
        if spoken is None:
            return
        at = self._clock.now()
        if spoken.stepped:
            body = {"k": "step", "step": spoken.step, "epoch": spoken.epoch, "consumed": 0, "t": at}
            self._say(self._rank, body)
            # What it does until the next line is unknown: an evaluation must not count as a hang.
            self._say(self._rank, {"k": "phase", "name": "ready", "t": at})
        if spoken.values:
            values = dict(spoken.values)
            self._say(self._rank, {"k": "metric", "step": spoken.step, "values": values, "t": at})


class LineMetrics:
    """What one generation says without the library: in lines, and in the folder that it keeps."""

    def __init__(
        self, lines: Sequence[str], clock: Clock, records: GenerationRecords, metrics: MetricTail
    ) -> None:
        """`lines` are patterns of `core.lines`."""
        self._patterns = [LinePattern.parse(text) for text in lines]
        self._clock, self._records, self._metrics = clock, records, metrics
        self._latest: dict[str, float | str] = {}

    def attend(self, rank: LocalRank) -> None:
        """Listen to a rank whose pipes were opened."""
        if not self._patterns:
            return
        # Both streams count as one: a step named on one of them holds for what the other says.
        reader = LineReader(self._patterns)
        for stream in rank.streams:
            stream.listener = StreamLines(rank.rank, reader, self._clock, self._said).hear

    def found(self, record: dict[str, Any]) -> None:
        """Take in what the watcher of the folder says."""
        self._records.said(0, record)

    def progress(self) -> ScriptProgress:
        """The newest step and metrics; called by the folder's thread too."""
        return ScriptProgress(self._records.step, dict(self._latest))

    def _said(self, rank: int, record: dict[str, Any]) -> None:
        self._records.said(rank, record)
        if record["k"] == "metric":
            self._metrics.said(rank, record)
            self._latest.update(record["values"])
