"""The verbs archive, unarchive, pin, unpin and delete."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.client.session import connected, job_numbers
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, JobNames, duration
from phalanx.errors import Conflict, NotFound, UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import job_label
from phalanx.kit.units import format_size

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import DeletionView, JobView
    from phalanx.sdk import PhalanxClient

_OVER = ("succeeded", "failed", "cancelled")
SomeJobs = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs, such as j-12 or a-12.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be deleted, and what is in the way.")
]


def archive(ctx: typer.Context, jobs: JobNames) -> None:
    """Hide jobs that have ended from listings; `ps --archived` lists them."""
    _each(ctx, jobs, lambda client, num: client.retention.archive(num), "archived")


def unarchive(ctx: typer.Context, jobs: JobNames) -> None:
    """Show archived jobs in listings again."""
    _each(ctx, jobs, lambda client, num: client.retention.unarchive(num), "in listings again")


def pin(ctx: typer.Context, jobs: JobNames) -> None:
    """Keep jobs with all their data: nothing deletes them until they are unpinned."""
    _each(ctx, jobs, lambda client, num: client.retention.pin(num), "pinned")


def unpin(ctx: typer.Context, jobs: JobNames) -> None:
    """Let pinned jobs be deleted again."""
    _each(ctx, jobs, lambda client, num: client.retention.unpin(num), "unpinned")


def _each(
    ctx: typer.Context,
    jobs: Sequence[str],
    change: Callable[[PhalanxClient, int], JobView],
    said: str,
) -> None:
    with connected(ctx) as client:
        for num in job_numbers(client, jobs):
            print(f"{change(client, num).label} {said}")


def delete(  # noqa: PLR0913 (one parameter for each filter)
    ctx: typer.Context,
    jobs: SomeJobs = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only this owner.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Only this name; * stands for any text.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Only this label; may be repeated."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="succeeded, failed or cancelled; may be repeated."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Only jobs that ended longer ago than this: 30d."),
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Only archived jobs.")] = False,
    abandon: Annotated[
        bool,
        typer.Option(
            "--abandon",
            help="Of deleted jobs: give up copies in a store that does not come back.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete jobs that have ended: rows, logs, metrics, code, checkpoints and their copies in stores.

    What they cost stays in reports. Name jobs, or give filters, which choose among those that have ended.
    With --abandon, complete the deletion of jobs that a store holds up without their copies there.
    """
    filters = {
        "project": project,
        "owner": owner,
        "name": name,
        "labels": dict(_label(one) for one in label or ()),
        "states": state or (),
        "ended_to": _moment_before(older_than),
    }
    if bool(jobs) == bool(archived or any(filters.values())):
        raise UserError("name jobs, or give filters", "such as: phalanx delete --older-than 30d")
    if abandon:
        _abandon(ctx, jobs or (), dry_run, yes, json)
        return
    with connected(ctx) as client:
        nums = job_numbers(client, jobs) if jobs else _chosen(client, filters, archived)
        planned = [client.retention.delete(num, dry_run=True) for num in nums]
        if dry_run:
            _show(planned, json)
            return
        held = [one for one in planned if one.in_the_way]
        if jobs and held:
            first = held[0].in_the_way[0]
            raise Conflict(first.message, first.hint)
        done = _delete_free(client, [one for one in planned if not one.in_the_way], yes)
    _show_done(done, held, json)


def _abandon(ctx: typer.Context, jobs: Sequence[str], dry_run: bool, yes: bool, json: bool) -> None:
    if not jobs or dry_run:
        said = "--abandon takes the names of deleted jobs, no filters and no --dry-run"
        raise UserError(said, "`phalanx admin retention` lists deletions that are not complete")
    with connected(ctx) as client:
        nums = job_numbers(client, jobs)
        if not yes:
            names = ", ".join(job_label(one) for one in nums)
            _confirm(f"Leave the copies of {names} in their stores for good?", "given up")
        done = [client.retention.abandon(num) for num in nums]
    if json:
        output.as_json(done)
        return
    for one in done:
        size = format_size(one.num_bytes)
        print(f"{one.label}: {one.num_checkpoints} copies ({size}) stay in {', '.join(one.stores)}")


def _confirm(question: str, done: str) -> None:
    """Ask a question. Raises UserError without a terminal, and Exit where the answer is no."""
    if not sys.stdin.isatty():
        raise UserError(f"nothing was {done}: there is no terminal to ask", "add --yes")
    if not typer.confirm(question):
        raise typer.Exit(1)


def _chosen(client: PhalanxClient, filters: dict[str, Any], archived: bool) -> list[int]:
    wanted = {**filters, "states": filters["states"] or _OVER}
    unknown = [one for one in wanted["states"] if one not in _OVER]
    if unknown:
        raise UserError(f"--state {unknown[0]}: such jobs have not ended", "stop them first")
    which = "only" if archived else "include"
    return [one.num for one in client.every_job(**wanted, archived=which, limit=1000)]


def _delete_free(
    client: PhalanxClient, planned: Sequence[DeletionView], yes: bool
) -> list[DeletionView]:
    """Ask, and delete jobs; one that is needed or deleted meanwhile is left out with a note."""
    if planned and not yes:
        _ask(planned)
    done = []
    for one in planned:
        try:
            done.append(client.retention.delete(one.num))
        except (Conflict, NotFound) as error:
            output.note(f"{one.label} is not deleted: {error.message}")
    return done


def _ask(planned: Sequence[DeletionView]) -> None:
    """Ask before deleting; raises as `_confirm` does."""
    names = ", ".join(one.label for one in planned[:5]) + (" …" if len(planned) > 5 else "")
    _confirm(f"Delete {len(planned)} jobs ({names}) with {_total(planned)}?", "deleted")


def _total(planned: Sequence[DeletionView]) -> str:
    """How much jobs have, in words."""
    items, num_bytes = Counter[str](), Counter[str]()
    for one in planned:
        for size in one.sizes:
            items[size.kind] += size.items
            num_bytes[size.kind] += size.num_bytes
    checkpoints = format_size(num_bytes["checkpoints"])
    logs = format_size(num_bytes["logs"])
    return f"{items['checkpoints']} checkpoints ({checkpoints}) and {logs} of logs"


_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "JOB": lambda one: one.label,
    "NAME": lambda one: one.name,
    "PROJECT": lambda one: one.project,
    "CHECKPOINTS": lambda one: _size(one, "checkpoints"),
    "LOGS": lambda one: _size(one, "logs"),
    "STAYS BECAUSE": lambda one: one.in_the_way[0].message if one.in_the_way else None,
}


def _size(one: DeletionView, kind: str) -> str | None:
    found = next((size.num_bytes for size in one.sizes if size.kind == kind), 0)
    return format_size(found) if found else None


def _show(planned: Sequence[DeletionView], json: bool) -> None:
    output.listing(planned, json, _COLUMNS, "no such jobs")
    if not json and planned:
        free = [one for one in planned if not one.in_the_way]
        stay = len(planned) - len(free)
        output.note(f"{len(free)} jobs would be deleted with {_total(free)}; {stay} would stay")


def _show_done(done: Sequence[DeletionView], held: Sequence[DeletionView], json: bool) -> None:
    if json:
        output.as_json(done)
    else:
        for one in done:
            print(f"{one.label} deleted")
    for one in held:
        output.note(f"{job_label(one.num)} stays: {one.in_the_way[0].message}")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UserError(f"--label: {text!r} is not a label", "write KEY=VALUE")
    return key, value


def _moment_before(older_than: str | None) -> datetime | None:
    seconds = duration("--older-than", older_than)
    now = datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    return None if seconds is None else now - timedelta(seconds=seconds)
