"""Tables of keys of other tools, and the walk of a document by such a table: no key is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from phalanx.errors import Problem
from phalanx.kit.text import nearest, shorten
from phalanx.schemas.foreign.documents import ForeignDocument, Path

PROGRAM = "PROGRAM"
"""The placeholder that gives a file without a program one: `--set PROGRAM='python train.py'`."""


class KeyAction(StrEnum):
    """What becomes of a key."""

    MAPPED = "mapped"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What becomes of a key of a format.

    In `path`, `*` stands for any name and any entry of a list; the rule holds for all below it that have
    no rule. `text` is the key of the spec, or the reason. With `of_image` the key describes the container
    or the cluster, and `--local` leaves it out.
    """

    path: str
    action: KeyAction
    text: str
    of_image: bool = False


def mapped(text: str, *paths: str, of_image: bool = False) -> tuple[KeyRule, ...]:
    """Rules for keys that become a key of the spec."""
    return tuple(KeyRule(path, KeyAction.MAPPED, text, of_image) for path in paths)


def dropped(text: str, *paths: str) -> tuple[KeyRule, ...]:
    """Rules for keys that have no effect here."""
    return tuple(KeyRule(path, KeyAction.DROPPED, text) for path in paths)


def refused(text: str, *paths: str, of_image: bool = False) -> tuple[KeyRule, ...]:
    """Rules for keys that prevent a submission."""
    return tuple(KeyRule(path, KeyAction.REFUSED, text, of_image) for path in paths)


def under(prefix: str, rules: Iterable[KeyRule]) -> tuple[KeyRule, ...]:
    """Rules of a part of a document, for the place where it stands."""
    return tuple(
        KeyRule(f"{prefix}.{one.path}", one.action, one.text, one.of_image) for one in rules
    )


@dataclass(frozen=True, slots=True)
class Treatment:
    """What became of one key of a file, or of a whole document of it."""

    line: int
    key: str
    action: KeyAction
    text: str

    def __str__(self) -> str:
        arrow = "->" if self.action is KeyAction.MAPPED else f"{self.action.value}:"
        return f"line {self.line}: {self.key} {arrow} {self.text}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file of another tool as a job spec; `problems` is empty where the spec may be used.

    `spec` is plain data for `validate_spec`; `lines` tells which line a key of it comes from.
    """

    tool: str
    spec: dict[str, Any]
    treatments: tuple[Treatment, ...]
    problems: tuple[Problem, ...]
    lines: Mapping[str, int]
    #: the spec is that of a study
    is_study: bool = False
    #: further stages of a pipeline, each after the one before
    then: tuple[Conversion, ...] = ()

    @property
    def all(self) -> tuple[Conversion, ...]:
        """This one and the stages after it."""
        return (self, *self.then)

    @property
    def warnings(self) -> list[Treatment]:
        """Keys that have no effect here."""
        return [one for one in self.treatments if one.action is KeyAction.DROPPED]


@dataclass(slots=True)
class ConversionLog:
    """What was mapped, dropped and refused so far."""

    #: name of the file, for messages
    origin: str
    #: image, volumes and settings of the cluster are left out
    local: bool = False
    #: values of `--set` that are read by the converter and replace no text
    values: Mapping[str, str] = field(default_factory=dict)
    #: names of these values that were read
    used: set[str] = field(default_factory=set)
    #: reads a text file by its path relative to the folder of the job file; None where there is none
    read_file: Callable[[str], str | None] | None = None
    #: documents of the file beside the job
    beside: Sequence[ForeignDocument] = ()
    #: what became of each key, by line and path
    treatments: dict[tuple[int, str], Treatment] = field(default_factory=dict)
    #: what was refused
    problems: list[Problem] = field(default_factory=list)
    #: the line that each key of the spec comes from
    lines: dict[str, int] = field(default_factory=dict)

    def note(self, line: int, key: str, action: KeyAction, text: str) -> None:
        """Record what became of a key; the last word about a key counts."""
        self.treatments[(line, key)] = Treatment(line, key, action, text)

    def refuse(self, line: int, key: str, text: str, value: Any = None) -> None:
        """Refuse a key or its value."""
        self.note(line, key, KeyAction.REFUSED, text)
        plain = isinstance(value, str | float | bool) or (
            isinstance(value, int) and abs(value) < 10**20
        )
        shown = shorten(repr(value)) if plain else None
        self.problems.append(Problem(f"{self.origin}, line {line}: {shorten(key)}", text, shown))

    def given(self, name: str) -> str | None:
        """The value of `--set NAME=…`, or None."""
        if name not in self.values:
            return None
        self.used.add(name)
        return self.values[name]

    def forget(self, document: ForeignDocument) -> None:
        """Take back what was recorded about a whole document."""
        line = document.line(())
        for key in [one for one in self.treatments if one[0] == line]:
            del self.treatments[key]

    def another(self) -> ConversionLog:
        """An empty log for another job of the same file."""
        return ConversionLog(self.origin, self.local, self.values, self.used, self.read_file)

    def moved(self, lines: int, prefix: str) -> ConversionLog:
        """A log for a document inside a text of this one, which begins `lines` lines below its top.

        What it records is recorded here.
        """
        return _InnerLog(self, lines, prefix)

    def came_from(self, line: int, *keys: str) -> None:
        """Remember which line keys of the spec come from."""
        for key in keys:
            self.lines.setdefault(key, line)

    def finish(self, tool: str, spec: Mapping[str, Any]) -> Conversion:
        """The conversion, without empty sections of the spec."""
        full = {key: one for key, one in spec.items() if one not in (None, {}, [])}
        ordered = sorted(self.treatments.values(), key=lambda one: one.line)
        unique = {(one.path, one.message): one for one in self.problems}
        return Conversion(tool, full, tuple(ordered), tuple(unique.values()), self.lines)


class _InnerLog(ConversionLog):
    """The log of a document inside another one."""

    def __init__(self, outer: ConversionLog, lines: int, prefix: str) -> None:
        super().__init__(outer.origin, outer.local, outer.values, outer.used)
        self._outer, self._lines, self._prefix = outer, lines, prefix

    def note(self, line: int, key: str, action: KeyAction, text: str) -> None:
        """Record it with the line and the path of the outer document."""
        self._outer.note(line + self._lines, f"{self._prefix}.{key}", action, text)

    def refuse(self, line: int, key: str, text: str, value: Any = None) -> None:
        """Refuse it with the line and the path of the outer document."""
        self._outer.refuse(line + self._lines, f"{self._prefix}.{key}", text, value)

    def came_from(self, line: int, *keys: str) -> None:
        """Remember the line of the outer document."""
        self._outer.came_from(line + self._lines, *keys)


@dataclass(slots=True)
class _Branch:
    rule: KeyRule | None = None
    below: dict[str, _Branch] = field(default_factory=dict)


class RuleTable:
    """The rules of a format by path."""

    def __init__(self, rules: Sequence[KeyRule]) -> None:
        self.rules = tuple(rules)
        self._root = _Branch()
        for rule in rules:
            here = self._root
            for part in rule.path.split("."):
                here = here.below.setdefault(part.replace("~", "."), _Branch())
            here.rule = rule

    def covers(self, path: Path) -> bool:
        """Whether a key has a treatment, of its own or of a key above it."""
        here, covered = self._root, False
        for part in path:
            found = _step(here, part)
            if found is None:
                return covered
            here, covered = found, covered or found.rule is not None
        return here.rule is not None or bool(here.below)

    def walk(self, document: ForeignDocument, log: ConversionLog) -> None:
        """Record a treatment for each key of a document, and refuse unknown ones."""
        self._walk(document, document.data, (), self._root, log)

    def _walk(
        self, document: ForeignDocument, value: Any, path: Path, branch: _Branch, log: ConversionLog
    ) -> None:
        if isinstance(value, dict):
            entries: list[tuple[str | int, Any]] = list(value.items())
        else:
            entries = list(enumerate(value))
        for part, inner in entries:
            here = (*path, part)
            found = _step(branch, part)
            line, key = document.line(here), shown(here)
            if found is None:
                if branch.rule is None:
                    log.refuse(line, key, _unknown(str(part), branch.below))
                continue
            if inner is None or inner in ({}, []):
                log.note(line, key, KeyAction.DROPPED, "is empty")
            elif found.below and isinstance(inner, dict | list):
                self._walk(document, inner, here, found, log)
            elif found.rule is None:
                log.refuse(line, key, "must be a mapping or a list", inner)
            else:
                _apply(found.rule, line, key, log)


def _apply(rule: KeyRule, line: int, key: str, log: ConversionLog) -> None:
    if rule.of_image and log.local:
        log.note(line, key, KeyAction.DROPPED, "left out by --local")
    elif rule.action is KeyAction.REFUSED:
        log.refuse(line, key, rule.text)
    else:
        log.note(line, key, rule.action, rule.text)


def _step(branch: _Branch, part: str | int) -> _Branch | None:
    own = branch.below.get(part) if isinstance(part, str) else None
    return own or branch.below.get("*")


def _unknown(key: str, known: Iterable[str]) -> str:
    close = nearest(key, list(known))
    said = f"did you mean {close}?" if close else "it is not read; remove it"
    return f"unknown key; {said}"


def shown(path: Path) -> str:
    """A path as text: `spec.containers[0].image`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
