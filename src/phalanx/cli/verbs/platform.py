"""Verbs on the platform itself: up, doctor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.client import embedded
from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson, duration
from phalanx.errors import Conflict, UserError

_LEAVE_S = 30.0
_MIN_AGE_S = 3600.0


def up(  # noqa: PLR0913 (one parameter for each flag)
    ctx: typer.Context,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="On the loopback interface; 0: any.")
    ] = 0,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=0,
            help="Slots of the local pool; default: max(4, cores). 0, with other pools: none.",
        ),
    ] = None,
    pool: Annotated[
        list[Path] | None,
        typer.Option("--pool", help="A file with another pool, such as a Ray cluster; repeatable."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Interface; other machines need 0.0.0.0.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", help="URL by which other machines reach this server."),
    ] = None,
    keep_warm: Annotated[
        int, typer.Option("--keep-warm", min=0, max=1, help="Spare warm supervisors.")
    ] = 1,
    keep_logs: Annotated[
        str | None,
        typer.Option(
            "--keep-logs", metavar="DURATION", help="Let output older than this go, as in 30d."
        ),
    ] = None,
    keep_metrics: Annotated[
        str | None,
        typer.Option(
            "--keep-metrics", metavar="DURATION", help="Let metrics of jobs go so long after them."
        ),
    ] = None,
) -> None:
    """Start the platform in the foreground: API, scheduler, pages; Ctrl-C ends it, jobs go on.

    A pool file is kept: later starts of this home connect to it again.
    """
    session: Session = ctx.obj
    if session.url is not None:
        raise UserError("`up` starts a platform on this machine; leave --url out")
    ages = [
        (f"{option}-s", _age(option, text))
        for option, text in (("--keep-logs", keep_logs), ("--keep-metrics", keep_metrics))
        if text is not None
    ]
    _take_over(session)
    words = [sys.executable, "-m", "phalanx.standalone", "--home", str(session.home)]
    words += ["--port", str(port), "--keep-warm", str(keep_warm)]
    if slots is not None:
        words += ["--slots", str(slots)]
    for file in pool or ():
        words += ["--pool", str(file.absolute())]
    for option, age_s in ages:
        words += [option, str(age_s)]
    words += ["--host", host]
    if advertise is not None:
        words += ["--advertise", advertise]
    sys.stdout.flush()
    os.execv(sys.executable, words)


def _age(option: str, text: str) -> float:
    age_s = duration(option, text) or 0.0
    if age_s < _MIN_AGE_S:
        raise UserError(f"{option} {text}: at least 1h")
    return age_s


def _take_over(session: Session) -> None:
    """End a control plane that a verb started; jobs do not notice."""
    found = embedded.find(session.home)
    if found is None or found.process is None:
        return
    if not embedded.is_detached(found.process):
        raise Conflict(
            f"{session.home} has a control plane already: {found.url} (pid {found.process.pid})",
            "use it, or choose another --home",
        )
    output.note(f"replacing the background control plane (pid {found.process.pid})")
    try:
        os.kill(found.process.pid, 15)
    except ProcessLookupError:
        return
    if not embedded.wait_gone(found.process, _LEAVE_S):
        raise Conflict(f"the background control plane (pid {found.process.pid}) does not leave")


def doctor(
    ctx: typer.Context,
    network: Annotated[
        bool, typer.Option("--network", help="Measure all-reduces between ranks instead.")
    ] = False,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, help="For --network.")] = 2,
    per_node: Annotated[
        int | None, typer.Option("--per-node", min=1, help="At most so many ranks on a node.")
    ] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="The pool to measure.")] = None,
    presets: Annotated[
        str | None,
        typer.Option("--presets", help="Compare these, as `training.network` names them; or all."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check this machine: versions, home, disk, port, cores, clock. Exits 1 when something is wrong.

    With --network, run a short job that measures latency and bandwidth between ranks against the link.
    """
    if network:
        from phalanx.cli.client.network import Wanted, examine_network

        raise typer.Exit(examine_network(ctx.obj, Wanted(ranks, per_node, pool, presets), json))
    from phalanx.cli.client.checkup import examine

    session: Session = ctx.obj
    findings = examine(session.home)
    if json:
        output.as_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            print(f"{finding.verdict:<4}  {finding.subject:<14}  {finding.said}{remedy}")
    raise typer.Exit(1 if any(finding.verdict == "FAIL" for finding in findings) else 0)
