"""The query language over runs: `metric:val_acc>0.9 param:lr<1e-3 tag:baseline state:succeeded since:7d`.

A query is a list of terms that must all match. A term is a field, a colon and a value; `-` in front of it
finds what does not match. Several values with commas between them match any of them. Quotes hold blanks,
commas and comparisons together. A word without a field is a part of the name of the job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NoReturn

from phalanx.core.jobs.model import JobState
from phalanx.errors import UserError
from phalanx.kit.text import parse_job_label
from phalanx.kit.units import parse_duration

MAX_LENGTH = 8000
"""Characters of a query."""
MAX_TERMS = 30
MAX_VALUES = 500
"""Values of one term."""
_MAX_VALUE = 500
_SHOWN = 60
_US = 1_000_000


class Comparison(StrEnum):
    """How a term compares. `HAS`: there is a value, whatever it is."""

    HAS = ""
    EQUAL = "="
    NOT_EQUAL = "!="
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


Value = str | float | int
WORDS = (
    *("state", "user", "project", "name", "reason", "cause", "framework", "pool", "kind"),
    *("image", "script", "data", "algorithm", "tag", "group", "commit", "note"),
)
"""Fields with a text; `*` in it stands for any text."""
NUMBERS = ("priority", "slots", "nodes", "restarts", "usd", "slot_seconds")
DURATIONS = ("duration", "queue")
TIMES = ("since", "until")
IDS = ("job", "study", "array")
NAMED = ("metric", "param", "label")
FIELDS = (*NAMED, *WORDS, *NUMBERS, *DURATIONS, *TIMES, *IDS)
SUMMARIES = ("last", "min", "max")
_ALIASES = {"owner": "user", "id": "job", "params": "param", "tags": "tag", "metrics": "metric"}
_COMPARISON = re.compile(r"!=|<=|>=|==|=|<|>")
_FIELD = re.compile(r"[A-Za-z_]+")
_SUMMARY = re.compile(r"(last|min|max)\((.*)\)", re.S)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a query. Times are µs UTC, durations seconds."""

    field: str  # one of `FIELDS`
    comparison: Comparison
    values: tuple[Value, ...] = ()  # any of these; a comparison of order has one number
    name: str = ""  # of the metric, the parameter or the label
    summary: str = "last"  # of a metric: one of `SUMMARIES`
    negated: bool = False


def parse(text: str, now: int) -> tuple[Term, ...]:
    """The terms of a query; `now`, in µs UTC, is what `since:7d` counts from.

    Raises UserError, which marks the place of the first mistake.
    """
    if len(text) > MAX_LENGTH:
        raise UserError(f"the query has more than {MAX_LENGTH} characters")
    found = [_term(text, piece, now) for piece in _pieces(text)]
    if len(found) > MAX_TERMS:
        raise UserError(f"the query has more than {MAX_TERMS} terms")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the query: its characters with their places; those in quotes have no meaning."""

    chars: tuple[tuple[str, int, bool], ...]  # character, place, whether it stands in quotes
    at: int

    @property
    def text(self) -> str:
        return "".join(char for char, _, _ in self.chars)

    @property
    def plain(self) -> str:
        """The same length, with what stands in quotes masked."""
        return "".join("\0" if quoted else char for char, _, quoted in self.chars)

    def part(self, begin: int, end: int | None = None) -> _Piece:
        if begin < len(self.chars):
            return _Piece(self.chars[begin:end], self.chars[begin][1])
        return _Piece((), self.chars[-1][1] + 1 if self.chars else self.at)


def _pieces(text: str) -> list[_Piece]:
    """The query split at blanks outside of quotes."""
    found: list[_Piece] = []
    current: list[tuple[str, int, bool]] = []
    opened: int | None = None
    begin = 0
    for at, char in enumerate(text):
        if char == '"':
            begin = begin if current or opened is not None else at
            opened = at if opened is None else None
        elif char.isspace() and opened is None:
            if current:
                found.append(_Piece(tuple(current), begin))
            current = []
        elif not char.isprintable():
            _refuse(text, at, "a character that cannot be printed")
        else:
            begin = begin if current else at
            current.append((char, at, opened is not None))
    if opened is not None:
        _refuse(text, opened, "this quote has no end")
    if current:
        found.append(_Piece(tuple(current), begin))
    return found


def _term(text: str, piece: _Piece, now: int) -> Term:
    negated = piece.plain.startswith("-")
    if negated:
        piece = piece.part(1)
        if not piece.chars:
            _refuse(text, piece.at, "`-` needs a term behind it")
    said, colon, _ = piece.plain.partition(":")
    if not colon:
        if _COMPARISON.search(piece.plain):
            _refuse(text, piece.at, "a comparison needs a field: `metric:` or `param:`")
        return Term("name", Comparison.EQUAL, (f"*{piece.text}*",), negated=negated)
    field = _ALIASES.get(said.lower(), said.lower())
    if not _FIELD.fullmatch(said) or field not in FIELDS:
        _refuse(text, piece.at, f"there is no field {said!r}; there are {', '.join(FIELDS)}")
    body = piece.part(len(said) + 1)
    if not body.chars:
        _refuse(text, body.at, f"`{field}:` needs a value")
    read = _NAMED_READERS.get(field, _value_term)
    term = read(text, field, body, now)
    return Term(term.field, term.comparison, term.values, term.name, term.summary, negated)


def _split(text: str, body: _Piece) -> tuple[_Piece, Comparison, _Piece]:
    """The parts of a body around its comparison."""
    found = _COMPARISON.search(body.plain)
    if found is None:
        return body, Comparison.HAS, body.part(len(body.chars))
    sign = "=" if found[0] == "==" else found[0]
    value = body.part(found.end())
    if not value.chars:
        _refuse(text, value.at, f"a value is missing behind `{found[0]}`")
    return body.part(0, found.start()), Comparison(sign), value


def _metric(text: str, _field: str, body: _Piece, _now: int) -> Term:
    name, comparison, value = _split(text, body)
    summary, said = "last", name.text
    if (shape := _SUMMARY.fullmatch(name.plain)) is not None:
        summary, said = shape[1], name.part(len(shape[1]) + 1, -1).text
    if not said:
        _refuse(text, name.at, "the name of the metric is missing: metric:NAME>NUMBER")
    if comparison is Comparison.HAS:
        return Term("metric", comparison, (), said, summary)
    return Term("metric", comparison, (_number(text, value),), said, summary)


def _param(text: str, _field: str, body: _Piece, _now: int) -> Term:
    name, comparison, value = _split(text, body)
    if not name.text:
        _refuse(text, name.at, "the name of the parameter is missing: param:NAME<NUMBER")
    if comparison is Comparison.HAS:
        return Term("param", comparison, (), name.text)
    if comparison in (Comparison.EQUAL, Comparison.NOT_EQUAL):
        return Term("param", comparison, _texts(text, value), name.text)
    return Term("param", comparison, (_number(text, value),), name.text)


def _label(text: str, _field: str, body: _Piece, _now: int) -> Term:
    name, comparison, value = _split(text, body)
    if not name.text:
        _refuse(text, name.at, "the name of the label is missing: label:NAME=VALUE")
    if comparison is Comparison.HAS:
        return Term("label", comparison, (), name.text)
    if comparison not in (Comparison.EQUAL, Comparison.NOT_EQUAL):
        _refuse(text, name.at, "a label is compared by = or !=")
    return Term("label", comparison, _texts(text, value), name.text)


def _value_term(text: str, field: str, body: _Piece, now: int) -> Term:
    """A term about a field without a name: `state:failed`, `usd:>10`, `since:7d`."""
    ordered = field in NUMBERS or field in DURATIONS
    sign = _COMPARISON.match(body.plain)
    if sign is None:
        comparison, value = Comparison.EQUAL, body
    else:
        before, comparison, value = _split(text, body)
        if before.chars:
            _refuse(text, before.at, f"write `{field}:{sign[0]}VALUE`")
    if comparison not in (Comparison.EQUAL, Comparison.NOT_EQUAL) and not ordered:
        _refuse(text, body.at, f"`{field}` has no order: write `{field}:VALUE`")
    if field in TIMES:
        return Term(field, comparison, (_time(text, value, now),))
    if ordered:
        read = _number if field in NUMBERS else _duration
        return Term(field, comparison, (read(text, value),))
    if field in IDS:
        ids = tuple(_id(text, field, one) for one in _listed(text, value))
        return Term(field, comparison, ids)
    words = _texts(text, value)
    if field == "state":
        words = tuple(word.lower() for word in words)
        unknown = next((word for word in words if word not in list(JobState)), None)
        if unknown is not None:
            said = ", ".join(JobState)
            _refuse(text, value.at, f"there is no state {unknown!r}; there are {said}")
    return Term(field, comparison, words)


_Reader = Callable[[str, str, _Piece, int], Term]
_NAMED_READERS: Mapping[str, _Reader] = {"metric": _metric, "param": _param, "label": _label}


def _listed(text: str, value: _Piece) -> list[_Piece]:
    """The parts between commas outside of quotes."""
    found, begin = list[_Piece](), 0
    for end in [*(at for at, char in enumerate(value.plain) if char == ","), len(value.chars)]:
        part = value.part(begin, end)
        if not part.chars:
            _refuse(text, part.at, "a value is missing beside the comma")
        found.append(part)
        begin = end + 1
    if len(found) > MAX_VALUES:
        _refuse(text, value.at, f"more than {MAX_VALUES} values")
    return found


def _texts(text: str, value: _Piece) -> tuple[str, ...]:
    found = []
    for one in _listed(text, value):
        if len(one.chars) > _MAX_VALUE:
            _refuse(text, one.at, f"a value with more than {_MAX_VALUE} characters")
        found.append(one.text)
    return tuple(found)


def _number(text: str, value: _Piece) -> float:
    try:
        number = float(value.text)
    except ValueError:
        _refuse(text, value.at, f"{value.text!r} is not a number")
    if not math.isfinite(number):
        _refuse(text, value.at, "the number must be finite")
    return number


def _duration(text: str, value: _Piece) -> float:
    try:
        return parse_duration(value.text)
    except ValueError:
        _refuse(text, value.at, f"{value.text!r} is not a duration, such as 90s or 1h30m")


def _time(text: str, value: _Piece, now: int) -> int:
    """A time, or how long ago: `7d`, `2026-05-01`, `2026-05-01T12:00Z`."""
    said = value.text
    try:
        if re.match(r"\d{4}-", said):
            at = datetime.fromisoformat(said)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
            return round(at.timestamp() * _US)
        return now - round(parse_duration(said) * _US)
    except (ValueError, OverflowError):
        wanted = "a duration such as 7d, or a time such as 2026-05-01T12:00Z"
        _refuse(text, value.at, f"{said!r} is not {wanted}")


def _id(text: str, field: str, value: _Piece) -> int:
    said = value.text
    if field == "job":
        num = parse_job_label(said)
    else:
        bare = re.sub(r"^[a-z]-", "", said)
        num = int(bare) if bare.isascii() and bare.isdigit() and len(bare) < 19 else None
    if num is None or not 0 < num < 2**63:
        _refuse(text, value.at, f"{said!r} is no number of a {field}")
    return num


def _refuse(text: str, at: int, said: str) -> NoReturn:
    """Raise UserError with the query and a mark under the place; of a long query only a part is shown."""
    begin = max(0, at - _SHOWN)
    shown = "".join(char if char.isprintable() else " " for char in text[begin : at + _SHOWN])
    dots = "…" if begin else ""
    line, mark = f"  {dots}{shown}", f"  {' ' * (len(dots) + at - begin)}^"
    raise UserError(f"the query is wrong at character {at + 1}: {said}\n{line}\n{mark}")
