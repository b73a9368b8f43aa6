"""Specs of files with several YAML documents, with the line of each key: problems name file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.spec.document import (
    MAX_PROBLEMS,
    SpecLoader,
    load_spec,
    read_text,
    validate_spec,
    warn_of_old_names,
)
from phalanx.schemas.spec.job import JobSpec

_MAX_KEYS = 50_000


@dataclass(frozen=True, slots=True)
class SpecSource:
    """Where a spec was read: the name of its file, and the line of each key by its path."""

    file: str
    lines: Mapping[str, int]  # `resources.nodes`, `env.A`, `depends_on[0]`
    begin: int | None = None  # line of the whole entry; None: not known

    def located(self, problem: Problem) -> Problem:
        """The problem with the file and the line of its key, or of the nearest key above it."""
        key = problem.path
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        line = self.lines[key] if key else self.begin
        where = self.file if line is None else f"{self.file}, line {line}"
        path = f"{where}: {problem.path}" if problem.path else where
        return Problem(path, problem.message, problem.value)


_ENTRY = re.compile(r"jobs\[(\d{1,6})\]\.?")


@contextmanager
def located(sources: Sequence[SpecSource]) -> Iterator[None]:
    """Name the file and the line in every problem of a batch of specs; without sources nothing is done.

    Problems of the server name the entry: `jobs[2].image`. Those of a batch of one do not.
    """
    try:
        yield
    except SpecInvalid as error:
        if not sources:
            raise
        raise SpecInvalid([_named(one, sources) for one in error.problems], error.hint) from None


def _named(problem: Problem, sources: Sequence[SpecSource]) -> Problem:
    entry = _ENTRY.match(problem.path)
    if entry is not None and int(entry[1]) < len(sources):
        rest = replace(problem, path=problem.path[entry.end() :])
        return sources[int(entry[1])].located(rest)
    return sources[0].located(problem) if len(sources) == 1 else problem


def load_specs(path: Path) -> list[tuple[JobSpec, SpecSource]]:
    """The specs of a file, which may have several YAML documents, and where each of them stands.

    Raises SpecInvalid as `load_spec`; with every problem of every document, and its file and line, where
    there are several.
    """
    text = read_text(path)
    try:
        documents = list(yaml.load_all(text, Loader=SpecLoader))
    except (yaml.YAMLError, RecursionError):
        documents = []
    sources = sources_of(text, path.name)
    if len(documents) < 2:
        return [(load_spec(path), sources[0] if sources else SpecSource(path.name, {}))]
    found, problems = [], []
    for data, source in zip(documents, sources, strict=True):
        try:
            found.append((_spec_of(data, path), source))
        except SpecInvalid as error:
            problems += [source.located(one) for one in error.problems]
    if problems:
        raise SpecInvalid(problems[:MAX_PROBLEMS])
    return found


def _spec_of(data: object, path: Path) -> JobSpec:
    if not isinstance(data, dict):
        raise SpecInvalid([Problem("", "this document is not a mapping")])
    data = {str(key): value for key, value in data.items()}
    warn_of_old_names(data, str(path))
    return validate_spec(data)


def sources_of(text: str, file: str) -> list[SpecSource]:
    """The source of each document of a YAML text; none where it is no YAML."""
    try:
        nodes = list(yaml.compose_all(text, Loader=SpecLoader))
    except (yaml.YAMLError, RecursionError):
        return []
    found = []
    for node in nodes:
        lines: dict[str, int] = {}
        _note(node, "", lines, set())
        begin = 1 if node is None else node.start_mark.line + 1
        found.append(SpecSource(file, lines, begin))
    return found


def _note(node: yaml.Node | None, path: str, lines: dict[str, int], seen: set[int]) -> None:
    """Note the line of each key below a node; what an alias names counts where it was first."""
    if node is None or id(node) in seen or len(lines) >= _MAX_KEYS:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(getattr(key, "value", ""))
            below = f"{path}.{name}" if path else name
            lines.setdefault(below, key.start_mark.line + 1)
            _note(value, below, lines, seen)
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            lines.setdefault(f"{path}[{at}]", value.start_mark.line + 1)
            _note(value, f"{path}[{at}]", lines, seen)
