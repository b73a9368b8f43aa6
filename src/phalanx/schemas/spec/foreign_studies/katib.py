"""Experiments of Katib (`kubeflow.org`, `kind: Experiment`). Their numbers are texts.

`${trialParameters.x}` in the container's command becomes the placeholder of the parameter it refers to; its
image is kept.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.kit.text import shorten
from phalanx.schemas.spec.foreign_studies.reading import (
    KeyReader,
    Translation,
    TranslationLog,
    as_name,
    as_number,
    as_whole,
    bounds,
)

_METHODS = {
    "random": "random",
    "grid": "grid",
    "tpe": "tpe",
    "multivariate-tpe": "tpe",
    "bayesianoptimization": "bayesian",
    "sobol": "qmc",
    "hyperband": "random",
}
_REFERENCE = re.compile(r"\$\{trialParameters\.([^}]+)\}")
_SPEC = "spec"


@dataclass(frozen=True, slots=True)
class KatibTrial:
    """The template of a trial: its object, the placeholder of each parameter, and other references."""

    spec: Mapping[str, Any]
    names: Mapping[str, str]
    references: Mapping[str, str]


def translate_katib(
    data: Mapping[str, Any], convert: Callable[[KatibTrial], dict[str, Any]] | None = None
) -> Translation:
    """The study of an Experiment. `convert` makes the job of the trial's object. Raises SpecInvalid."""
    log = TranslationLog()
    doc = KeyReader(data, log, texts=True)
    meta = doc.section("metadata")
    study: dict[str, Any] = {"schema": 1, "kind": "study"}
    name = meta.first(("name", "generateName"), "name")
    if isinstance(name, str):
        study["name"] = as_name(name)
    meta.drop("write labels of the job", "labels", "annotations", "namespace")
    meta.drop(
        "set by Kubernetes",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "finalizers",
    )
    meta.finish()
    doc.drop("set by Kubernetes", "apiVersion", "kind", "status")
    spec = doc.section(_SPEC)
    study["objective"], metrics = _objective(spec.section("objective"))
    study["space"] = _space(spec)
    study["search"] = _search(spec.section("algorithm"), study)
    study["trials"] = _trials(spec)
    _early(spec.section("earlyStopping"), study)
    template = spec.section("trialTemplate")
    if convert is None:
        study["job"] = _job(template, study["space"])
    else:
        study["job"] = _converted(template, study["space"], convert)
    _collector(spec.section("metricsCollectorSpec"), study["job"], metrics)
    spec.refuse("nasConfig", "describes a search of architectures, which is not supported")
    spec.drop("a study is resumed by `phalanx sweep resume` and `extend`", "resumePolicy")
    spec.finish()
    doc.finish()
    return log.finish("Katib Experiment", study)


def _objective(one: KeyReader) -> tuple[dict[str, Any], list[str]]:
    metric = one.text("objectiveMetricName", "objective.metric")
    if metric is None:
        one.problem("objectiveMetricName", "is required: the metric to optimize")
    goal = one.choice("type", {"minimize": "minimize", "maximize": "maximize"}, "objective.goal")
    found: dict[str, Any] = {"metric": metric, "goal": goal or "minimize"}
    target = one.number("goal", "objective.target")
    if target is not None:
        found["target"] = target
    for item in one.items("metricStrategies", "objective.at"):
        if (
            isinstance(item, Mapping)
            and item.get("name") == metric
            and item.get("value") == "latest"
        ):
            found["at"] = "last"
    more = [
        name for name in one.items("additionalMetricNames", "job.metrics") if isinstance(name, str)
    ]
    one.finish()
    return found, [*([] if metric is None else [metric]), *more]


def _space(spec: KeyReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, item in enumerate(spec.items("parameters")):
        at = f"{spec.path}.parameters[{index}]"
        if not isinstance(item, Mapping):
            spec.problem("parameters", "has an entry that is no mapping")
            continue
        one = KeyReader(item, spec.log, at, texts=True)
        name = one.text("name")
        kind = one.choice(
            "parameterType", {key: key for key in ("double", "int", "categorical", "discrete")}
        )
        value = _feasible(one.section("feasibleSpace"), kind)
        one.finish()
        if name is None:
            one.problem("name", "is required")
            continue
        clean = name_of(name)
        found[clean] = value
        spec.log.mapped.append(f"{at} ({name}) -> space.{clean}: {value}")
    if not found:
        spec.problem("parameters", "is required: the parameters to search")
    return found


def name_of(name: str) -> str:
    """The name of a parameter without the dashes before an option."""
    return name.lstrip("-") or name


def _feasible(one: KeyReader, kind: str | None) -> Any:
    values = one.items("list")
    low, high, step = one.number("min"), one.number("max"), one.number("step")
    law = one.choice("distribution", {"uniform": False, "loguniform": True}) or False
    one.finish()
    if kind in ("categorical", "discrete"):
        if not values:
            one.problem("list", "is required: the values to choose from")
            return None
        numbers = [
            as_whole(v, True) if as_whole(v, True) is not None else as_number(v, True)
            for v in values
        ]
        return {"values": numbers if kind == "discrete" and None not in numbers else values}
    if kind is None:
        return None
    if low is None or high is None:
        one.problem("min", "needs two numbers, min and max")
        return None
    whole = kind == "int"
    if whole and (as_whole(low) is None or as_whole(high) is None):
        one.problem("min", "must be a whole number", low)
        return None
    if step is not None:
        step = as_whole(step) if as_whole(step) is not None else step
    return bounds(low, high, "int" if whole else "float", step=step, log=law)


def _settings(one: KeyReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in one.items("algorithmSettings"):
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            found[item["name"]] = item.get("value")
        else:
            one.problem("algorithmSettings", "is a list of {name, value}")
    return found


def _search(one: KeyReader, study: dict[str, Any]) -> dict[str, Any]:
    word = one.data.get("algorithmName")
    method = one.choice("algorithmName", _METHODS, "search.method")
    settings = KeyReader(_settings(one), one.log, one.at("algorithmSettings"), texts=True)
    found: dict[str, Any] = {"method": method or "random"}
    seed = settings.whole("random_state", "search.seed")
    if seed is not None:
        found["seed"] = seed
    points = settings.first(("n_initial_points", "n_startup_trials"), "search.init_points")
    if points is not None and method in ("tpe", "bayesian"):
        found["init_points"] = as_whole(points, True)
    if settings.choice(
        "acq_func", {"ei": "ei", "lcb": "ucb", "gp_hedge": None}, "search.acquisition"
    ):
        kinds = {"ei": "ei", "lcb": "ucb"}
        found["acquisition"] = kinds[str(settings.data["acq_func"]).lower()]
    settings.drop(
        "chosen by the method",
        "base_estimator",
        "acq_optimizer",
        "gamma",
        "prior_weight",
        "n_EI_candidates",
    )
    if word == "hyperband":
        most = settings.whole("r_l", "rungs.max")
        eta = settings.whole("eta", "rungs.eta")
        settings.drop("rungs count epochs, which scripts report", "resource_name")
        if most is None:
            settings.problem("r_l", "is required with hyperband: how long a whole trial trains")
        study["rungs"] = {"rule": "hyperband", "max": most, **({} if eta is None else {"eta": eta})}
    settings.finish()
    one.finish()
    return found


def _trials(spec: KeyReader) -> dict[str, Any]:
    most = spec.whole("maxTrialCount", "trials.max")
    parallel = spec.whole("parallelTrialCount", "trials.parallel") or 3
    failed = spec.whole("maxFailedTrialCount", "trials.failed.max")
    found: dict[str, Any] = {"parallel": parallel if most is None else max(1, min(parallel, most))}
    if most is not None:
        found["max"] = most
    if failed is not None and (most is None or failed < most):
        found["failed"] = {"max": failed}
    return found


def _early(one: KeyReader, study: dict[str, Any]) -> None:
    rule = one.choice("algorithmName", {"medianstop": "median"}, "rungs.rule")
    settings = KeyReader(_settings(one), one.log, one.at("algorithmSettings"), texts=True)
    least = settings.whole("start_step", "rungs.min") or 4
    results = settings.whole("min_trials_required", "rungs.min_results") or 3
    settings.finish()
    one.finish()
    if rule is None:
        return
    # Katib's metrics have no epochs: its rule counts the lines that hold the objective, as steps do here.
    study["rungs"] = {
        "rule": rule,
        "type": "stop",
        "unit": "step",
        "min": least,
        "max": least * 1000,
        "interval": least,
        "min_results": results,
    }
    one.log.notes.append(
        f"trials are compared every {least} lines with the objective and end by themselves, "
        f"at {least * 1000} lines at the latest"
    )


def _job(template: KeyReader, space: Mapping[str, Any]) -> dict[str, Any]:
    names = _references(template, space)
    main = template.text("primaryContainerName")
    template.drop(
        "the platform sees by itself how a job ends",
        *("successCondition", "failureCondition", "primaryPodLabels", "retain"),
    )
    template.refuse("configMap", "is not in the file; write `trialSpec`")
    body = template.section("trialSpec")
    container, replicas = _container(body, main)
    template.finish()
    if container is None:
        template.problem("trialSpec", "has no container with a command")
        return {}
    words = [
        _placed(str(word), names, template)
        for key in ("command", "args")
        for word in container.items(key, "job.run")
    ]
    if not words:
        container.problem("command", "is required: the image's own command is not known here")
    through_shell = len(words) == 3 and words[0].rpartition("/")[2] in ("sh", "bash")
    job: dict[str, Any] = {"run": words[2] if through_shell and words[1] == "-c" else words}
    image = container.text("image", "job.image")
    if image is not None:
        job["image"] = image
    env = _environment(container, names, template)
    if env:
        job["env"] = env
    slots = _slots(container.section("resources"))
    if slots or replicas > 1:
        job["resources"] = {"nodes": replicas, "slots_per_node": slots or 1}
    read = ("command", "args", "image", "env", "resources")
    rest = [key for key in container.data if key not in read]
    container.drop("pods are described by the pool", *rest)
    return job


def _converted(
    template: KeyReader, space: Mapping[str, Any], convert: Callable[[KatibTrial], dict[str, Any]]
) -> dict[str, Any]:
    """The job of the trial's object."""
    references = {
        str(item["name"]): str(item["reference"])
        for item in template.items("trialParameters")
        if isinstance(item, Mapping) and "${trialSpec." in str(item.get("reference"))
    }
    names = _references(template, space, references)
    template.text("primaryContainerName")
    template.drop(
        "the platform sees by itself how a job ends",
        *("successCondition", "failureCondition", "primaryPodLabels", "retain"),
    )
    template.refuse("configMap", "is not in the file; write `trialSpec`")
    body = template.section("trialSpec")
    template.finish()
    if not body.data:
        template.problem("trialSpec", "is required: the job of each trial")
        return {}
    shown = {name: f"${{params.{to}}}" for name, to in names.items()}
    return convert(KatibTrial(body.data, shown, references))


def _references(
    template: KeyReader, space: Mapping[str, Any], others: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The parameter that each entry of `trialParameters` refers to."""
    names: dict[str, str] = {}
    for item in template.items("trialParameters"):
        if isinstance(item, Mapping) and str(item.get("name")) in (others or {}):
            continue
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            names[item["name"]] = name_of(str(item.get("reference") or item["name"]))
        else:
            template.problem("trialParameters", "is a list of {name, reference}")
    for name, to in names.items():
        if to not in space:
            said = f"{shorten(name)} refers to {shorten(to)}, which is no parameter"
            template.problem("trialParameters", said)
    return names


def _placed(word: str, names: Mapping[str, str], template: KeyReader) -> str:
    def placed(match: re.Match[str]) -> str:
        if match[1] not in names:
            template.problem("trialSpec", f"{match[0]} is not among trialParameters")
            return ""
        return f"${{params.{names[match[1]]}}}"

    return _REFERENCE.sub(placed, word)


def _environment(
    container: KeyReader, names: Mapping[str, str], template: KeyReader
) -> dict[str, str]:
    found = {}
    for item in container.items("env", "job.env"):
        if (
            isinstance(item, Mapping)
            and isinstance(item.get("name"), str)
            and is_text(item.get("value"))
        ):
            found[item["name"]] = _placed(str(item["value"]), names, template)
        else:
            container.problem("env", "has an entry without a plain value; use `secrets` of the job")
    return found


def is_text(value: Any) -> bool:
    """Whether it is a text or a number."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _slots(resources: KeyReader) -> int:
    """GPUs of the container; other resources are dropped with a line."""
    found = 0
    for key in ("limits", "requests"):
        section = resources.section(key)
        for name in section.data:
            if name.endswith("/gpu"):
                found = max(found, section.whole(name, "job.resources.slots_per_node") or 0)
            else:
                section.drop("write `resources.cpus` and `resources.memory` of the job", name)
    resources.finish()
    return found


def _container(body: KeyReader, main: str | None) -> tuple[KeyReader | None, int]:
    """The main container of a Job or of a training job's workers, and the number of its pods."""
    body.take("apiVersion")
    kind = body.take("kind")
    body.drop("pods are described by the pool", "metadata")
    spec = body.section("spec")
    pods, replicas = spec, 1
    for key in ("pytorchReplicaSpecs", "tfReplicaSpecs", "mpiReplicaSpecs", "xgbReplicaSpecs"):
        roles = spec.section(key)
        if roles.data:
            shapes = [roles.section(role) for role in roles.data]
            replicas = sum(max(1, one.whole("replicas") or 1) for one in shapes)
            pods = shapes[-1]
            body.log.notes.append(
                f"the pods of {kind} become {replicas} nodes that run the same command"
            )
    template = pods.section("template")
    inner = template.section("spec")
    containers = [one for one in inner.items("containers") if isinstance(one, Mapping)]
    named = [one for one in containers if one.get("name") == main] or containers
    if not named:
        return None, 1
    at = f"{inner.path}.containers"
    return KeyReader(named[0], body.log, at, texts=True), replicas


def _collector(one: KeyReader, job: dict[str, Any], metrics: list[str]) -> None:
    """Metrics of scripts without the library are read from lines `name=value`, Katib's default."""
    collector = one.section("collector")
    kind = (
        collector.choice("kind", {"stdout": "stdout", "none": None, "file": "file"}, "job.metrics")
        or "stdout"
    )
    collector.finish()
    source = one.section("source")
    place = source.section("fileSystemPath")
    path, is_json = _metrics_file(place) if kind == "file" else (None, False)
    formats = source.section("filter")
    formats.drop("lines `name=value` are read; see `job.metrics` for others", "metricsFormat")
    formats.finish()
    if kind != "file":
        place.drop("metrics are read from output", "path", "kind", "format")
    place.finish()
    source.drop("metrics are read from output", "httpGet")
    source.finish()
    one.finish()
    if not job or collector.data.get("kind") == "None":
        return
    job["metrics"] = [
        f"{name}={{{name}}}" for name in metrics if re.fullmatch(r"[A-Za-z_][\w./-]*", name)
    ]
    form = "lines `name=value`"
    if is_json:
        job["metrics"], form = ["json"], "lines of JSON"
    where = "the output"
    if path is not None and "run" in job:
        job["run"], where = _with_file(job["run"], path), f"{path}, which is printed as it grows"
    one.log.notes.append(f"metrics are read from {form} of {where}: {shlex.join(metrics)}")


def _metrics_file(place: KeyReader) -> tuple[str | None, bool]:
    """The file that a script writes its metrics to, and whether it has lines of JSON."""
    kinds: dict[str, str | None] = {"file": "file"}
    place.choice("kind", kinds, "job.run")
    told = place.choice("format", {"text": "text", "json": "json"}, "job.metrics")
    path = place.text("path", "job.run") or _KATIB_FILE
    if not path.startswith("/") or "\n" in path:
        place.problem("path", "must be the absolute path of a file")
    return path, told == "json"


def _with_file(run: Any, path: str) -> list[str]:
    """A command beside which the first rank prints a file as it grows; its exit code and signals stay."""
    words = ["sh", "-c", run, "sh"] if isinstance(run, str) else list(run)
    return ["sh", "-c", _PRINT_FILE, path, *words]


_KATIB_FILE = "/var/log/katib/metrics.log"
_PRINT_FILE = (
    "\"$@\" & pid=$!; trap 'kill -TERM $pid' TERM INT; "
    'if [ "${RANK:-0}" = 0 ]; then tail -n +1 -F --pid=$pid -- "$0" 2>/dev/null & fi; '
    "wait $pid; code=$?; "
    "while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done; wait; exit $code"
)
