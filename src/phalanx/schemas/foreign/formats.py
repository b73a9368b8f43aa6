"""Which tool a file was written for, and its conversion.

found = convert(text, "job.yaml")       # None: a file of Phalanx itself
found.spec, found.treatments, found.problems
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import shorten
from phalanx.schemas.foreign import jobset, sbatch, trainjob
from phalanx.schemas.foreign.documents import (
    MAX_TEXT,
    ForeignDocument,
    fill_placeholders,
    read_documents,
    unfilled_templates,
)
from phalanx.schemas.foreign.pytorchjob import TABLE as PYTORCHJOB
from phalanx.schemas.foreign.pytorchjob import TOOL as PYTORCHJOB_TOOL
from phalanx.schemas.foreign.pytorchjob import convert_pytorchjob
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import Conversion, ConversionLog, KeyAction, RuleTable

_OBJECT = re.compile(r"(?m)^[ ]*[\"']?apiVersion[\"']?[ ]*:")


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """One format: its name, the group of its API, the table of its keys, and the conversion."""

    tool: str
    group: str
    table: RuleTable
    convert: Callable[[ForeignReader], dict[str, Any]]


FORMATS: tuple[ForeignFormat, ...] = (
    ForeignFormat(PYTORCHJOB_TOOL, "kubeflow.org/v1", PYTORCHJOB, convert_pytorchjob),
    ForeignFormat(jobset.TOOL, "jobset.x-k8s.io/v1alpha2", jobset.TABLE, jobset.convert_jobset),
    ForeignFormat(
        trainjob.TOOL, "trainer.kubeflow.org/v1alpha1", trainjob.TABLE, trainjob.convert_trainjob
    ),
)

TABLES: tuple[tuple[str, RuleTable], ...] = (
    *((one.tool, one.table) for one in FORMATS),
    (sbatch.TOOL, sbatch.TABLE),
)
"""Every format with the table of its keys."""


def convert(
    text: str, origin: str, values: Mapping[str, str] | None = None, local: bool = False
) -> Conversion | None:
    """The conversion of a file of another tool; None for any other text.

    `values` fill in `$NAME`, `${NAME}` and `{{ NAME }}`. With `local` the job runs on this machine: image,
    volumes, cluster settings and sizes of nodes are left out. Raises SpecInvalid where the text cannot be
    read at all; other problems are those of the conversion.
    """
    script = text.startswith("#!") and sbatch.DIRECTIVE.search(text) is not None
    if not script and not _OBJECT.search(text):
        return None
    filled, used = fill_placeholders(text, values or {})
    problems = [
        Problem(f"--set {name}", "the file has no such placeholder; remove it, or check the name")
        for name in sorted(set(values or {}) - used)
    ]
    problems += [] if script else unfilled_templates(filled, origin)
    if len(text) > MAX_TEXT:
        problems.append(Problem(origin, f"is too long: at most {MAX_TEXT} characters"))
    if problems:
        raise SpecInvalid(problems)
    log = ConversionLog(origin, local)
    return _script(filled, log) if script else _object(filled, origin, log)


def _script(text: str, log: ConversionLog) -> Conversion:
    directives = sbatch.read_directives(text, log)
    sbatch.TABLE.walk(directives, log)
    spec = sbatch.convert_sbatch(ForeignReader(directives, log), text)
    return log.finish(sbatch.TOOL, spec)


def _object(text: str, origin: str, log: ConversionLog) -> Conversion:
    documents = read_documents(text, origin)
    jobs = [(one, kind) for one in documents if (kind := _format(one)) is not None]
    if len(jobs) != 1:
        raise SpecInvalid([_no_job(documents, origin) if not jobs else _several(jobs, origin)])
    document, kind = jobs[0]
    for other in documents:
        if other is not document:
            _list(other, log)
    kind.table.walk(document, log)
    return log.finish(kind.tool, kind.convert(ForeignReader(document, log)))


def _format(document: ForeignDocument) -> ForeignFormat | None:
    group, kind = document.data.get("apiVersion"), document.data.get("kind")
    return next((one for one in FORMATS if (one.group, one.tool) == (group, kind)), None)


def _list(document: ForeignDocument, log: ConversionLog) -> None:
    kind = shorten(str(document.data.get("kind", "a document")), 40)
    said = "is no job, and is not submitted; apply it yourself where the job needs it"
    log.note(document.line(()), kind, KeyAction.DROPPED, said)


def _no_job(documents: list[ForeignDocument], origin: str) -> Problem:
    known = ", ".join(f"{one.tool} ({one.group})" for one in FORMATS)
    first = documents[0] if documents else None
    if first is None:
        return Problem(origin, "is empty")
    group, kind = first.data.get("apiVersion"), first.data.get("kind")
    if kind == "Experiment" and str(group).startswith("kubeflow.org/"):
        return Problem(f"{origin}, line {first.line(())}", "is a study: use `phalanx sweep FILE`")
    found = shorten(f"{kind} ({group})", 80)
    return Problem(f"{origin}, line {first.line(())}", f"no job: {found}; supported: {known}")


def _several(jobs: list[tuple[ForeignDocument, ForeignFormat]], origin: str) -> Problem:
    second = jobs[1][0].line(())
    return Problem(f"{origin}, line {second}", f"{len(jobs)} jobs in one file; write one in each")
