"""What clients of the HTTP API rely on, as lines that can be compared.

An offer is a route, a parameter, an accepted or answered field, or a value of an enumeration. A demand is
something that a request must give. An offer that is gone breaks clients, and so does a new demand of a
known route or model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OFFER, _DEMAND = "offers", "demands"
_REFERENCE = "#/components/schemas/"


def contract_of(document: Mapping[str, Any]) -> set[str]:
    """The lines of an OpenAPI document: `offers OWNER NAME` and `demands OWNER NAME`."""
    lines: set[str] = set()
    models = document.get("components", {}).get("schemas", {})
    asked: set[str] = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines |= set(_route(f"{method.upper()}:{path}", operation))
            asked |= _reached(operation.get("requestBody", {}), models)
    for name, model in models.items():
        lines |= set(_model(name, model, asked=name in asked))
    return lines


def breaking(before: set[str], after: set[str]) -> list[str]:
    """The lines whose loss or appearance breaks a client that was written for the contract before."""
    lost = {line for line in before - after if line.startswith(_OFFER)}
    known = {_owner(line) for line in before}
    new = {line for line in after - before if line.startswith(_DEMAND) and _owner(line) in known}
    return sorted(lost | new)


def recorded(before: set[str], after: set[str]) -> set[str]:
    """The contract to keep: with the additions, or as before when something breaks clients."""
    return before if before and breaking(before, after) else after


def _owner(line: str) -> str:
    return line.split(" ")[1]


def _route(owner: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"{_OFFER} {owner} route"
    for one in operation.get("parameters", ()):
        yield f"{_OFFER} {owner} {one['in']}:{one['name']}"
        if one.get("required"):
            yield f"{_DEMAND} {owner} {one['in']}:{one['name']}"
    if operation.get("requestBody", {}).get("required"):
        yield f"{_DEMAND} {owner} body"
    for status, answer in operation.get("responses", {}).items():
        for kind, content in answer.get("content", {}).items():
            for shape in sorted(_shapes(content.get("schema", {}))):
                yield f"{_OFFER} {owner} {status}:{kind}:{shape}"


def _model(name: str, model: Mapping[str, Any], *, asked: bool) -> Iterator[str]:
    for value in model.get("enum", ()):
        yield f"{_OFFER} {name} value:{value}"
    for field, schema in model.get("properties", {}).items():
        yield f"{_OFFER} {name} {field}"
        for value in _values(schema):
            yield f"{_OFFER} {name} {field}={value}"
        for kind in sorted(_shapes(schema)):
            yield f"{_OFFER} {name} {field}:{kind}"
    if asked:
        for field in model.get("required", ()):
            yield f"{_DEMAND} {name} {field}"


def _values(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from map(str, schema.get("enum", ()))
        if "const" in schema:
            yield str(schema["const"])
        for word in ("anyOf", "oneOf"):
            for part in schema.get(word, ()):
                yield from _values(part)


def _shapes(schema: Mapping[str, Any]) -> set[str]:
    """The types that a value may have, each by itself, so that one more is an addition."""
    if "$ref" in schema:
        return {str(schema["$ref"]).removeprefix(_REFERENCE)}
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if parts:
        return set().union(*map(_shapes, parts))
    if schema.get("type") == "array":
        return {f"array({one})" for one in _shapes(schema.get("items", {}))}
    return {str(schema.get("type", "any"))}


def _reached(part: Any, models: Mapping[str, Any]) -> set[str]:
    """The models that a part of the document refers to, and those that these refer to."""
    found: set[str] = set()
    waiting = [part]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).removeprefix(_REFERENCE)
            if name in models and name not in found:
                found.add(name)
                waiting.append(models[name])
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return found
