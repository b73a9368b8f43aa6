"""Which tool a file was written for, and its conversion.

found = convert(text, "job.yaml")       # None: a file of Phalanx itself
found.spec, found.treatments, found.problems
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import shorten
from phalanx.schemas.foreign.documents import (
    MAX_TEXT,
    ForeignDocument,
    fill_placeholders,
    read_documents,
    unfilled_templates,
)
from phalanx.schemas.foreign.kubernetes import (
    jobset,
    mpijob,
    pytorchjob,
    rayjob,
    trainjob,
    workers,
)
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import Conversion, ConversionLog, KeyAction, RuleTable
from phalanx.schemas.foreign.studies import convert_study, study_tool
from phalanx.schemas.foreign.tasks import accelerate, dstack, sbatch, skypilot

_OBJECT = re.compile(r"(?m)^[ ]*[\"']?apiVersion[\"']?[ ]*:")


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """One kind of objects: its name, the versions of its API, the table of its keys, and the conversion."""

    tool: str
    groups: tuple[str, ...]
    table: RuleTable
    convert: Callable[[ForeignReader], dict[str, Any]]


_OPERATOR = ("kubeflow.org/v1",)
_RAY = ("ray.io/v1", "ray.io/v1alpha1")
FORMATS: tuple[ForeignFormat, ...] = (
    ForeignFormat(pytorchjob.TOOL, _OPERATOR, pytorchjob.TABLE, pytorchjob.convert_pytorchjob),
    ForeignFormat(jobset.TOOL, ("jobset.x-k8s.io/v1alpha2",), jobset.TABLE, jobset.convert_jobset),
    ForeignFormat(trainjob.TOOL, (trainjob.GROUP,), trainjob.TABLE, trainjob.convert_trainjob),
    ForeignFormat(
        mpijob.TOOL, ("kubeflow.org/v2beta1", *_OPERATOR), mpijob.TABLE, mpijob.convert_mpijob
    ),
    ForeignFormat(workers.TFJOB, _OPERATOR, workers.TFJOB_TABLE, workers.convert_tfjob),
    ForeignFormat(workers.JAXJOB, _OPERATOR, workers.JAXJOB_TABLE, workers.convert_jaxjob),
    ForeignFormat(rayjob.RAYJOB, _RAY, rayjob.RAYJOB_TABLE, rayjob.convert_rayjob),
    ForeignFormat(rayjob.RAYCLUSTER, _RAY, rayjob.RAYCLUSTER_TABLE, rayjob.convert_raycluster),
    ForeignFormat(jobset.JOB_TOOL, ("batch/v1",), jobset.JOB_TABLE, jobset.convert_batch_job),
)
_SERVES = "serves requests and does not end; Phalanx runs jobs"
REFUSED_KINDS: dict[str, str] = {
    "XGBoostJob": "its ranks meet at the tracker of XGBoost, which is not supported",
    "PaddleJob": "its ranks meet at the launcher of Paddle, which is not supported",
    "MXJob": "its ranks meet at the scheduler of MXNet, which is not supported",
    "RayService": _SERVES,
    "RayCronJob": "submit its RayJob with `phalanx schedules create`",
    "CronJob": "submit its Job with `phalanx schedules create`",
    "Workflow": "steps of a workflow are jobs with `depends_on`",
    "PipelineRun": "steps of a pipeline are jobs with `depends_on`",
    "SparkApplication": "Spark is not supported",
    "InferenceService": _SERVES,
    "Deployment": _SERVES,
    "StatefulSet": _SERVES,
    "LeaderWorkerSet": _SERVES,
    "Pod": "submit the Job that makes it, or its command",
    "ClusterTrainingRuntime": "is no job; write the TrainJob that names it beside it",
    "TrainingRuntime": "is no job; write the TrainJob that names it beside it",
}
"""Kinds that are known and not converted, with the reason."""
# They stand in many files beside the job that needs them.
_BESIDE = frozenset({"Deployment", "StatefulSet", "Pod", *trainjob.RUNTIMES})


@dataclass(frozen=True, slots=True)
class TaskFormat:
    """A format without a kind: how its documents are told, the table of its keys, and the conversion.

    `variables` is the key with variables that `--set` gives a value; with `stages`, several documents of a
    file are the stages of a pipeline.
    """

    tool: str
    recognises: Callable[[dict[str, Any]], bool]
    table: RuleTable
    convert: Callable[[ForeignReader], dict[str, Any]]
    variables: str = ""
    stages: bool = False


TASKS: tuple[TaskFormat, ...] = (
    TaskFormat(
        skypilot.TOOL,
        skypilot.is_skypilot,
        skypilot.TABLE,
        skypilot.convert_skypilot,
        "envs",
        stages=True,
    ),
    TaskFormat(
        dstack.TOOL,
        lambda data: data.get("type") in dstack.TYPES,
        dstack.TABLE,
        dstack.convert_dstack,
        "env",
    ),
    TaskFormat(
        accelerate.TOOL,
        accelerate.is_accelerate,
        accelerate.TABLE,
        accelerate.convert_accelerate,
    ),
)
TABLES: tuple[tuple[str, RuleTable], ...] = (
    *((one.tool, one.table) for one in FORMATS),
    ("Runtime of a TrainJob", trainjob.RUNTIME_TABLE),
    *((one.tool, one.table) for one in TASKS),
    (sbatch.TOOL, sbatch.TABLE),
)
"""Every format with the table of its keys."""


def convert(
    text: str,
    origin: str,
    values: Mapping[str, str] | None = None,
    local: bool = False,
    read_file: Callable[[str], str | None] | None = None,
) -> Conversion | None:
    """The conversion of a file of another tool; None for any other text.

    `values` fill in `$NAME`, `${NAME}` and `{{ NAME }}`, or give variables of the file a value. With
    `local` the job runs on this machine: image, volumes, cluster settings and sizes of nodes are left out.
    `read_file` reads a configuration that the file names, relative to its folder. Raises SpecInvalid where
    the text cannot be read at all; other problems are those of the conversion.
    """
    script = text.startswith("#!") and sbatch.DIRECTIVE.search(text) is not None
    task: tuple[TaskFormat | None, set[str]] | None
    task = None if script or _OBJECT.search(text) else _task_of(text, origin)
    if not script and task is None and not _OBJECT.search(text):
        return None
    if len(text) > MAX_TEXT:
        raise SpecInvalid([Problem(origin, f"is too long: at most {MAX_TEXT} characters")])
    values = values or {}
    own = set() if task is None else task[1]
    filled, used = fill_placeholders(text, {k: v for k, v in values.items() if k not in own})
    if not script and (problems := unfilled_templates(filled, origin)):
        raise SpecInvalid(problems)
    log = ConversionLog(origin, local, values, used, read_file)
    if task is not None and task[0] is not None:
        found = _tasks(filled, task[0], origin, log)
    else:
        found = _script(filled, log) if script else _object(filled, origin, log)
    unknown = sorted(set(values) - log.used)
    if unknown:
        said = "the file has no such placeholder; remove it, or check the name"
        raise SpecInvalid([Problem(f"--set {name}", said) for name in unknown])
    return found


def convert_object(text: str, origin: str) -> Conversion:
    """The conversion of one object that a cluster holds: nothing in it is a placeholder.

    Raises SpecInvalid where the object is of no kind that is converted.
    """
    return _object(text, origin, ConversionLog(origin))


def _task_of(text: str, origin: str) -> tuple[TaskFormat | None, set[str]] | None:
    """The format of a text without kinds, and the names of its variables; None for any other text."""
    try:
        documents = read_documents(text, origin)
    except SpecInvalid:
        return None
    if any(study_tool(document.data) is not None for document in documents):
        return None, set()
    for one in TASKS:
        if any(one.recognises(document.data) for document in documents):
            names: set[str] = set()
            for document in documents:
                names |= _names(document.data.get(one.variables))
                names |= _names(document.data.get("secrets"))
            return one, names
    return None


def _names(found: Any) -> set[str]:
    """Names of variables in a mapping, or in a list of NAME=VALUE."""
    if isinstance(found, dict):
        return set(found)
    many = found if isinstance(found, list) else []
    return {one.partition("=")[0] for one in many if isinstance(one, str)}


def _tasks(text: str, form: TaskFormat, origin: str, log: ConversionLog) -> Conversion:
    documents = read_documents(text, origin)
    kind = documents[0].data.get("type")
    if form.tool == dstack.TOOL and kind != "task":
        why = _SERVES if kind == "service" else "is no job"
        where = f"{origin}, line {documents[0].line(('type',))}: type"
        raise SpecInvalid([Problem(where, f"{why}; only `type: task` is submitted", str(kind))])
    header = documents[0] if len(documents) > 1 and form.stages else None
    if header is not None and not {"run", "resources", "setup"} & set(header.data):
        skypilot.HEADER_TABLE.walk(header, log)
        documents = documents[1:]
    if len(documents) > 1 and not form.stages:
        line = documents[1].line(())
        said = f"{len(documents)} jobs in one file; write one in each"
        raise SpecInvalid([Problem(f"{origin}, line {line}", said)])
    found: list[Conversion] = []
    names: set[str] = set()
    for number, document in enumerate(documents):
        part = log if not number else log.another()
        form.table.walk(document, part)
        spec = form.convert(ForeignReader(document, part))
        if spec["name"] in names:
            spec["name"] = f"{spec['name'][:90]}-{number}"
        names.add(spec["name"])
        if found:
            spec["depends_on"] = {"afterok": [found[-1].spec["name"]]}
        found.append(part.finish(form.tool, spec))
    return replace(
        found[0],
        problems=tuple(problem for one in found for problem in one.problems),
        then=tuple(replace(one, problems=()) for one in found[1:]),
    )


def _script(text: str, log: ConversionLog) -> Conversion:
    directives = sbatch.read_directives(text, log)
    sbatch.TABLE.walk(directives, log)
    spec = sbatch.convert_sbatch(ForeignReader(directives, log), text)
    return log.finish(sbatch.TOOL, spec)


def _object(text: str, origin: str, log: ConversionLog) -> Conversion:
    documents = read_documents(text, origin)
    searches = [one for one in documents if study_tool(one.data) is not None]
    if searches:
        return _study(documents, searches[0], log)
    jobs = [(one, kind) for one in documents if (kind := format_of(one)) is not None]
    named = [one for one in documents if refusal(one) is not None]
    if len(jobs) != 1 or any(one.data.get("kind") not in _BESIDE for one in named):
        named = [one for one in named if not jobs or one.data.get("kind") not in _BESIDE]
        said = _several(jobs, named, origin) if jobs else _no_job(documents, named, origin)
        raise SpecInvalid([said])
    document, kind = jobs[0]
    log.beside = [one for one in documents if one is not document]
    for other in log.beside:
        _list(other, log)
    kind.table.walk(document, log)
    return log.finish(kind.tool, kind.convert(ForeignReader(document, log)))


def _study(
    documents: list[ForeignDocument], search: ForeignDocument, log: ConversionLog
) -> Conversion:
    """The study of the only search of a file."""
    for other in documents:
        if other is not search:
            _list(other, log)
    tool = study_tool(search.data)
    assert tool is not None
    return convert_study(search, tool, log, _job_of)


def _job_of(document: ForeignDocument, log: ConversionLog) -> dict[str, Any] | None:
    """The job spec of an object inside another document; None where it is no job."""
    kind = format_of(document)
    if kind is None:
        return None
    kind.table.walk(document, log)
    return kind.convert(ForeignReader(document, log))


def format_of(document: ForeignDocument) -> ForeignFormat | None:
    """The format of an object, or None."""
    group, kind = document.data.get("apiVersion"), document.data.get("kind")
    return next((one for one in FORMATS if one.tool == kind and group in one.groups), None)


def refusal(document: ForeignDocument) -> str | None:
    """Why an object of a known kind is no job here; None for a job, and for a kind that is not known."""
    kind, group = document.data.get("kind"), document.data.get("apiVersion")
    if format_of(document) is not None or not isinstance(kind, str):
        return None
    versions = [one for form in FORMATS if form.tool == kind for one in form.groups]
    family = str(group).partition("/")[0]
    if any(one.partition("/")[0] == family for one in versions):
        return f"this version is not supported; write it for {' or '.join(versions)}"
    return REFUSED_KINDS.get(kind)


def _list(document: ForeignDocument, log: ConversionLog) -> None:
    kind = shorten(str(document.data.get("kind", "a document")), 40)
    said = "is no job, and is not submitted; apply it yourself where the job needs it"
    log.note(document.line(()), kind, KeyAction.DROPPED, said)


def _no_job(documents: list[ForeignDocument], named: list[ForeignDocument], origin: str) -> Problem:
    known = ", ".join(f"{one.tool} ({one.groups[0]})" for one in FORMATS)
    if not (named or documents):
        return Problem(origin, "is empty")
    first = (named or documents)[0]
    group, kind = first.data.get("apiVersion"), first.data.get("kind")
    found = shorten(f"{kind} ({group})", 80)
    where = f"{origin}, line {first.line(())}"
    if why := refusal(first):
        return Problem(where, f"{found} cannot be submitted: {why}")
    return Problem(where, f"no job: {found}; supported: {known}")


def _several(
    jobs: list[tuple[ForeignDocument, ForeignFormat]], named: list[ForeignDocument], origin: str
) -> Problem:
    if named:
        return _no_job([], named, origin)
    second = jobs[1][0].line(())
    return Problem(f"{origin}, line {second}", f"{len(jobs)} jobs in one file; write one in each")
