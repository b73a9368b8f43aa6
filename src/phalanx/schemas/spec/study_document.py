"""A study as a file: the spec itself, a job spec with `search:`, or another tool's document, translated.

read = load_study(Path("sweep.yaml"))       # SpecInvalid: every problem, with its path
read.spec, read.translation                 # translation None: it was a study spec
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.spec.document import read_text, read_yaml
from phalanx.schemas.spec.foreign_studies.plain import PARAMETERS, read_space
from phalanx.schemas.spec.foreign_studies.reading import Translation, TranslationLog
from phalanx.schemas.spec.foreign_studies.shapes import translate
from phalanx.schemas.spec.foreign_studies.tune import space_from_tune
from phalanx.schemas.spec.study import StudySpec, validate_study


@dataclass(frozen=True, slots=True)
class ReadStudy:
    """A study that was read, and how another tool's document was translated."""

    spec: StudySpec
    translation: Translation | None


def load_study(source: str | Path) -> ReadStudy:
    """A study from a YAML text, or from the file at a Path. Raises SpecInvalid."""
    text, origin = (source, "spec") if isinstance(source, str) else (read_text(source), str(source))
    return read_study(read_yaml(text, origin, "a study"))


def read_study(data: Mapping[str, Any]) -> ReadStudy:
    """A study from plain data in any of the shapes. Raises SpecInvalid."""
    translation = translate(data)
    if translation is None:
        return ReadStudy(validate_study(data), None)
    try:
        return ReadStudy(validate_study(translation.study), translation)
    except SpecInvalid as error:
        hint = "paths are those of the study that the document was translated to"
        raise SpecInvalid(error.problems, hint) from None


def load_space(path: Path) -> dict[str, Any]:
    """The space in a file: that of a study in any shape, or the parameters alone. Raises SpecInvalid."""
    data = read_yaml(read_text(path), str(path), "a search space")
    if data.get("kind") == "study" or (isinstance(data.get("space"), Mapping) and len(data) > 1):
        return dict(validate_study({"objective": "x", **data}).model_dump(mode="json")["space"])
    log = TranslationLog()
    named = [key for key in ("space", *PARAMETERS) if isinstance(data.get(key), Mapping)]
    found = read_space(data[named[0]] if named else data, log)
    if log.problems:
        raise SpecInvalid(log.problems)
    if not found:
        raise SpecInvalid([Problem(str(path), "names no parameter")])
    return found


def from_tune(param_space: Mapping[str, Any]) -> dict[str, Any]:
    """The `space` of a study for Ray Tune's `param_space`. Raises SpecInvalid."""
    log = TranslationLog()
    found = space_from_tune(param_space, log)
    if log.problems:
        raise SpecInvalid(log.problems)
    return found
