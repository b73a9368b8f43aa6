"""Verbs on the job spec itself: spec schema, spec check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.terminal import output

spec_app = typer.Typer(
    name="spec", no_args_is_help=True, help="The job spec: its JSON schema, and a check."
)


@spec_app.command()
def schema() -> None:
    """Print the JSON schema of the job spec."""
    from phalanx.schemas.spec.document import json_schema

    output.as_json(json_schema())


@spec_app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job spec in YAML.")],
) -> None:
    """Check a spec without any platform, and print it with every default."""
    from phalanx.errors import SpecInvalid
    from phalanx.schemas.spec.document import check_supported, load_spec, resolved, to_yaml

    spec = load_spec(file)
    problems = check_supported(spec)
    if problems:
        raise SpecInvalid(problems)
    print(to_yaml(resolved(spec)), end="")
