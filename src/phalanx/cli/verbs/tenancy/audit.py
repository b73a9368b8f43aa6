"""The verb `audit`: what did what, from where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import duration


class AuditFormat(StrEnum):
    """How `phalanx audit` prints."""

    TABLE = "table"
    JSONL = "jsonl"


_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "AT": lambda one: output.moment(one.at),
    "ACTOR": lambda one: one.actor or "unknown",
    "TOKEN": lambda one: one.credential,
    "FROM": lambda one: one.address,
    "OUTCOME": lambda one: one.outcome,
    "ACTION": lambda one: one.action,
    "TARGET": lambda one: one.target,
    "CHANGES": lambda one: ", ".join(change.what for change in one.changes),
}


def audit(  # noqa: PLR0913
    ctx: typer.Context,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Such as user:ada, service:ci or user:admin.")
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", help="A part of method and route, such as POST.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The beginning of a path: /api/v1/jobs/12.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", help="changed, read or denied.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DURATION", help="Such as 7d: not older.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="The most entries; of jsonl: all by default.")
    ] = 0,
    format: Annotated[
        AuditFormat, typer.Option("--format", help="jsonl: one JSON object a line, for export.")
    ] = AuditFormat.TABLE,
) -> None:
    """Show what changed, read or was denied: which account, with which token, from where; newest first."""
    age_s = None if since is None else duration("--since", since)
    most = limit or (100 if format is AuditFormat.TABLE else None)
    with connected(ctx) as client:
        moment = None if age_s is None else client.info().now - timedelta(seconds=age_s)
        found = client.accounts.audit(
            actor=actor, action=action, target=target, outcome=outcome, since=moment
        )
        wanted = _first(found, most)
        if format is AuditFormat.JSONL:
            for one in wanted:
                print(json.dumps(one.model_dump(mode="json"), ensure_ascii=False))
        else:
            output.listing(list(wanted), False, _COLUMNS, "no entries")


def _first(found: Iterator[Any], most: int | None) -> Iterator[Any]:
    for index, one in enumerate(found):
        if most is not None and index >= most:
            return
        yield one
