"""The parameters of a run: from the arguments of its script, from configuration files, and from the script.

A parameter is a name and a plain value. Nested mappings are flattened: `{"optimizer": {"lr": 0.1}}` is
`optimizer.lr`. Values of secrets are withheld, by the rules that variables have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from phalanx.core.contract.secrecy import WITHHELD, is_secret, redacted
from phalanx.core.contract.trial import Param

MAX_PARAMS = 1000
"""Parameters of one source of a run; the rest is left out."""
MAX_NAME = 200
"""Characters of a name; parameters with longer ones are left out."""
MAX_VALUE = 500
"""Characters of a text; the rest is cut off."""
MAX_FILES = 8
"""Configuration files of a run."""
_MAX_DEPTH = 20
_MAX_VISITS = 10_000
_MAX_LISTED = 100
_PLAIN = (str, int, float, bool, type(None))
_CONFIG_FILE = re.compile(r"[^-\s]\S*\.(?:ya?ml|json|toml)", re.I)
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.S)
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_END = re.compile(r"[;|&<>()]+")
_WORDS: dict[str, Param] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}


class ParamSource(StrEnum):
    """Where a parameter comes from. Of equal names the value of the last source in this order counts."""

    CONFIG = "config"  # a configuration file
    STUDY = "study"  # the study that the run is a trial of
    ARGUMENT = "argument"  # the command
    SCRIPT = "script"  # `run.params(...)`


ORDER = tuple(ParamSource)


@dataclass(frozen=True, slots=True)
class RunParam:
    """One parameter of a run."""

    name: str
    value: Param
    source: ParamSource

    @property
    def text(self) -> str:
        """The value as text: a text as it is, anything else as JSON has it."""
        return text_of(self.value)

    @property
    def number(self) -> float | None:
        """The value as a number; None: it is none, or not finite."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return None
        try:
            number = float(self.value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None


def text_of(value: Param) -> str:
    """The text of a value: a text as it is, anything else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value)


def params_of(source: ParamSource, values: Mapping[str, Any]) -> list[RunParam]:
    """The parameters in a mapping, which may be nested, by name; secrets are withheld."""
    return [
        RunParam(name, _shown(name, value), source) for name, value in sorted(flattened(values))
    ]


def flattened(values: Mapping[str, Any]) -> list[tuple[str, Param]]:
    """The plain values of a nested mapping, by dotted name; at most `MAX_PARAMS`.

    A list of plain values is one text, `[0.9,0.999]`; the elements of any other list have their number in
    the name. Values of other kinds are their text.
    """
    found: dict[str, Param] = {}
    for name, value in islice(_walk("", values, 0), _MAX_VISITS):
        if len(found) >= MAX_PARAMS:
            break
        if 0 < len(name) <= MAX_NAME:
            found[name] = _bounded(value)
    return list(found.items())


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and depth < _MAX_DEPTH:
        for key, one in value.items():
            # Aliases in YAML can make a small file a large tree: what is too deep has no name and counts.
            yield from _walk(f"{path}.{key}" if path else str(key), one, depth + 1)
    elif isinstance(value, list | tuple) and not _is_listed(value) and depth < _MAX_DEPTH:
        for number, one in enumerate(value):
            yield from _walk(f"{path}.{number}", one, depth + 1)
    else:
        yield path, value


def _is_listed(value: Sequence[Any]) -> bool:
    return len(value) <= _MAX_LISTED and all(isinstance(one, _PLAIN) for one in value)


def _bounded(value: Any) -> Param:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else "a whole number with more than 63 bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple) and _is_listed(value):
        return json.dumps(value, separators=(",", ":"), default=str)[:MAX_VALUE]
    text = value if isinstance(value, str) else _said(value)
    return text.replace("\0", "")[:MAX_VALUE]


def _said(value: Any) -> str:
    """The text of a value that is no plain one; of a container that is too deep, only its kind."""
    if value == {}:
        return "{}"
    return type(value).__name__ if isinstance(value, Mapping | list | tuple) else str(value)


def _shown(name: str, value: Param) -> Param:
    if not isinstance(value, str):
        return value
    return WITHHELD if value and is_secret(name.rpartition(".")[2], value) else redacted(value)


def parsed(text: str) -> Param:
    """The value that a text stands for: a number, true, false, null, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text) or len(text) > 40:
        return text
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return number if math.isfinite(number) else text


def read_arguments(words: Sequence[str]) -> dict[str, Param]:
    """The parameters among the words behind a script, such as `--lr 0.1`, `--lr=0.1` or `model.lr=0.1`.

    An option without a value is true; one that is given again has the last value. A `-` inside of the name
    of an option is `_`, as in the name that argparse gives to it. Words that belong to no option are left
    out.
    """
    found: dict[str, Param] = {}
    at = 0
    while at < len(words) and not _END.fullmatch(words[at]):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name):
            if equals:
                found[_plain_name(name)] = parsed(value)
                continue
            values = _values(words, at)
            at += len(values)
            found[_plain_name(name)] = True if not values else parsed(" ".join(values))
        elif (override := _OVERRIDE.fullmatch(word)) is not None:
            found[override[1]] = parsed(override[2])
    return found


def _plain_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _values(words: Sequence[str], at: int) -> list[str]:
    """The words that belong to an option: one, or several numbers."""
    found: list[str] = []
    for word in words[at:]:
        number = _NUMBER.fullmatch(word) is not None
        if _END.fullmatch(word) or (word.startswith("-") and not number):
            break
        if found and not number:
            break
        found.append(word)
        if not number:
            break
    return found


def config_files(words: Sequence[str]) -> list[str]:
    """The configuration files that are named among the words behind a script, each once."""
    found: dict[str, None] = {}
    for word in words:
        if _END.fullmatch(word):
            break
        name = word.rpartition("=")[2]
        if _CONFIG_FILE.fullmatch(name) and "://" not in name:
            found[name] = None
    return list(found)[:MAX_FILES]


def effective(found: Sequence[RunParam]) -> dict[str, RunParam]:
    """The parameter that counts for each name."""
    chosen: dict[str, RunParam] = {}
    for one in sorted(found, key=lambda one: ORDER.index(one.source)):
        chosen[one.name] = one
    return dict(sorted(chosen.items()))


def differing(runs: Sequence[Mapping[str, Param]]) -> list[str]:
    """The names of parameters that do not have the same value in all of these runs."""
    names = {name: None for one in runs for name in one}
    return sorted(
        name
        for name in names
        if len({text_of(one[name]) if name in one else None for one in runs}) > 1
    )
