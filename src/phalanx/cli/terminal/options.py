"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.errors import UserError
from phalanx.kit.units import parse_duration

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Number of the job, such as j-12 or 12.")
]
JobNames = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Numbers of the jobs, such as j-12 or 12; a-12 for a whole array, a-12_7 for one element.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

RoleName = Annotated[
    str | None,
    typer.Option("--role", help="Only this role; --rank is then a rank of the role."),
]


# Options of the verbs that submit a job.
AllRanks = Annotated[
    bool,
    typer.Option("--all-ranks", help="Show the output of all ranks.", rich_help_panel="Output"),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check the spec and print it with every default; submit nothing."
    ),
]
RanksOption = Annotated[
    int | None,
    typer.Option("-n", "--ranks", min=1, help="Ranks in all; with --nodes, ranks on each node."),
]
NodesOption = Annotated[
    str | None, typer.Option("--nodes", help="Nodes; 2..4 makes the job elastic.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the job.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Project of the job.")]
Requirements = Annotated[
    str | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="A requirements file to install; see the spec section `python`.",
    ),
]
Package = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="REQUIREMENT", help="A package to install; may be repeated."),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", help="A word to find the run by, such as baseline; may be repeated."),
]
GroupOption = Annotated[
    str | None, typer.Option("--group", help="Runs that belong together have the same group.")
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Submit and return at once.")]


def one_rank(rank: int | None) -> tuple[int, ...]:
    """The server's rank filter: one rank, or empty for all."""
    return () if rank is None else (rank,)


def duration(option: str, text: str | None) -> float | None:
    """The value of an option in seconds; None when it was not given. Raises UserError."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
