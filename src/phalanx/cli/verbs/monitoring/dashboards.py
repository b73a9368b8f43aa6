"""`phalanx dashboards export`: dashboards, rules and configuration for Prometheus and Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.client.session import Session
from phalanx.cli.terminal import output
from phalanx.cli.terminal.options import AsJson
from phalanx.errors import UserError

dashboards_app = typer.Typer(
    name="dashboards",
    no_args_is_help=True,
    help="Dashboards of Grafana, with what Prometheus needs for them.",
)


@dashboards_app.command("export")
def export(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files.")],
    namespace: Annotated[
        str, typer.Option("--namespace", help="Namespace of the objects of Kubernetes.")
    ] = "phalanx-system",
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that differ from what is written.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Write dashboards, provisioning, rules, a compose file and objects of Kubernetes.

    They watch the control plane of `--url`, and trust the authority of `--ca-file`. Nothing is sent to it.
    """
    from phalanx.monitoring.bundle import DEFAULT_URL, WatchedPlatform, bundle

    session: Session = ctx.obj
    ca = session.ca_file.read_text() if session.ca_file is not None else ""
    files = bundle(WatchedPlatform(session.url or DEFAULT_URL, ca, namespace))
    write_all(folder, files, replace=force)
    if json:
        output.as_json(sorted(files))
        return
    for name in sorted(files):
        typer.echo(str(folder / name))


def write_all(folder: Path, files: dict[str, str], *, replace: bool) -> None:
    """Write these files below a folder. Raises UserError where one would be replaced unasked."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "name a folder")
    if not replace:
        for name, text in files.items():
            path = folder / name
            if path.exists() and path.read_text(encoding="utf-8") != text:
                raise UserError(f"{path} has other contents", "--force replaces it")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
