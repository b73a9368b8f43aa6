"""Submit a job again: clone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from phalanx.cli.client.session import Session, job_number
from phalanx.cli.terminal.options import JobName
from phalanx.cli.terminal.output import note
from phalanx.errors import UserError


def clone(
    ctx: typer.Context,
    job: JobName,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a key of the spec, such as resources.nodes=2; params.lr=0.1 changes a "
            "parameter of a trial. May be repeated.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            metavar="latest|best|STEP|NAME",
            help="Begin from this checkpoint of the job; absent: begin anew.",
        ),
    ] = None,
    require_same: Annotated[
        bool,
        typer.Option(
            "--require-same",
            help="Fail before the ranks start where installed packages or data differ from the job's.",
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the new job, as `run` does.")
    ] = False,
) -> None:
    """Submit a job again with the spec, code, environment and parameters that it had.

    Values of its secret variables are stored nowhere: they are taken from your environment.
    """
    session: Session = ctx.obj
    from phalanx.cli.client.invocation import protects_secrets
    from phalanx.schemas.api.jobs import CloneRequest

    num = job_number(job)
    with session.client() as client:
        names = client.job(num).withheld if protects_secrets(session.url) else []
        known = session.invocation.env
        request = CloneRequest(
            set=dict(_change(one) for one in changes or ()),
            checkpoint=checkpoint,
            secrets={name: known[name] for name in names if name in known},
            owner=session.invocation.owner(),
            require_same=require_same,
        )
        made = client.clone(num, request)
        for said in made.notes:
            note(said)
        if made.job is None:
            raise UserError("the server answered without a job", "look for it with `phalanx ps`")
        from phalanx.cli.verbs.submit import after, stay

        stay(session, client, made.job, after(not follow, False))


def _change(text: str) -> tuple[str, Any]:
    import yaml

    path, equals, value = text.partition("=")
    if not path or not equals:
        raise UserError(f"--set: {text!r} is not a change", "write PATH=VALUE: resources.nodes=2")
    try:
        return path, yaml.safe_load(value)
    except yaml.YAMLError:
        return path, value
