"""Job files of other tools on the command line: read one, say what became of its keys, make it a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.cli.client.invocation import Invocation
from phalanx.cli.terminal.output import note
from phalanx.errors import Problem, SpecInvalid, UserError
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.rules import Conversion
from phalanx.schemas.spec.document import read_text, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.support import check_supported

_PYTHON = ("python", "python3")


def placeholders(values: Sequence[str]) -> dict[str, str]:
    """The values of `--set NAME=VALUE` as they were written. Raises UserError."""
    found: dict[str, str] = {}
    for one in values:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise UserError(
                f"--set: {one!r} names no value", "write NAME=VALUE: IMAGE=team/train:3"
            )
        found[name] = value
    return found


def read_foreign(
    path: Path, values: Mapping[str, str], local: bool, invocation: Invocation
) -> Conversion | None:
    """The conversion of a file of another tool; None for a job spec. Raises SpecInvalid.

    With `local`, a `python` that it runs is the interpreter of the command line.
    """
    found = convert(read_text(path), path.name, values, local)
    if found is None:
        return None
    run = found.spec.get("run")
    if local and isinstance(run, list) and run[0] in _PYTHON:
        found = replace(found, spec={**found.spec, "run": [invocation.python, *run[1:]]})
    return found


def explain(found: Conversion, path: Path) -> None:
    """Print what became of each key."""
    print(f"{path.name} is read as a {found.tool}:")
    for one in found.treatments:
        print(f"  {one}")
    print(f"{len(found.treatments)} keys, {len(found.warnings)} without effect")


def spec_of(found: Conversion, path: Path, local: bool) -> JobSpec:
    """The spec of a conversion. Raises SpecInvalid with the lines of the file."""
    if found.problems:
        raise SpecInvalid(found.problems, f"phalanx submit {path.name} --explain")
    try:
        spec = validate_spec(found.spec)
    except SpecInvalid as error:
        raise SpecInvalid([_located(one, found, path) for one in error.problems]) from None
    if problems := check_supported(spec):
        hint = None if local else "`--local` runs the command here, without image and volumes"
        raise SpecInvalid([_located(one, found, path) for one in problems], hint)
    for one in found.warnings:
        note(f"{path.name}, {one}")
    return spec


def _located(problem: Problem, found: Conversion, path: Path) -> Problem:
    """A problem of the spec with the line that the key comes from, where it is known."""
    key = problem.path
    while key and key not in found.lines:
        key = key.rpartition(".")[0]
    where = f"{path.name}, line {found.lines[key]}: " if key else f"{path.name}: "
    return Problem(f"{where}{problem.path}", problem.message, problem.value)
