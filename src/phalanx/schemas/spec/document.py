"""A job spec as text and as plain data: how it is read, what is wrong with it, and how it is written.

    spec = load_spec(Path("job.yaml"))          # SpecInvalid: every problem, with its path
    problems = check_supported(spec)            # `support`: fields that are accepted but not built yet
    contract = spec.to_contract()               # `job`: what the ranks run

YAML files, the metadata block of a script (PEP 723), and dictionaries.
"""

from __future__ import annotations

import itertools
import re
import reprlib
import tomllib
import typing
import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest, shorten
from phalanx.schemas.spec.job import JobSpec

_BLOCK = re.compile(
    r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)[ \t]*$\s(?P<content>(^#(| .*)$\s)+)^# ///[ \t]*$"
)


class SpecLoader(yaml.SafeLoader):
    """YAML 1.2's idea of plain values: `yes` is text, `1:30` is text, keys are not repeated."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping of a node. Raises ConstructorError for a key that is given twice."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_int(loader: Any, node: Any) -> int:
    try:
        return int(loader.construct_scalar(node))
    except ValueError:
        raise yaml.constructor.ConstructorError(
            None, None, "a number with too many digits; put it in quotes", node.start_mark
        ) from None


_PLAIN: tuple[tuple[str, str, list[str]], ...] = (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+0123456789.")),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
)
for _tag, _pattern, _first in _PLAIN:
    SpecLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )
SpecLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def validate_spec(data: Mapping[str, Any], under: str = "") -> JobSpec:
    """A spec from plain data. Raises SpecInvalid with every problem found."""
    try:
        return JobSpec.model_validate(dict(data))
    except ValidationError as error:
        problems = problems_of(error.errors(include_url=False), JobSpec, under)
        raise SpecInvalid(problems) from None


def read_yaml(text: str, origin: str, noun: str = "a job spec") -> dict[str, Any]:
    """The mapping in a YAML text. Raises SpecInvalid naming `origin`, the line and the column."""
    try:
        data = yaml.load(text, Loader=SpecLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{origin}, line {mark.line + 1}, column {mark.column + 1}" if mark else origin
        raise SpecInvalid([Problem(where, f"not valid YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise SpecInvalid([Problem(origin, f"not valid YAML: {error}")]) from None
    except RecursionError:
        raise SpecInvalid([Problem(origin, "is nested too deep")]) from None
    if not isinstance(data, dict):
        found = "an empty file" if data is None else f"a {type(data).__name__}"
        said = f"{noun} is a mapping that begins with `schema: 1`, this is {found}"
        raise SpecInvalid([Problem(origin, said)])
    return {str(key): value for key, value in data.items()}


def load_spec(source: str | Path) -> JobSpec:
    """A spec from a YAML text, or from the file at a Path. Raises SpecInvalid.

    Warns with FutureWarning of a key that has another name now.
    """
    text, origin = (source, "spec") if isinstance(source, str) else (read_text(source), str(source))
    data = read_yaml(text, origin)
    warn_of_old_names(data, origin)
    return validate_spec(data)


def warn_of_old_names(data: Mapping[str, Any], origin: str) -> None:
    """Warn of keys that have another name now; `recovery` may still be anything."""
    recovery = data.get("recovery")
    if isinstance(recovery, dict) and "max_barren" in recovery:
        said = "recovery.max_barren is now max_restarts_without_progress; write the new name"
        warnings.warn(f"{origin}: {said}", FutureWarning, stacklevel=3)


def read_text(path: Path) -> str:
    """The text of a file. Raises SpecInvalid when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        said = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise SpecInvalid([Problem(str(path), said)]) from None
    except UnicodeDecodeError:
        raise SpecInvalid([Problem(str(path), "is not a text file in UTF-8")]) from None


def script_defaults(script: str, origin: str) -> dict[str, Any]:
    """The table `[tool.phalanx]` in the `# /// script` block of a script's text; {} without one.

    Raises SpecInvalid when the block is not valid TOML, or there is more than one.
    """
    blocks = [m for m in _BLOCK.finditer(script) if m["type"] == "script"]
    if not blocks:
        return {}
    if len(blocks) > 1:
        raise SpecInvalid([Problem(origin, "has more than one `# /// script` block")])
    lines = blocks[0]["content"].splitlines(keepends=True)
    body = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        table = tomllib.loads(body)
    except tomllib.TOMLDecodeError as error:
        said = f"the `# /// script` block is not valid TOML: {error}"
        raise SpecInvalid([Problem(origin, said)]) from None
    defaults = table.get("tool", {}).get("phalanx", {})
    if not isinstance(defaults, dict):
        raise SpecInvalid([Problem(f"{origin}: tool.phalanx", "must be a table")])
    warn_of_old_names(defaults, origin)
    return defaults


def resolved(spec: JobSpec) -> dict[str, Any]:
    """The spec with every default filled in, as plain data that `validate_spec` reads again.

    Restart budgets without a limit read `unlimited`.
    """
    data = spec.model_dump(mode="json")
    for section in data["recovery"].values():
        if isinstance(section, dict) and "count" in section and section["count"] is None:
            section["count"] = "unlimited"
    return data


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, in its own order."""
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))


def json_schema(model: type[BaseModel] = JobSpec) -> dict[str, Any]:
    """The published JSON schema of the job spec, or of another kind of file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(by_alias=True, mode="validation"),
    }


# -- problems ---------------------------------------------------------------------------------

MAX_PROBLEMS = 50
"""The most problems that one answer lists; looking for a similar key takes time for each."""
_WHOLE = "must be a whole number"
_MAPPING = "must be a mapping of keys to values"
_SAYINGS = {
    "missing": "is required",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), _WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _MAPPING),
}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def problems_of(
    errors: Sequence[Mapping[str, Any]], model: type[BaseModel], under: str = ""
) -> list[Problem]:
    """`ValidationError.errors()` as problems. `under` names where the model itself lies."""
    found = [_problem(error, model, under) for error in errors[:MAX_PROBLEMS]]
    if len(errors) > MAX_PROBLEMS:
        found.append(Problem(under, f"and {len(errors) - MAX_PROBLEMS} more problems"))
    unique = {(one.path, one.message): one for one in found}
    return list(unique.values())


def _problem(error: Mapping[str, Any], model: type[BaseModel], under: str) -> Problem:
    loc, kind, context = tuple(error["loc"]), error["type"], error.get("ctx", {})
    path = _path(loc, under)
    if kind == "extra_forbidden":
        return Problem(path, _unknown(str(loc[-1]), _keys_at(model, loc[:-1])))
    value = None if kind == "missing" else _shown(error["input"])
    return Problem(path, shorten(_says(kind, context, error["msg"]), 500), value)


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
            shown = shorten(str(part))
            path += f".{shown}" if path else shown
    return path


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        keys = ", ".join(shorten(str(key)) for key in itertools.islice(value, 6))
        return f"a mapping with {keys or 'no keys'}"
    try:
        return _SHORT.repr(value)
    except ValueError:  # a number with more digits than Python writes
        return "a number with too many digits"


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
