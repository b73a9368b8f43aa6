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
    list[str], typer.Argument(metavar="JOB...", help="Numbers of the jobs, such as j-12 or 12.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

RoleName = Annotated[
    str | None, typer.Option("--role", help="Only this role; --rank is then the rank within it.")
]


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
