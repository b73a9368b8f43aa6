"""The group `templates`: job specs with typed parameters, and submissions from them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.client.session import Session, connected
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson

_WHOLE = "(whole)"
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "NAME": lambda one: one.name,
    "PROJECT": lambda one: one.project or _WHOLE,
    "VERSION": lambda one: one.version,
    "PARAMETERS": lambda one: ", ".join(one.parameters),
    "DESCRIPTION": lambda one: one.description,
}
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the template.")]
_Project = Annotated[str, typer.Option("--project", help="Project of the template.")]
_Whole = Annotated[
    bool, typer.Option("--whole", help="Of the whole platform: every project may use it.")
]

templates_app = typer.Typer(
    name="templates",
    no_args_is_help=True,
    help="Job specs with typed parameters; `phalanx submit --template NAME` uses one.",
)


@templates_app.command("put")
def put(
    ctx: typer.Context,
    name: _Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job template in YAML.")],
    project: _Project = "default",
    whole: _Whole = False,
) -> None:
    """Store a new version of a template, with a copy of the folder of its file."""
    from phalanx.cli.verbs.submit import upload_folder
    from phalanx.schemas.spec.document import read_text, read_yaml

    session: Session = ctx.obj
    path = session.invocation.cwd / file
    body = read_yaml(read_text(path), str(file), "a job template")
    job = body.get("job")
    workdir = job.get("workdir", ".") if isinstance(job, dict) else "."
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder, connected(ctx) as client:
        code = upload_folder(session, client, path.parent / str(workdir), Path(folder))
        made = client.templates.put(name, body, None if whole else project, code)
    output.note(f"template {name}: version {made.version}")


@templates_app.command("ls")
def list_templates(ctx: typer.Context, json: AsJson = False) -> None:
    """List templates with their newest versions."""
    with connected(ctx) as client:
        found = client.templates.list()
    output.listing(found, json, _COLUMNS, "no templates")


@templates_app.command("show")
def show(
    ctx: typer.Context,
    name: _Name,
    project: _Project = "default",
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Another version than the newest.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a template that jobs of a project may use: its parameters and its job spec."""
    from phalanx.schemas.spec.document import to_yaml

    with connected(ctx) as client:
        view = client.templates.show(name, project, version)
    if json:
        output.as_json(view)
        return
    output.facts(
        [
            ("template", f"{view.name} of {view.project or 'the whole platform'}"),
            ("version", f"{view.version}, {output.moment(view.created_at)} by {view.created_by}"),
            ("description", view.description),
            ("code", view.code and view.code[:12]),
        ]
    )
    given = {
        key: {word: value for word, value in rule.items() if value not in (None, "")}
        for key, rule in view.parameters.items()
    }
    print("\n" + to_yaml({"parameters": given, "job": view.job}), end="")


@templates_app.command("rm")
def remove(
    ctx: typer.Context, name: _Name, project: _Project = "default", whole: _Whole = False
) -> None:
    """Remove a template with all versions; its jobs stay."""
    with connected(ctx) as client:
        client.templates.remove(name, None if whole else project)
    output.note(f"removed {name}")
