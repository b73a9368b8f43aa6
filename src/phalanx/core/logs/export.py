"""Lines as other log stores take them: Loki, Elasticsearch, and OpenTelemetry (OTLP) as JSON.

The text of a line is what the rank printed, without the end of the line. JSON has text only: bytes that are
no UTF-8 are replaced, as `phalanx logs` replaces them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from phalanx.core.logs.levels import LogLevel, level_of
from phalanx.core.logs.lines import OutputLine

_SEVERITY = {
    LogLevel.DEBUG: 5,
    LogLevel.INFO: 9,
    LogLevel.WARNING: 13,
    LogLevel.ERROR: 17,
    LogLevel.CRITICAL: 21,
}
_STREAMS = {"out": "stdout", "err": "stderr"}


@dataclass(frozen=True, slots=True)
class ExportedLine:
    """A line with its job."""

    job: int  # job number
    project: str  # name of the project
    line: OutputLine

    @property
    def text(self) -> str:
        """The text as it is sent."""
        return self.line.data.decode("utf-8", errors="replace")

    @property
    def level(self) -> LogLevel | None:
        """The level that the line names; of what tells of missing bytes, a warning."""
        return LogLevel.WARNING if self.line.missing is not None else level_of(self.line.data)

    def facts(self) -> dict[str, Any]:
        """Where the line comes from."""
        attempt, generation, rank, stream = self.line.key
        found = {
            "job": self.job,
            "attempt": attempt,
            "generation": generation,
            "rank": rank,
            "stream": stream,
            "offset": self.line.offset,
        }
        if self.line.partial:
            found["partial"] = True
        if self.line.missing is not None:
            found["gap"] = self.line.missing.cause
            found["missing_bytes"] = self.line.missing.num_bytes
        return found


def loki_body(lines: Sequence[ExportedLine], cluster: str) -> bytes:
    """A request of `/loki/api/v1/push`: few labels, the rest as structured metadata.

    Loki drops a line with the time and the text of another one of its stream, so the times of the lines of
    one segment differ by a microsecond, and those of different segments in their nanoseconds. They are the
    same when a line is sent again.
    """
    streams: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)
    for one in lines:
        stamp = (one.line.at + one.line.index) * 1000 + one.line.segment % 1000
        more = {name: _word(value) for name, value in one.facts().items() if name != "stream"}
        if one.level is not None:
            more["level"] = one.level.word
        streams[one.project, one.line.key[3]].append([str(stamp), one.text, more])
    found: list[dict[str, Any]] = [
        {"stream": {**_named(cluster), "project": project, "stream": stream}, "values": values}
        for (project, stream), values in streams.items()
    ]
    return _json({"streams": found})


def bulk_body(lines: Sequence[ExportedLine], cluster: str, index: str) -> bytes:
    """A request of `_bulk` of Elasticsearch. Sent again, a line replaces itself by its id."""
    parts = []
    for one in lines:
        document = {
            "@timestamp": datetime.fromtimestamp(one.line.at / 1e6, UTC).isoformat(),
            "message": one.text,
            "phalanx": {**_named(cluster), "project": one.project, **one.facts()},
        }
        if one.level is not None:
            document["log"] = {"level": one.level.word}
        parts += [{"index": {"_index": index, "_id": line_id(one, cluster)}}, document]
    return b"".join(_json(one) + b"\n" for one in parts)


def line_id(one: ExportedLine, cluster: str) -> str:
    """The id of a line in Elasticsearch: its cluster and its place in the output of its job."""
    attempt, generation, rank, stream = one.line.key
    place = f"{one.job}-{attempt}-{generation}-{rank}-{stream}-{one.line.offset}"
    kind = "" if one.line.missing is None else f"-{one.line.missing.cause}"
    return f"{cluster}:{place}{kind}" if cluster else f"{place}{kind}"


def otlp_body(lines: Sequence[ExportedLine], cluster: str, now: int) -> bytes:
    """A request of `/v1/logs` of OTLP over HTTP as JSON, with one resource for each job."""
    by_job: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for one in lines:
        by_job[one.job, one.project].append(_log_record(one, now))
    found = []
    for (job, project), records in by_job.items():
        names: dict[str, Any] = {
            "service.name": "phalanx",
            "phalanx.project": project,
            "phalanx.job": job,
        }
        if cluster:
            names["phalanx.cluster"] = cluster
        scope: dict[str, Any] = {"scope": {"name": "phalanx.logs"}, "logRecords": records}
        found.append({"resource": {"attributes": _attributes(names)}, "scopeLogs": [scope]})
    return _json({"resourceLogs": found})


def _log_record(one: ExportedLine, now: int) -> dict[str, Any]:
    facts = one.facts()
    stream = facts.pop("stream")
    facts.pop("job")
    names = {f"phalanx.{name}": value for name, value in facts.items()}
    record: dict[str, Any] = {
        "timeUnixNano": str(one.line.at * 1000),
        "observedTimeUnixNano": str(now * 1000),
        "body": {"stringValue": one.text},
        "attributes": _attributes({"log.iostream": _STREAMS.get(stream, stream), **names}),
    }
    if one.level is not None:
        record |= {"severityNumber": _SEVERITY[one.level], "severityText": one.level.name}
    return record


def _attributes(names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP writes them: whole numbers are texts in JSON."""

    def value(given: Any) -> dict[str, Any]:
        if isinstance(given, bool):
            return {"boolValue": given}
        return {"intValue": str(given)} if isinstance(given, int) else {"stringValue": given}

    return [{"key": name, "value": value(one)} for name, one in names.items()]


def _named(cluster: str) -> dict[str, str]:
    return {"cluster": cluster} if cluster else {}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
