"""Job files of other tools on the command line: read one, say what became of its keys, make it a spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from phalanx.cli.client.invocation import Invocation
from phalanx.cli.terminal.output import note
from phalanx.errors import Problem, SpecInvalid, UserError
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.rules import Conversion
from phalanx.schemas.foreign.tasks.sbatch import DIRECTIVE
from phalanx.schemas.spec.document import read_text, validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.lines import SpecSource
from phalanx.schemas.spec.study import StudySpec, validate_study
from phalanx.schemas.spec.support import check_supported

_PYTHON = ("python", "python3")
# The most characters of a script in which directives are looked for.
_HEAD = 100_000
_ENDINGS = (".yaml", ".yml", ".sbatch", ".slurm")


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


def is_job_file(path: Path) -> bool:
    """Whether `run` submits a file: by its ending, and a shell script by its directives for Slurm."""
    if path.name.endswith(_ENDINGS):
        return True
    if not path.name.endswith(".sh"):
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return DIRECTIVE.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def read_foreign(
    path: Path, values: Mapping[str, str], local: bool, invocation: Invocation
) -> Conversion | None:
    """The conversion of a file of another tool; None for a job spec. Raises SpecInvalid.

    With `local`, a `python` that it runs is the interpreter of the command line.
    """

    def read_file(name: str) -> str | None:
        inside = (path.parent / name).resolve()
        if not inside.is_relative_to(path.parent.resolve()) or not inside.is_file():
            return None
        return read_text(inside)

    found = convert(read_text(path), path.name, values, local, read_file)
    if found is None:
        return None
    then = tuple(_with_python(one, local, invocation) for one in found.then)
    return replace(_with_python(found, local, invocation), then=then)


def _with_python(one: Conversion, local: bool, invocation: Invocation) -> Conversion:
    run = one.spec.get("run")
    if local and isinstance(run, list) and run[0] in _PYTHON:
        return replace(one, spec={**one.spec, "run": [invocation.python, *run[1:]]})
    return one


def explain(found: Conversion, path: Path) -> None:
    """Print what became of each key."""
    print(f"{path.name} is read as a {found.tool}:")
    treatments = [one for part in found.all for one in part.treatments]
    for one in treatments:
        print(f"  {one}")
    warnings = sum(len(part.warnings) for part in found.all)
    print(f"{len(treatments)} keys, {warnings} without effect")


def study_of(found: Conversion, path: Path) -> StudySpec:
    """The study of a search. Raises SpecInvalid with the lines of the file."""
    if found.problems:
        raise SpecInvalid(found.problems, f"phalanx submit {path.name} --explain")
    try:
        spec = validate_study(found.spec)
    except SpecInvalid as error:
        raise SpecInvalid([_located(one, found, path) for one in error.problems]) from None
    for one in found.warnings:
        note(f"{path.name}, {one}")
    return spec


def specs_of(found: Conversion, path: Path, local: bool) -> list[tuple[JobSpec, SpecSource]]:
    """The specs of a conversion, those of a pipeline in order. Raises SpecInvalid with the file's lines."""
    if found.problems:
        raise SpecInvalid(found.problems, f"phalanx submit {path.name} --explain")
    return [(_spec_of(one, path, local), _source(one, path)) for one in found.all]


def _spec_of(found: Conversion, path: Path, local: bool) -> JobSpec:
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


@contextmanager
def lines_of(foreign: Conversion | None, path: Path, local: bool) -> Iterator[None]:
    """Name the lines of another tool's file in what the server refuses of its spec."""
    try:
        yield
    except SpecInvalid as error:
        if foreign is None:
            raise
        raise located(error, foreign, path, local) from None


def located(error: SpecInvalid, found: Conversion, path: Path, local: bool) -> SpecInvalid:
    """The server's problems of a spec with the lines of the file that it comes from."""
    hint = error.hint
    keys = {one.path.partition(".")[0].partition("[")[0] for one in error.problems}
    if not local and keys & {"image", "mounts", "kubernetes"}:
        hint = "`--local` runs the command here, without image and volumes"
    return SpecInvalid([_located(one, found, path) for one in error.problems], hint)


def _located(problem: Problem, found: Conversion, path: Path) -> Problem:
    """A problem of the spec with the line that the key comes from, where it is known."""
    return SpecSource(path.name, found.lines).located(problem)


def _source(found: Conversion, path: Path) -> SpecSource:
    return SpecSource(path.name, found.lines, min(found.lines.values(), default=None))
