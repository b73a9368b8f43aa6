"""Read `--filter` of `phalanx ps`: a field of a job, how it is compared, and a value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from phalanx.errors import UserError
from phalanx.kit.text import nearest
from phalanx.kit.units import parse_duration

_TERM = re.compile(r"([a-z_]+)\s*(>=|<=|=|<|>)\s*(.+)")
_WORDS = ("cause", "framework", "image", "kind", "metric", "name", "owner", "pool", "project")
_SOURCES = ("entry_point", "data", "algorithm")
_EQUAL = (*_WORDS, *_SOURCES, "reason", "slot_type", "study", "trials", "array")
_NUMBERS = ("priority", "slots", "nodes", "restarts", "slot_seconds", "usd", "metric_value")
_DURATIONS = {"queue": "queue_s", "duration": "duration_s"}
_TIMES = ("submitted", "started", "ended")
FIELDS = (*_EQUAL, *_NUMBERS, *_DURATIONS, *_TIMES)
"""The fields that a filter can have."""


def parse_filters(texts: Iterable[str], now: datetime) -> dict[str, Any]:
    """The query parameters of `GET /api/v1/jobs` for filters such as `usd>=10` and `started>=7d`.

    A time is RFC 3339, or how long ago. Raises UserError for an unknown field, another comparison than
    the field has, a bad value, and the same filter twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        match = _TERM.fullmatch(text.strip())
        if match is None:
            raise UserError(
                f"--filter: {text!r} is not a filter",
                "write FIELD=VALUE, FIELD>=VALUE or FIELD<=VALUE",
            )
        name, value = _parameter(match[1], match[2], match[3], now)
        if name in found:
            raise UserError(f"--filter: {text!r} repeats an earlier filter", "give each one once")
        found[name] = value
    return found


def _parameter(field: str, sign: str, value: str, now: datetime) -> tuple[str, Any]:
    if field not in FIELDS:
        meant = nearest(field, FIELDS)
        said = f"did you mean {meant}? The" if meant else "the"
        hint = f"{said} fields are {', '.join(sorted(FIELDS))}"
        raise UserError(f"--filter: jobs have no field {field!r}", hint)
    if field in _EQUAL:
        _check(field, sign, ("=",))
        return field, value
    if field in _TIMES:
        _check(field, sign, (">=", "<"))
        return f"{field}_{'from' if sign == '>=' else 'to'}", _moment(field, value, now)
    _check(field, sign, (">=", "<="))
    end = "min" if sign == ">=" else "max"
    if field in _DURATIONS:
        return f"{end}_{_DURATIONS[field]}", _seconds(field, value)
    try:
        float(value)
    except ValueError:
        raise UserError(f"--filter: {value!r} of {field} is not a number") from None
    return f"{end}_{field}", value


def _check(field: str, sign: str, allowed: tuple[str, ...]) -> None:
    if sign not in allowed:
        forms = " or ".join(f"{field}{one}VALUE" for one in allowed)
        raise UserError(f"--filter: {field} cannot be compared with {sign}", f"write {forms}")


def _seconds(field: str, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise UserError(f"--filter: {field}: {error}") from None


def _moment(field: str, value: str, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return now - timedelta(seconds=_seconds(field, value))
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
