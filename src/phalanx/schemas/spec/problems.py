"""What pydantic found wrong, as problems that people can act on: where, what, what would be right."""

from __future__ import annotations

import reprlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from phalanx.errors import Problem
from phalanx.kit.text import nearest

_SAYINGS = {
    "missing": "is required",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def problems_of(
    errors: Sequence[Mapping[str, Any]], model: type[BaseModel], under: str = ""
) -> list[Problem]:
    """`ValidationError.errors()` as problems. `under` names where the model itself lies."""
    found = [_problem(error, model, under) for error in errors]
    unique = {(one.path, one.message): one for one in found}
    return list(unique.values())


def _problem(error: Mapping[str, Any], model: type[BaseModel], under: str) -> Problem:
    loc, kind, context = tuple(error["loc"]), error["type"], error.get("ctx", {})
    path = _path(loc, under)
    if kind == "extra_forbidden":
        return Problem(path, _unknown(str(loc[-1]), _keys_at(model, loc[:-1])))
    value = None if kind == "missing" else _shown(error["input"])
    return Problem(path, _says(kind, context, error["msg"]), value)


def _says(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind == "value_error":
        return str(context["error"])
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']:g}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']:g}"
    if kind == "greater_than":
        return f"must be more than {context['gt']:g}"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    return _SAYINGS.get(kind, message[:1].lower() + message[1:])


def _unknown(key: str, known: list[str]) -> str:
    close = nearest(key, known)
    if close is not None:
        return f"unknown key; did you mean {close}?"
    return f"unknown key; known here: {', '.join(known)}"


def _path(loc: Sequence[Any], under: str) -> str:
    path = under
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else str(part)
    return path


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, list(value)[:6])) or 'no keys'}"
    return _SHORT.repr(value)


def _keys_at(model: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    """The keys that are known where `loc` leads."""
    here: Any = model
    for part in loc:
        here = _step(here, str(part))
    section = _section_in(here)
    return [] if section is None else list(_by_key(section))


def _by_key(section: type[BaseModel]) -> dict[str, Any]:
    fields = section.model_fields.items()
    return {field.alias or name: field.annotation for name, field in fields}


def _step(annotation: Any, key: str) -> Any:
    """The annotation of what lies under `key` in a value of this annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _by_key(annotation).get(key)
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) in (dict, list):
        return args[-1]
    inner = (_step(arg, key) for arg in args)
    return next((found for found in inner if found is not None), None)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside `X`, `X | None` or `Annotated[X, ...]`; None when there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_section_in(arg) for arg in typing.get_args(annotation))
    return next((found for found in inner if found is not None), None)
