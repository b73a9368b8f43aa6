"""The verb stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import Session, job_number
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobName
from phalanx.errors import NotFound
from phalanx.kit.text import job_label

if TYPE_CHECKING:
    from phalanx.schemas.api.telemetry import RankStacksView, StacksCapture
    from phalanx.sdk import PhalanxClient

_WAIT_S = 15.0


def stacks(
    ctx: typer.Context,
    job: JobName,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="Only this rank.")] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Ask nobody: the last ones that are kept.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show where every rank of a job is: the stacks of its threads, which are kept with the attempt."""
    num = job_number(job)
    session: Session = ctx.obj
    with session.client() as client:
        found = _kept(client, num) if kept else _asked(client, num)
    if json:
        output.as_json(found)
        return
    what = "they made no step" if found.request == 0 else "asked for"
    print(
        f"attempt {found.attempt}, generation {found.generation},"
        f" {output.clock_time(found.at)} ({what})"
    )
    _print_places(found)
    for one in found.ranks:
        if rank in (None, one.rank):
            print(f"\nrank {one.rank}:")
            print("\n".join(f"  {line}" for line in (one.text or one.why).splitlines()))


def _asked(client: PhalanxClient, num: int) -> StacksCapture:
    asked = client.ask_stacks(num)
    view = client.stacks(num, asked=asked, wait_s=_WAIT_S)
    want = (asked.attempt, asked.generation, asked.request)
    found = [one for one in view.captures if one.answers == want]
    if not found:
        raise NotFound(
            f"the ranks of {job_label(num)} ended before they answered",
            f"what was kept of them: phalanx stacks {job_label(num)} --kept",
        )
    return found[-1]


def _kept(client: PhalanxClient, num: int) -> StacksCapture:
    captures = client.stacks(num).captures
    if not captures:
        raise NotFound(f"no stacks are kept of {job_label(num)}", "without --kept they are taken")
    return max(captures, key=lambda one: one.at)


def _print_places(found: StacksCapture) -> None:
    """Ranks in the same place on one line; those that the others wait for are marked."""
    places: dict[str, list[RankStacksView]] = {}
    for one in found.ranks:
        places.setdefault(one.place or one.why, []).append(one)
    for place, ranks in places.items():
        names = ", ".join(str(one.rank) for one in ranks)
        alone = all(one.rank in found.elsewhere for one in ranks) and bool(found.elsewhere)
        print(f"  rank {names}: {place}{'  <- elsewhere than the others' if alone else ''}")
