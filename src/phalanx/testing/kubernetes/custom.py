"""Custom resources of the fake API server: schemas, pruning, generations, the status subresource."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phalanx.testing.kubernetes.objects import ApiError, Object

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class CustomKind:
    """One kind of custom resources, as its CustomResourceDefinition describes it."""

    group: str
    version: str
    plural: str
    kind: str
    schema: Mapping[str, Any]
    has_status: bool  # as a subresource

    @classmethod
    def read(cls, path: Path) -> CustomKind:
        """The kind of the first served version in a file with a CustomResourceDefinition."""
        spec = yaml.safe_load(path.read_text())["spec"]
        version = next(one for one in spec["versions"] if one.get("served", True))
        return cls(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            version["schema"]["openAPIV3Schema"],
            "status" in (version.get("subresources") or {}),
        )

    def created(self, body: Object) -> Object:
        """A new object as it is stored. Raises ApiError."""
        one = self._checked(body)
        if self.has_status:
            one.pop("status", None)
        one["metadata"]["generation"] = 1
        return one

    def updated(self, before: Object, body: Object, part: str) -> Object:
        """A changed object as it is stored: either its status changes, or all else. Raises ApiError."""
        one = self._checked(body)
        if part == "status":
            changed = {**before, "metadata": dict(before["metadata"])}
            changed.pop("status", None)
            version = body["metadata"].get("resourceVersion")
            if version:
                changed["metadata"]["resourceVersion"] = version
            return {**changed, **({"status": one["status"]} if "status" in one else {})}
        if self.has_status:
            one.pop("status", None)
            one |= {"status": before["status"]} if "status" in before else {}
        generation = before["metadata"].get("generation", 1)
        one["metadata"]["generation"] = generation + (one.get("spec") != before.get("spec"))
        return one

    def _checked(self, body: Object) -> Object:
        one: Object = _pruned(copy.deepcopy(body), self.schema)
        one |= {key: body[key] for key in ("apiVersion", "kind") if key in body}
        one["metadata"] = copy.deepcopy(body.get("metadata") or {})
        wanted = (f"{self.group}/{self.version}", self.kind)
        if (body.get("apiVersion"), body.get("kind")) != wanted:
            raise ApiError(400, "BadRequest", f"the object is no {wanted[1]} of {wanted[0]}")
        problems = list(_problems(one, self.schema, ""))
        if problems:
            name = one["metadata"].get("name", "")
            said = f'{self.kind}.{self.group} "{name}" is invalid: {"; ".join(problems)}'
            raise ApiError(422, "Invalid", said)
        return one


def _pruned(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value without the keys that its schema does not know."""
    if isinstance(value, list):
        return [_pruned(one, schema.get("items") or {_PRESERVE: True}) for one in value]
    if not isinstance(value, dict) or schema.get(_PRESERVE):
        return value
    known, others = schema.get("properties") or {}, schema.get("additionalProperties")
    if others is not None and not isinstance(others, Mapping):
        return value
    found = {}
    for key, one in value.items():
        if key in known:
            found[key] = _pruned(one, known[key])
        elif others is not None:
            found[key] = _pruned(one, others)
    return found


def _problems(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """What is wrong with a value and with what is below it."""
    found = _problem(value, schema)
    if found:
        yield f"{path or 'object'}: {found}"
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _problems(one, schema.get("items") or {}, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key in schema.get("required") or ():
            if key not in value:
                yield f"{path}.{key}: Required value".lstrip(".")
        others = schema.get("additionalProperties")
        for key, one in value.items():
            below = (schema.get("properties") or {}).get(key, others)
            if isinstance(below, Mapping):
                yield from _problems(one, below, f"{path}.{key}".lstrip("."))


def _problem(value: Any, schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "" if isinstance(value, int | str) else "must be a number or a text"
    kinds = _TYPES.get(schema.get("type", ""))
    number = schema.get("type") in ("integer", "number")
    if kinds is not None and (not isinstance(value, kinds) or (number and isinstance(value, bool))):
        return f"Invalid value: must be of type {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"Unsupported value: {value!r}"
    if isinstance(value, int) and value < schema.get("minimum", value):
        return f"Invalid value: should be at least {schema['minimum']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return f"Invalid value: should match {schema['pattern']}"
    return ""


JOBS = CustomKind("batch", "v1", "jobs", "Job", {_PRESERVE: True}, has_status=True)
"""Jobs of the batch API, which no definition describes."""
