"""Verbs of `phalanx alerts` about the built-in notifier: what fires, silences, receivers, messages."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from phalanx.cli.client.session import connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.errors import UserError
from phalanx.kit.units import parse_duration


def firing(
    ctx: typer.Context,
    every: Annotated[
        bool, typer.Option("--all", help="Pending ones, and those of the last day, too.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the alerts that fire, as the built-in notifier evaluates them."""
    with connected(ctx) as client:
        found = client.alerts.live()
    shown = [one for one in found.alerts if every or one.phase == "firing"]
    if json:
        output.as_json(shown)
        return
    rows = [
        (
            one.alert,
            one.severity,
            f"{one.phase} (muted)" if one.muted else one.phase,
            output.moment(one.fired_at or one.since),
            one.summary,
        )
        for one in shown
    ]
    output.table(("ALERT", "SEVERITY", "STATE", "SINCE", "SUMMARY"), rows, "no alerts")
    if not found.receivers:
        output.note(
            "there are no receivers, so alerts are not evaluated; see PHALANX__NOTIFY__RECEIVERS"
        )


def silence(
    ctx: typer.Context,
    matchers: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Labels that alerts must have, or alertname or severity; * stands for any text.",
        ),
    ],
    duration: Annotated[str, typer.Option("--for", help="How long, such as 2h.")],
    comment: Annotated[str, typer.Option("--comment", help="Why, for others.")] = "",
) -> None:
    """Do not tell of some alerts for a while; they are evaluated all the same."""
    pairs = [one.partition("=") for one in matchers]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise UserError(
                f"{name + sign + value!r} is not NAME=VALUE",
                "such as alertname=PhalanxNodesLost or project=vision",
            )
    with connected(ctx) as client:
        made = client.alerts.silence(
            {name: value for name, _, value in pairs}, parse_duration(duration), comment
        )
    typer.echo(f"silence {made.num} until {output.moment(made.until)}")


def silences(ctx: typer.Context, json: AsJson = False) -> None:
    """List the silences that are not over."""
    with connected(ctx) as client:
        found = client.alerts.silences()
    if json:
        output.as_json(found)
        return
    rows = [
        (
            one.num,
            " ".join(f"{name}={value}" for name, value in one.matchers.items()),
            output.moment(one.until),
            one.by,
            one.comment,
        )
        for one in found
    ]
    output.table(("SILENCE", "ALERTS", "UNTIL", "BY", "COMMENT"), rows, "no silences")


def unsilence(
    ctx: typer.Context, num: Annotated[int, typer.Argument(help="Number of the silence.")]
) -> None:
    """End a silence."""
    with connected(ctx) as client:
        client.alerts.end_silence(num)
    typer.echo(f"silence {num} is over")


def receivers(
    ctx: typer.Context,
    test: Annotated[
        str | None, typer.Option("--test", metavar="NAME", help="Send a message to this one.")
    ] = None,
    enable: Annotated[
        str | None,
        typer.Option("--enable", metavar="NAME", help="Send again to one that is gone."),
    ] = None,
    json: AsJson = False,
) -> None:
    """List the receivers of messages; send a test, or enable one that has answered that it is gone."""
    with connected(ctx) as client:
        if test is not None:
            made = client.alerts.test(test)
            typer.echo(f"message {made.num} is made; `phalanx alerts deliveries` shows its state")
            return
        if enable is not None:
            client.alerts.enable(enable)
            typer.echo(f"{enable} gets messages again")
            return
        found = client.alerts.live().receivers
    if json:
        output.as_json(found)
        return
    rows = [
        (
            one.name,
            one.kind,
            ", ".join(one.severities),
            ", ".join(one.projects) or "all",
            ", ".join(one.jobs) or "–",
            "in use" if one.gone_at is None else f"gone: {one.message}",
        )
        for one in found
    ]
    heads = ("RECEIVER", "KIND", "SEVERITIES", "PROJECTS", "JOBS", "STATE")
    output.table(heads, rows, "no receivers")


def deliveries(
    ctx: typer.Context,
    state: Annotated[
        Literal["all", "open", "sent", "dead"],
        typer.Option("--state", help="Only messages in this state."),
    ] = "all",
    resend: Annotated[
        int | None,
        typer.Option("--resend", metavar="NUMBER", help="Send one again that was given up."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The most.")] = 50,
    json: AsJson = False,
) -> None:
    """List messages to receivers, the newest first; or send one again that was given up."""
    with connected(ctx) as client:
        if resend is not None:
            made = client.alerts.resend(resend)
            typer.echo(f"message {made.num} to {made.receiver} is sent again")
            return
        found = client.alerts.deliveries(state, limit=limit)
    if json:
        output.as_json(found)
        return
    rows = [
        (
            one.num,
            one.receiver,
            one.state,
            one.tries,
            output.moment(one.made_at),
            one.title,
            one.error,
        )
        for one in found
    ]
    heads = ("MESSAGE", "RECEIVER", "STATE", "TRIES", "MADE", "TITLE", "ERROR")
    output.table(heads, rows, "no messages")
