"""The output of verbs: tables, facts and JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from phalanx.kit.clock import SystemClock
from phalanx.kit.terminal import unguarded, visible_line
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from pydantic import BaseModel

    from phalanx.schemas.api.jobs import EventView

_BARS = "▁▂▃▄▅▆▇█"


def note(text: str) -> None:
    """Print a progress note on stderr, apart from the data on stdout."""
    print(text, file=sys.stderr, flush=True)


def print_line(label: str, text: str, stream: TextIO, *, raw: bool = False) -> None:
    """Print one line of a rank's output: without control sequences on a terminal, unless `raw`."""
    if raw:
        stream = unguarded(stream)
    elif stream.isatty():
        text = visible_line(text)
    print(label + text, file=stream, flush=True)


def listing(
    found: Sequence[Any], json: bool, columns: Mapping[str, Callable[[Any], Any]], empty: str
) -> None:
    """Print JSON, or a table with a row for each value; a column is its heading and its cells."""
    if json:
        as_json(found)
        return
    table(list(columns), ([cell(one) for cell in columns.values()] for one in found), empty)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Print aligned columns; separated by tabs when stdout is not a terminal."""
    lines = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not lines:
        note(empty)
        return
    if not sys.stdout.isatty():
        print("\t".join(headings))
        for line in lines:
            print("\t".join(line))
        return
    _rich_table(headings, lines)


def _rich_table(headings: Sequence[str], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for line in lines:
        shown.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in line))
    Console().print(shown)


STATE_STYLES = {
    "waiting": "yellow",
    "queued": "yellow",
    "starting": "cyan",
    "running": "green",
    "recovering": "magenta",
    "stopping": "yellow",
    "paused": "yellow",
    "succeeded": "bold green",
    "failed": "bold red",
    "cancelled": "yellow",
    "valid": "green",
    "quarantined": "red",
}


def as_json(value: BaseModel | Sequence[BaseModel] | Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Models, also in a list, as dictionaries for JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print a name and its value on each line; pairs without a value are left out."""
    shown = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *rest = value.splitlines() or [""]
        print(f"{name:<{width}}  {first}")
        for line in rest:
            print(f"{'':<{width}}  {line}")


def holders(jobs: Iterable[int]) -> str:
    """The labels of jobs, separated by spaces."""
    return " ".join(f"j-{num}" for num in jobs)


_WARNINGS = ("warned", "software_changed", "inputs_changed", "residency_left")
_SENTENCES: dict[str, Callable[[EventView], str]] = {
    "residency_restored": lambda event: "is where its residency allows it again",
    "settings_changed": lambda event: f"by {event.actor}: {changes_in_words(event.data)}",
}
_KEEPING = ("archived", "unarchived", "pinned", "unpinned", "expired")


def _of_what(event: EventView) -> str:
    """What of a job was pinned or has expired, in words."""
    if event.kind == "expired":
        count = event.data.get("items")
        by = ", by the quota of stored output" if event.data.get("cause") == "quota" else ""
        return f": {'' if count is None else f'{count} '}{event.data.get('what')}{by}"
    path = event.data.get("checkpoint")
    return f": checkpoint {path}" if path else ""


def notice(event: EventView) -> str | None:
    """A message for events that matter beside the states: warnings, bad checkpoints, resumes."""
    if event.kind in _WARNINGS:
        return f"warning: {event.data.get('message', '')}"
    if event.kind in _SENTENCES:
        return _SENTENCES[event.kind](event)
    if event.kind == "cloned":
        begins = event.data.get("checkpoint")
        return f"a clone of j-{event.data.get('job')}" + (f", from {begins}" if begins else "")
    if event.kind == "resume_chosen":
        return _beginning(event.data)
    if event.kind == "templated":
        values = ", ".join(f"{name}={one}" for name, one in event.data.get("set", {}).items())
        which = f"{event.data.get('template')}, version {event.data.get('version')}"
        return f"from template {which}" + (f": {values}" if values else "")
    if event.kind == "checkpoint_quarantined":
        return f"warning: a checkpoint was quarantined: {event.data.get('message', '')}"
    if event.kind == "stacks":
        ranks = ", ".join(str(one["rank"]) for one in event.data.get("ranks", []))
        return f"stacks of ranks {ranks} were stored: phalanx stacks JOB --kept"
    if event.kind == "profiled":
        return f"profiled: {event.data.get('finding', '')}: {event.data.get('said', '')}"
    if event.kind in _KEEPING:
        return f"{event.kind} by {event.actor}{_of_what(event)}"
    if event.kind == "save_begun":
        done = "failed" if event.data.get("failed") else "began"
        return f"a requested save {done} at step {event.data.get('step')}"
    if event.kind == "restored" and event.data.get("path"):
        exact = "" if event.data.get("exact", True) else ", not exactly"
        return f"resumed from step {event.data.get('step')}{exact}"
    return None


def _beginning(data: Mapping[str, Any]) -> str:
    """Which checkpoint of another job a new one begins from."""
    if data.get("path") is None:
        return "begins anew: no job of this name has a checkpoint"
    of = f" of j-{data['job']}" if data.get("job") else ""
    return f"begins from {data['path']}{of}" + (
        f", step {data['step']}" if data.get("step") else ""
    )


def changes_in_words(data: Mapping[str, Any]) -> str:
    """The changed settings of an event: `priority 50 → 80`."""
    before, after = data.get("before", {}), data.get("after", {})
    return ", ".join(f"{name} {_said(before.get(name))} → {_said(after[name])}" for name in after)


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "any"
    return "none" if value is None else str(value)


def ago(at: datetime | None) -> str:
    """The time since a moment, or an empty text."""
    if at is None:
        return ""
    return format_duration(max(0.0, (_now() - at).total_seconds()))


def lasted(start: datetime | None, end: datetime | None) -> str:
    """The time from `start` to `end`, or to now; empty when it has not started."""
    if start is None:
        return ""
    return format_duration(max(0.0, ((end or _now()) - start).total_seconds()))


def clock_time(at: datetime) -> str:
    """A moment in local time, with milliseconds."""
    return at.astimezone().strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def moment(at: datetime) -> str:
    """A moment in local time to the second, with the date when that is not today."""
    here = at.astimezone()
    today = here.date() == _now().astimezone().date()
    return here.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)


def number(value: float | None) -> str:
    """The value of a metric with four significant digits."""
    return "-" if value is None else f"{value:.4g}"


def sparkline(values: Sequence[float | None], width: int = 32) -> str:
    """A series as one line of bars."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    step = max(1, -(-len(known) // width))
    points = [
        sum(known[i : i + step]) / len(known[i : i + step]) for i in range(0, len(known), step)
    ]
    low, high = min(points), max(points)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((point - low) * scale)] for point in points)
