"""Read YAML of another tool as plain data with the line of every key, within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import shorten
from phalanx.schemas.spec.document import SpecLoader

Path = tuple[str | int, ...]
MAX_TEXT = 1_000_000
"""The most characters of a file."""
_MAX_NODES = 50_000
_MAX_DEPTH = 50
_TAGS = frozenset(
    f"tag:yaml.org,2002:{one}" for one in ("map", "seq", "str", "int", "float", "bool", "null")
)
_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
_TEMPLATE = re.compile(rf"\{{\{{-?\s*\.?({_NAME})\s*-?\}}\}}")
_SHELL = re.compile(r"(?<![$\\])\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class ForeignDocument:
    """One YAML document: its data, and the line of each key and entry by path."""

    data: dict[str, Any]
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """The line of a key, or of the nearest one above it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def fill_placeholders(text: str, values: Mapping[str, str]) -> tuple[str, set[str]]:
    """The text with `$NAME`, `${NAME}` and `{{ NAME }}` filled in, and the names that it has."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        name = next(one for one in match.groups() if one)
        if name not in values:
            return match.group(0)
        used.add(name)
        return values[name]

    return _SHELL.sub(fill, _TEMPLATE.sub(fill, text)), used


def unfilled_templates(text: str, origin: str) -> list[Problem]:
    """A problem for each `{{ NAME }}` that was not filled in."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in _TEMPLATE.finditer(line):
            said = f"the placeholder {match.group(0)} has no value; add --set {match[1]}=VALUE"
            found.append(Problem(f"{origin}, line {number}", said))
    return found


def unfilled_in(value: str) -> list[str]:
    """Names of `$NAME` and `${NAME}` in a value that no shell reads."""
    return [one or other for one, other in _SHELL.findall(value)]


def read_documents(text: str, origin: str) -> list[ForeignDocument]:
    """The documents of a text that are mappings. Raises SpecInvalid naming the line of what is wrong."""
    if len(text) > MAX_TEXT:
        raise SpecInvalid([Problem(origin, f"is too long: at most {MAX_TEXT} characters")])
    try:
        nodes = [one for one in yaml.compose_all(text, Loader=SpecLoader) if one is not None]
        return [_document(node, origin) for node in nodes if not _is_null(node)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{origin}, line {mark.line + 1}" if mark else origin
        raise SpecInvalid([Problem(where, f"not valid YAML: {error.problem}")]) from None
    except (yaml.YAMLError, RecursionError) as error:
        said = "is nested too deep" if isinstance(error, RecursionError) else f"not YAML: {error}"
        raise SpecInvalid([Problem(origin, said)]) from None


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _document(node: yaml.Node, origin: str) -> ForeignDocument:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise SpecInvalid([Problem(f"{origin}, line {line}", "must be a mapping of keys")])
    builder = _Builder(origin)
    return ForeignDocument(builder.build(node, (), 0), builder.lines)


class _Builder:
    """Plain data of nodes. Aliases count each time they are used, so that none can multiply."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.lines: dict[Path, int] = {}
        self._count = 0
        self._loader = SpecLoader("")

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._count += 1
        at = node.start_mark.line + 1
        if self._count > _MAX_NODES or depth > _MAX_DEPTH:
            said = f"is too large: at most {_MAX_NODES} values, nested {_MAX_DEPTH} deep"
            raise SpecInvalid([Problem(f"{self.origin}, line {at}", said)])
        self.lines.setdefault(path, at)
        if node.tag not in _TAGS:
            said = f"the tag {shorten(node.tag)} is not read; write plain YAML"
            raise SpecInvalid([Problem(f"{self.origin}, line {at}", said)])
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key, line, value in self._pairs(node, depth):
                self.lines[(*path, key)] = line
                found[key] = self.build(value, (*path, key), depth + 1)
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self.build(one, (*path, n), depth + 1) for n, one in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _pairs(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, int, yaml.Node]]:
        """Keys with their lines; those of `<<` come first and are replaced by the mapping's own."""
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: dict[str, tuple[int, yaml.Node]] = {}
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            where = f"{self.origin}, line {line}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecInvalid([Problem(where, "a key must be plain text")])
            if key_node.value == "<<" and key_node.style is None:
                if depth > _MAX_DEPTH:
                    raise SpecInvalid([Problem(where, "is nested too deep")])
                several = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for one in several:
                    if not isinstance(one, yaml.MappingNode):
                        raise SpecInvalid([Problem(where, "`<<` must name a mapping")])
                    for key, at, inner in self._pairs(one, depth + 1):
                        merged.setdefault(key, (at, inner))
                continue
            if key_node.value in own:
                said = f"the key {key_node.value!r} is given twice"
                raise SpecInvalid([Problem(where, said)])
            self._count += 1
            own[key_node.value] = (line, value)
        for key, (line, value) in {**merged, **own}.items():
            yield key, line, value
