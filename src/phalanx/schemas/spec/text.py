"""A job spec from text: YAML files, and the metadata block of a script (PEP 723)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.spec.models import JobSpec
from phalanx.schemas.spec.problems import problems_of

_BLOCK = re.compile(
    r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)[ \t]*$\s(?P<content>(^#(| .*)$\s)+)^# ///[ \t]*$"
)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of plain values: `yes` is text, `1:30` is text, keys are not repeated."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_int(loader: Any, node: Any) -> int:
    return int(loader.construct_scalar(node))


_PLAIN: tuple[tuple[str, str, list[str]], ...] = (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+0123456789.")),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
)
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


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
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{origin}, line {mark.line + 1}, column {mark.column + 1}" if mark else origin
        raise SpecInvalid([Problem(where, f"not valid YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise SpecInvalid([Problem(origin, f"not valid YAML: {error}")]) from None
    if not isinstance(data, dict):
        found = "an empty file" if data is None else f"a {type(data).__name__}"
        said = f"{noun} is a mapping that begins with `schema: 1`, this is {found}"
        raise SpecInvalid([Problem(origin, said)])
    return {str(key): value for key, value in data.items()}


def load_spec(source: str | Path) -> JobSpec:
    """A spec from a YAML text, or from the file at a Path. Raises SpecInvalid."""
    if isinstance(source, str):
        return validate_spec(read_yaml(source, "spec"))
    return validate_spec(read_yaml(read_text(source), str(source)))


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


def json_schema() -> dict[str, Any]:
    """The published JSON schema of the job spec."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **JobSpec.model_json_schema(by_alias=True, mode="validation"),
    }
