"""Read a foreign document key by key: what is not mapped and not dropped with a reason is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest, shorten

_WORD = re.compile(r"[^A-Za-z0-9._-]+")
MAX_DEPTH = 8
"""The deepest nesting of parameters."""
_LARGEST = 1e15
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Translation:
    """A study spec made from another tool's document, and what became of each key of it.

    `mapped` has a line `key -> key of the study`; `dropped` a line with the reason for each key that has no
    effect here; `notes` is what else differs.
    """

    tool: str
    study: dict[str, Any]
    mapped: tuple[str, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The translation as lines for a terminal."""
        return [
            f"read as a {self.tool}:",
            *(f"  {one}" for one in self.mapped),
            *(f"  dropped: {one}" for one in self.dropped),
            *(f"  note: {one}" for one in self.notes),
        ]


@dataclass(slots=True)
class TranslationLog:
    """What was mapped, dropped and refused so far."""

    mapped: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def finish(self, tool: str, study: Mapping[str, Any]) -> Translation:
        """The translation, without empty sections. Raises SpecInvalid with what was refused."""
        if self.problems:
            raise SpecInvalid(self.problems)
        full = {key: one for key, one in study.items() if one not in (None, {}, [])}
        notes = tuple(self.notes)
        return Translation(tool, full, tuple(self.mapped), tuple(self.dropped), notes)


class KeyReader:
    """A mapping of a foreign document. Every key that was not read when `finish` is called is refused.

    With `texts`, numbers may be written as text.
    """

    def __init__(
        self, data: Mapping[Any, Any], log: TranslationLog, path: str = "", texts: bool = False
    ) -> None:
        self.data = {str(key): value for key, value in data.items()}
        self.log, self.path, self.texts = log, path, texts
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def at(self, key: str) -> str:
        """The path of a key."""
        return f"{self.path}.{shorten(key)}" if self.path else shorten(key)

    def take(self, key: str, to: str = "") -> Any:
        """The value of a key, or None; `to` is the key of the study that it becomes."""
        self._read.add(key)
        value = self.data.get(key)
        if value is not None and to:
            self.log.mapped.append(f"{self.at(key)} -> {to}")
        return value

    def first(self, keys: Sequence[str], to: str = "") -> Any:
        """The value of the first of several spellings of a key; two of them are a problem."""
        given = [key for key in keys if key in self]
        self._read.update(keys)
        for key in given[1:]:
            self.refuse(key, f"is the same as {given[0]}; remove one")
        return self.take(given[0], to) if given else None

    def text(self, key: str, to: str = "") -> str | None:
        """A text, or None."""
        return self._typed(key, to, lambda one: one if isinstance(one, str) else None, "text")

    def number(self, key: str, to: str = "") -> float | None:
        """A finite number, or None."""
        return self._typed(key, to, lambda one: as_number(one, self.texts), "a number")

    def whole(self, key: str, to: str = "") -> int | None:
        """A whole number, or None."""
        return self._typed(key, to, lambda one: as_whole(one, self.texts), "a whole number")

    def flag(self, key: str, to: str = "") -> bool | None:
        """True or false, or None."""
        said = "true or false"
        return self._typed(key, to, lambda one: one if isinstance(one, bool) else None, said)

    def items(self, key: str, to: str = "") -> list[Any]:
        """A list, empty where there is none."""
        found = self._typed(key, to, lambda one: list(one) if is_list(one) else None, "a list")
        return found or []

    def section(self, key: str) -> KeyReader:
        """The mapping under a key, empty where there is none."""
        found = self._typed(
            key, "", lambda one: one if isinstance(one, Mapping) else None, "a mapping"
        )
        return KeyReader(found or {}, self.log, self.at(key), self.texts)

    def drop(self, reason: str, *keys: str) -> None:
        """Leave keys out, with the reason."""
        for key in keys:
            self._read.add(key)
            if key in self:
                self.log.dropped.append(f"{self.at(key)}: {reason}")

    def refuse(self, key: str, reason: str) -> None:
        """Refuse a key, if it is there."""
        self._read.add(key)
        if key in self:
            self.problem(key, reason, self.data[key])

    def problem(self, key: str, reason: str, value: Any = None) -> None:
        """Add a problem with the value of a key."""
        plain = isinstance(value, str | int | float | bool)
        shown = shorten(_shown(value)) if plain else None
        self.log.problems.append(Problem(self.at(key) if key else self.path, reason, shown))

    def choice(self, key: str, values: Mapping[str, Any], to: str = "") -> Any:
        """What the text of a key stands for, or None; a text that is not among `values` is a problem."""
        word = self.text(key, to)
        if word is None:
            return None
        if word.lower() in values:
            return values[word.lower()]
        close = nearest(word, values)
        said = f"did you mean {close}?" if close else f"known: {', '.join(values)}"
        self.problem(key, f"cannot be translated; {said}", word)
        return None

    def finish(self) -> None:
        """Refuse every key that was not read."""
        for key in self.data:
            if key not in self._read:
                close = nearest(key, self._read)
                said = f"did you mean {close}?" if close else "it cannot be translated; remove it"
                self.problem(key, f"unknown key; {said}")

    def _typed(self, key: str, to: str, read: Callable[[Any], T | None], noun: str) -> T | None:
        value = self.take(key)
        if value is None:
            return None
        found = read(value)
        if found is None:
            self.problem(key, f"must be {noun}", value)
        elif to:
            self.log.mapped.append(f"{self.at(key)} -> {to}")
        return found


def as_number(value: Any, texts: bool = False) -> float | None:
    """A finite number, also from text where `texts` says so; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and texts:
        try:
            value = float(value) if len(value) < 64 else None
        except ValueError:
            return None
    if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return value


def as_whole(value: Any, texts: bool = False) -> int | None:
    """A whole number, also from text where `texts` says so; None for anything else."""
    found = as_number(value, texts)
    return None if found is None or found != math.floor(found) else int(found)


def is_list(value: Any) -> bool:
    """Whether it is a list of a document."""
    return isinstance(value, list | tuple)


def is_scalar(value: Any) -> bool:
    """Whether it is a plain value: a number, text, true, false or null."""
    return value is None or isinstance(value, str | int | float | bool)


def as_name(text: str, default: str = "study") -> str:
    """A name that the spec accepts."""
    return _WORD.sub("-", text).strip("-._")[:100] or default


def bounds(low: float, high: float, kind: str, **more: Any) -> dict[str, Any]:
    """A parameter with bounds; one value where both bounds are the same."""
    if low == high:
        return {"value": low}
    whole = kind == "int" or (kind == "float" and more.get("step") is not None)
    pair = (
        [int(low), int(high)]
        if kind == "int"
        else [low, high]
        if whole
        else [float(low), float(high)]
    )
    return {kind: pair, **{key: one for key, one in more.items() if one}}


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # a number with more digits than Python writes
        return "a number with too many digits"
