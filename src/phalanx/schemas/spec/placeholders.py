"""Placeholders of a study's job spec: `${params.lr}` in any text is replaced by a trial's value.

A text that is one placeholder and nothing else becomes the value itself, with its type; in a command, a
variable or a label it becomes text. In texts a value is written as JSON writes numbers, true and false.
Text in a line for the shell (`run`, `setup`) is quoted as one word where it needs to be.
`${params.momentum:-0.9}` has a default for trials in which the parameter is not active.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import Problem
from phalanx.kit.text import nearest, shorten

_PLACEHOLDER = re.compile(r"\$\{params\.([^}:]*)(?::-([^}]*))?\}")
_BROKEN = re.compile(r"\$\{params\b(?![^{}]*\})")
_SHELL_KEYS = frozenset({"run", "setup"})
# Keys with texts only, at any depth.
_TEXT_KEYS = frozenset({*_SHELL_KEYS, "env", "labels", "data", "metrics"})
_MAX_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder: its path in the job spec, the parameter, and its default if it has one.

    `alone`: it is the whole text, so that its value keeps its type.
    """

    path: str
    name: str
    default: str | None
    alone: bool


def placeholders(job: Mapping[str, Any]) -> list[Placeholder]:
    """Every placeholder of a job spec, in the order of the document."""
    return [
        Placeholder(path, match[1], match[2], match.span() == (0, len(text)))
        for path, text in _texts(job, "", 0)
        for match in _PLACEHOLDER.finditer(text)
    ]


def placeholder_problems(
    job: Mapping[str, Any], known: Iterable[str], optional: Iterable[str] = ()
) -> list[Problem]:
    """What is wrong with the placeholders of a job spec.

    `known` are the parameters of the space, `optional` those that are not active in every trial: such a
    placeholder needs a default.
    """
    names, sometimes, found = list(known), set(optional), []
    for path, text in _texts(job, "", 0):
        if _BROKEN.search(text):
            said = "has a placeholder without an end; write ${params.NAME}"
            found.append(Problem(path, said, shorten(repr(text))))
    for one in placeholders(job):
        shown = "${params." + shorten(one.name) + "}"
        if one.name not in names:
            close = nearest(one.name, names)
            said = f"did you mean {close}?" if close else f"known here: {', '.join(names[:20])}"
            found.append(Problem(one.path, f"{shown}: no such parameter; {said}"))
        elif one.name in sometimes and one.default is None:
            said = f"is not active in every trial; write ${{params.{one.name}:-DEFAULT}}"
            found.append(Problem(one.path, f"{shown} {said}"))
    return found


def fill(job: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The job spec with every placeholder replaced. Keys of mappings are left as they are.

    Raises KeyError for a parameter that has neither a value nor a default.
    """
    filled = _filled(job, params, typed=True, shell=False)
    assert isinstance(filled, dict)
    return filled


def _filled(value: Any, params: Mapping[str, Any], typed: bool, shell: bool) -> Any:
    if isinstance(value, str):
        return _filled_text(value, params, typed, shell)
    if isinstance(value, Mapping):
        return {
            key: _filled(
                one,
                params,
                typed=typed and key not in _TEXT_KEYS,
                shell=key in _SHELL_KEYS and isinstance(one, str),
            )
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_filled(one, params, typed, shell=False) for one in value]
    return value


def _filled_text(text: str, params: Mapping[str, Any], typed: bool, shell: bool) -> Any:
    whole = _PLACEHOLDER.fullmatch(text)
    if whole is not None and typed:
        return _value(whole, params)

    def written(match: re.Match[str]) -> str:
        value = _value(match, params)
        if isinstance(value, str):
            return shlex.quote(value) if shell else value
        return json.dumps(value)

    return _PLACEHOLDER.sub(written, text)


def _value(match: re.Match[str], params: Mapping[str, Any]) -> Any:
    if match[1] in params or match[2] is None:
        return params[match[1]]
    try:
        value = json.loads(match[2])
    except ValueError:
        return match[2]
    return value if isinstance(value, str | int | float | bool | None) else match[2]


def _texts(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif depth > _MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _texts(one, f"{path}[{index}]", depth + 1)
