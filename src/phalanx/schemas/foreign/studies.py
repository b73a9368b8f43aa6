"""Searches of Katib and Determined: the study, with lines of the file, and trials by importers of jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from phalanx.errors import SpecInvalid
from phalanx.kit.text import shorten
from phalanx.schemas.foreign.documents import ForeignDocument, Path
from phalanx.schemas.foreign.rules import Conversion, ConversionLog, KeyAction
from phalanx.schemas.spec.foreign_studies.determined import translate_determined
from phalanx.schemas.spec.foreign_studies.katib import KatibTrial, translate_katib
from phalanx.schemas.spec.foreign_studies.reading import Translation

KATIB, DETERMINED = "Katib Experiment", "Determined experiment"
_TRIAL: Path = ("spec", "trialTemplate", "trialSpec")
ConvertJob = Callable[[ForeignDocument, ConversionLog], dict[str, Any] | None]
"""The job spec of an object, with the treatments of its keys; None for a kind that is no job."""


def study_tool(data: Mapping[str, Any]) -> str | None:
    """The tool of a document that is a search; None for any other."""
    if data.get("kind") == "Experiment" and str(data.get("apiVersion")).startswith("kubeflow.org/"):
        return KATIB
    return DETERMINED if isinstance(data.get("searcher"), Mapping) else None


def convert_study(
    document: ForeignDocument, tool: str, log: ConversionLog, convert_job: ConvertJob
) -> Conversion:
    """The study of a search. Problems go to the log."""
    try:
        if tool == KATIB:
            found = translate_katib(
                document.data, lambda trial: _trial(document, trial, log, convert_job)
            )
        else:
            found = translate_determined(document.data)
    except SpecInvalid as error:
        for one in error.problems:
            log.refuse(*_place(document, one.path), one.message)
        done = log.finish(tool, {})
        return replace(done, is_study=True)
    _note(document, found, log)
    return replace(log.finish(tool, found.study), is_study=True)


def _place(document: ForeignDocument, text: str) -> tuple[int, str]:
    """The line of a path as text, and the path."""
    path: Path = tuple(
        int(number) if number else word
        for word, number in re.findall(r"([^.\[\]]+)|\[([0-9]{1,9})\]", text)
    )
    return document.line(path), text or "the file"


def _note(document: ForeignDocument, found: Translation, log: ConversionLog) -> None:
    for line in found.mapped:
        key, _, to = line.partition(" -> ")
        number, _ = _place(document, key.partition(" (")[0])
        log.note(number, key, KeyAction.MAPPED, to)
    for line in found.dropped:
        key, _, why = line.partition(": ")
        number, _ = _place(document, key)
        log.note(number, key, KeyAction.DROPPED, why)
    for one in found.notes:
        log.note(document.line(()), "the search", KeyAction.DROPPED, one)


def _trial(
    document: ForeignDocument, trial: KatibTrial, log: ConversionLog, convert_job: ConvertJob
) -> dict[str, Any]:
    """The job of each trial, from the object in the template with its placeholders filled in."""
    body = trial.spec
    filled = _filled(body, trial, log, document)
    lines = {
        path[len(_TRIAL) :]: line
        for path, line in document.lines.items()
        if path[: len(_TRIAL)] == _TRIAL
    }
    inner = ForeignDocument(filled, lines)
    job = convert_job(inner, log.moved(0, ".".join(map(str, _TRIAL))))
    if job is None:
        kind = shorten(f"{body.get('kind')} ({body.get('apiVersion')})", 80)
        log.refuse(document.line(_TRIAL), ".".join(map(str, _TRIAL)), f"{kind} is no job here")
        return {}
    return {key: one for key, one in job.items() if key not in ("schema", "name") and one}


def _filled(
    body: Mapping[str, Any], trial: KatibTrial, log: ConversionLog, document: ForeignDocument
) -> dict[str, Any]:
    known = dict(trial.names)
    for name, reference in trial.references.items():
        value = _of_trial(reference, body)
        if value is None:
            said = f"{shorten(name)}: {shorten(reference)} is not known before a trial starts"
            log.refuse(
                document.line(("spec", "trialTemplate", "trialParameters")), "trialParameters", said
            )
        known[name] = value or ""

    def fill(value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return re.sub(
                r"\$\{trialParameters\.([^}]+)\}",
                lambda one: known.get(one[1], one[0]),
                value,
            )
        if isinstance(value, dict):
            return {key: fill(one, depth + 1) for key, one in value.items()}
        return [fill(one, depth + 1) for one in value] if isinstance(value, list) else value

    return dict(fill(dict(body)))


def _of_trial(reference: str, body: Mapping[str, Any]) -> str | None:
    """The value of `${trialSpec.…}`, where the template has it; None for the name of the trial."""
    meta = body.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    match = re.fullmatch(r"\$\{trialSpec\.(\w+)(?:\[([^\]]+)\])?\}", reference)
    if match is None:
        return None
    word, key = match[1], match[2]
    if word in ("Labels", "Annotations") and key is not None:
        values = meta.get(word.lower())
        found = values.get(key) if isinstance(values, Mapping) else None
        return found if isinstance(found, str) else None
    plain = {
        "Kind": body.get("kind"),
        "APIVersion": body.get("apiVersion"),
        "Namespace": meta.get("namespace", "default"),
    }
    found = plain.get(word)
    return found if isinstance(found, str) else None
