"""Change settings of jobs after their submission: update."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal.options import JobNames
from phalanx.errors import UserError

_NONE = "none"
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="KEY=VALUE", help="Set a label; KEY= removes it. May be repeated."
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Add a tag; TAG= removes it. May be repeated."),
]
Nodes = Annotated[
    str | None,
    typer.Option("--nodes", help="Number of nodes, or a range such as 2..6 for an elastic job."),
]
Group = Annotated[
    str | None, typer.Option("--group", help="Group of runs that belong together; none removes it.")
]


def update(  # noqa: PLR0913 (one parameter for each setting)
    ctx: typer.Context,
    jobs: JobNames,
    priority: Annotated[
        str | None,
        typer.Option("--priority", help="0 to 100, higher first; or low, normal, high, urgent."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    description: Annotated[
        str | None,
        typer.Option("--description", help="What the job is for, and notes; none removes it."),
    ] = None,
    label: Labels = None,
    tag: Tags = None,
    group: Group = None,
    max_duration: Annotated[
        str | None,
        typer.Option("--max-duration", help="The job fails after this duration; none: no limit."),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", help="A pool that the job may run in; any: any. May be repeated."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Limit on the cost in US dollars; none: no limit."),
    ] = None,
    nodes: Nodes = None,
) -> None:
    """Change settings of jobs after their submission; the scheduler uses them at its next pass.

    The pool of a job that holds slots cannot change: pause it first. A running job with more or fewer
    nodes than it may have saves, and starts again with a number that it may have. Of a job that has
    ended, only its name, description, labels, tags and group can.
    """
    from phalanx.schemas.api.jobs import ChangeRequest

    given: dict[str, Any] = {}
    for key, number in (("priority", priority), ("nodes", nodes)):
        if number is not None:
            given[key] = int(number) if number.isdecimal() else number
    if name is not None:
        given["name"] = name
    for key, text in (
        ("description", description),
        ("group", group),
        ("max_duration", max_duration),
    ):
        if text is not None:
            given[key] = _or_none(text)
    if label:
        given["labels"] = dict(_label(one) for one in label)
    if tag:
        given["tags"] = {one.removesuffix("="): not one.endswith("=") for one in tag}
    if pool:
        given["pool"] = [] if pool == ["any"] else pool
    if budget is not None:
        given["budget"] = None if budget == _NONE else {"usd": _amount(budget)}
    if not given:
        raise UserError("there is nothing to change", "name a setting, such as --priority high")
    changes = ChangeRequest(**given)
    with connected(ctx) as client:
        for job in jobs:
            view = client.change(job_number(job), changes)
            print(f"{view.label} {view.state}")


def _or_none(text: str) -> str | None:
    return None if text == _NONE else text


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UserError(f"--label: {text!r} is not a label", "write KEY=VALUE")
    return key, value or None


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--budget: {text!r} is not a number", "write dollars: 400") from None
