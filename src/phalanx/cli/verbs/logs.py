"""The verbs logs and events."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from phalanx.cli.client.session import connected, one_job
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobName, RoleName, one_rank
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import EventView
    from phalanx.schemas.api.telemetry import LogLine


def logs(  # noqa: PLR0913
    ctx: typer.Context,
    job: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job ends.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Only this rank.")] = None,
    role: RoleName = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only the last N lines.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", help="Only this stream: out or err.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Keep control sequences when printing to a terminal.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Print the output of ranks in the order of arrival; of all ranks unless one is named.

    On a terminal, control sequences other than colours are removed; files and pipes get every byte.
    """
    only = _stream(stream)
    with connected(ctx) as client:
        num = one_job(client, job)
        if follow:
            from phalanx.cli.client.follow import CtrlC, Follower, OutputFilter
            from phalanx.cli.terminal.screen import screen_for

            view = OutputFilter("all" if rank is None else rank, only, tail, role)
            screen = screen_for(job, raw=True) if raw else None
            raise typer.Exit(Follower(ctx.obj, client, num, view, CtrlC.NOTHING, screen).run())
        lines: list[LogLine] = []
        cursor: str | None = None
        while True:
            page = client.logs(
                num,
                ranks=one_rank(rank),
                stream=only,
                tail=tail if cursor is None else None,
                cursor=cursor,
                role=role,
            )
            if json:
                lines += page.lines
            else:
                _print(page.lines, rank, raw=raw)
            if page.done or not page.lines or page.cursor == cursor:
                break
            cursor = page.cursor
    if json:
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


def _print(lines: list[LogLine], rank: int | None, *, raw: bool) -> None:
    for line in lines:
        label = f"[{line.source}] " if rank is None else ""
        where = sys.stderr if line.stream == "err" and rank is not None else sys.stdout
        output.print_line(label, line.text, where, raw=raw)
