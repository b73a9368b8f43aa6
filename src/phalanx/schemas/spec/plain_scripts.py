"""Fields for scripts that know nothing of Phalanx: a folder of their own, metrics in what they print."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import WithJsonSchema as Shown

from phalanx.core.telemetry.line_patterns import LinePattern


def _pattern(text: str) -> str:
    LinePattern.parse(text)
    return text


def _below(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a folder below the work directory, such as out/state")
    if any(part.startswith(".") for part in path.parts):
        raise ValueError("must not be hidden")
    return text


def _some(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


KeptDirectory = Annotated[str, Field(strict=True), AfterValidator(_below)]
MetricLines = Annotated[
    list[Annotated[str, Field(strict=True), AfterValidator(_pattern)]],
    BeforeValidator(_some),
    Shown({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
