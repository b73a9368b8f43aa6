"""The verbs logs and events."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from phalanx.cli.client.session import connected, one_job
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobName, RoleName, duration, one_rank
from phalanx.core.logs.levels import LogLevel, parse_level
from phalanx.errors import UserError
from phalanx.kit.clock import SystemClock

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import EventView
    from phalanx.schemas.api.telemetry import LevelName, LogLine, MatchingLine
    from phalanx.sdk.client import PhalanxClient


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")]
OneRank = Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Only this rank.")]
Tail = Annotated[int | None, typer.Option("--tail", min=0, help="Only the last N lines.")]
OneStream = Annotated[str | None, typer.Option("--stream", help="Only this stream: out or err.")]
Grep = Annotated[
    str | None, typer.Option("--grep", "-g", help="Only lines with this text, in any case.")
]
Regex = Annotated[
    str | None, typer.Option("--regex", help="Only lines that match this RE2 expression.")
]
Level = Annotated[
    str | None,
    typer.Option(
        "--level", help="Only lines of this level or a higher one, such as warning or error."
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only lines from a time on: 2h, 2026-01-31, RFC 3339."),
]
Until = Annotated[
    str | None, typer.Option("--until", help="Only lines before a time, written as --since.")
]
Count = Annotated[bool, typer.Option("--count", help="Print the number of lines instead of them.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Keep control sequences when printing to a terminal.")
]


def logs(  # noqa: PLR0913
    ctx: typer.Context,
    job: JobName,
    follow: Follow = False,
    rank: OneRank = None,
    role: RoleName = None,
    tail: Tail = None,
    stream: OneStream = None,
    grep: Grep = None,
    regex: Regex = None,
    level: Level = None,
    since: Since = None,
    until: Until = None,
    count: Count = False,
    raw: Raw = False,
    json: AsJson = False,
) -> None:
    """Print the output of ranks in the order of arrival; of all ranks unless one is named.

    On a terminal, control sequences other than colours are removed; files and pipes get every byte. With
    --grep, --regex, --level, --since, --until or --count the stored output is searched: of a line that
    carriage returns begin again, such as a progress bar, the last state counts.
    """
    only = _stream(stream)
    found = {
        "text": grep,
        "regex": regex,
        "level": _level(level),
        "since": _moment("--since", since),
        "until": _moment("--until", until),
    }
    searched = count or any(one is not None for one in found.values())
    if searched and (follow or tail is not None):
        raise UserError("--follow and --tail do not search", "leave them out, or pipe into grep")
    with connected(ctx) as client:
        num = one_job(client, job)
        if searched:
            wanted = found | {"ranks": one_rank(rank), "stream": only, "role": role}
            _search(client, num, wanted, rank, count=count, raw=raw, json=json)
        elif follow:
            from phalanx.cli.client.follow import CtrlC, Follower, OutputFilter
            from phalanx.cli.terminal.screen import screen_for

            view = OutputFilter("all" if rank is None else rank, only, tail, role)
            screen = screen_for(job, raw=True) if raw else None
            raise typer.Exit(Follower(ctx.obj, client, num, view, CtrlC.NOTHING, screen).run())
        else:
            wanted = {"ranks": one_rank(rank), "stream": only, "role": role}
            _print_stored(client, num, wanted, tail, rank, raw=raw, json=json)


def _print_stored(
    client: PhalanxClient,
    num: int,
    wanted: dict[str, Any],
    tail: int | None,
    rank: int | None,
    *,
    raw: bool,
    json: bool,
) -> None:
    """Print what is stored, page by page."""
    lines: list[LogLine] = []
    cursor: str | None = None
    while True:
        page = client.logs(num, tail=tail if cursor is None else None, cursor=cursor, **wanted)
        if json:
            lines += page.lines
        else:
            _print(page.lines, rank, raw=raw)
        if page.done or not page.lines or page.cursor == cursor:
            break
        cursor = page.cursor
    if json:
        output.as_json(lines)


def _search(
    client: PhalanxClient,
    num: int,
    wanted: dict[str, Any],
    rank: int | None,
    *,
    count: bool,
    raw: bool,
    json: bool,
) -> None:
    """Print the lines that match, or their number: every call of the API looks at a part of the output."""
    lines: list[MatchingLine] = []
    number, unreadable, cursor = 0, 0, None
    while True:
        page = client.search_logs(num, limit=0 if count else 1000, cursor=cursor, **wanted)
        number += page.count
        unreadable += page.unreadable_bytes
        if json:
            lines += page.lines
        else:
            _print(page.lines, rank, raw=raw)
        cursor = page.cursor
        if cursor is None:
            break
    if unreadable:
        said = f"{unreadable:,} bytes of output were not searched"
        output.note(f"{said}: the files with them were deleted or are damaged")
    if count:
        output.as_json({"count": number}) if json else print(number)
    elif json:
        output.as_json(lines)


def events(
    ctx: typer.Context,
    jobs: Annotated[
        list[str] | None, typer.Argument(help="Only these jobs; absent: all that you may see.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new ones until Ctrl-C.")
    ] = False,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only this kind; may be repeated.")
    ] = None,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Only those behind this number of the feed.")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Print the events of jobs, oldest first: one line each, with the reason of the job after it."""
    with connected(ctx) as client:
        nums = [one_job(client, one) for one in jobs or ()]
        while True:
            page = client.live.feed(project=project, jobs=nums, kinds=kind or (), after=after)
            for one in page.events:
                _print_event(one, json=json)
            after = page.cursor
            if not page.more:
                break
        if not follow:
            return
        sys.stdout.flush()
        stream = client.live.follow(project=project, jobs=nums, kinds=kind or (), begin=str(after))
        for message in stream:
            _print_event(message.body, json=json)
            sys.stdout.flush()


def _print_event(one: EventView, *, json: bool) -> None:
    if json:
        print(one.model_dump_json())
        return
    at = one.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    where = "" if one.attempt is None else f" a{one.attempt}"
    text = (
        f"{one.feed:>8}  {at}  j-{one.job}{where}  {one.kind:<18} {one.state}: {one.reason.message}"
    )
    output.print_line("", text.rstrip(": "), sys.stdout)


def _stream(stream: str | None) -> Literal["out", "err"] | None:
    if stream in (None, "out", "err"):
        return cast("Literal['out', 'err'] | None", stream)
    raise UserError(f"--stream {stream}: there is no such stream", "write out or err")


def _level(text: str | None) -> LevelName | None:
    if text is None:
        return None
    level = parse_level(text)
    if level is None:
        known = ", ".join(one.word for one in LogLevel)
        raise UserError(f"--level {text}: there is no such level", f"write one of {known}")
    return cast("LevelName", level.word)


def _moment(option: str, text: str | None) -> datetime | None:
    """A time, or a duration before now. Raises UserError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        ago_s = duration(option, text) or 0.0
        return datetime.fromtimestamp(SystemClock().now() / 1e6 - ago_s, UTC)
    return found if found.tzinfo is not None else found.astimezone()


def _print(lines: Sequence[LogLine], rank: int | None, *, raw: bool) -> None:
    for line in lines:
        label = f"[{line.source}] " if rank is None else ""
        where = sys.stderr if line.stream == "err" and rank is not None else sys.stdout
        output.print_line(label, line.text, where, raw=raw)
