"""Experiment configurations of Determined: `searcher` and `hyperparameters`.

Bounds of `type: log` are exponents of `base`; both bounds of `int` are included. The scripts find their
hyperparameters in DET_HPARAMS, so the command stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from phalanx.schemas.spec.foreign_studies.reading import (
    MAX_DEPTH,
    KeyReader,
    Translation,
    TranslationLog,
    as_name,
    as_whole,
    bounds,
    is_scalar,
)

_METHODS = {
    "random": ("random", False),
    "grid": ("grid", False),
    "single": ("random", False),
    "adaptive_asha": ("random", True),
    "asha": ("random", True),
    "async_halving": ("random", True),
    "adaptive": ("random", True),
}
_UNITS = {"batches": "step", "epochs": "epoch", "records": "sample", "steps": "step"}
_TRIAL_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LAUNCHER = re.compile(
    r"^(\S*python[0-9.]*)\s+-m\s+determined\.launch\.\w+\s+(?:--trial\s+|--\s+)?(.*)$"
)
_DEFAULT_PARALLEL = 16


def translate_determined(data: Mapping[str, Any]) -> Translation:
    """The study of an experiment configuration. Raises SpecInvalid."""
    log = TranslationLog()
    doc = KeyReader(data, log)
    searcher = doc.section("searcher")
    study: dict[str, Any] = {"schema": 1, "kind": "study", "trials": {}}
    name = doc.text("name", "name")
    if name is not None:
        study["name"] = as_name(name)
    study["space"] = _space(
        doc.section("hyperparameters"), searcher.data.get("name") == "grid", "", 0
    )
    study["objective"] = _objective(searcher)
    _search(searcher, study)
    repro = doc.section("reproducibility")
    seed = repro.whole("experiment_seed", "search.seed")
    if seed is not None:
        study["search"]["seed"] = seed
    repro.finish()
    study["job"] = _job(doc)
    _rest(doc)
    searcher.finish()
    doc.finish()
    return log.finish("Determined experiment", study)


def _objective(searcher: KeyReader) -> dict[str, Any]:
    metric = searcher.text("metric", "objective.metric")
    if metric is None:
        searcher.problem("metric", "is required: the metric to optimize")
    smaller = searcher.flag("smaller_is_better", "objective.goal")
    return {"metric": metric, "goal": "maximize" if smaller is False else "minimize"}


def _search(searcher: KeyReader, study: dict[str, Any]) -> None:
    method, halving = searcher.choice("name", _METHODS, "search.method") or ("random", False)
    study["search"] = {"method": method}
    single = searcher.data.get("name") == "single"
    most = searcher.whole("max_trials", "trials.max")
    if single:
        most = 1
    trials: dict[str, Any] = {} if most is None else {"max": most}
    if most is None and method != "grid":
        searcher.problem("max_trials", "is required: the number of trials")
    parallel = searcher.whole("max_concurrent_trials", "trials.parallel")
    parallel = parallel or _DEFAULT_PARALLEL  # 0 means no limit there
    trials["parallel"] = parallel if most is None else max(1, min(parallel, most))
    study["trials"] = trials
    unit, length = _length(searcher)
    divisor = searcher.whole("divisor", "rungs.eta" if halving else "") or 4
    rungs = searcher.first(("max_rungs", "num_rungs"), "rungs.min" if halving else "")
    mode = searcher.choice(
        "mode",
        {"aggressive": 1, "standard": 2, "conservative": 3},
        "rungs.brackets" if halving else "",
    )
    once = searcher.flag("stop_once", "rungs.type" if halving else "")
    searcher.drop("brackets follow from mode", "bracket_rungs", "max_length_units")
    for key in ("source_trial_id", "source_checkpoint_uuid"):
        searcher.refuse(key, "names a trial of Determined; use `resume_from` of a job")
    if not halving:
        return
    if length is None:
        searcher.problem("max_length", "is required: how long a whole trial trains")
        return
    levels = as_whole(rungs) or 5
    if not 2 <= divisor <= 100 or not 1 <= levels <= 30:
        searcher.problem("divisor", "must be from 2 to 100, with at most 30 rungs", divisor)
        return
    levels = min(levels, max(2, _log_floor(length, divisor) + 1))
    least = max(1, length // divisor ** (levels - 1))
    brackets = {1: 1, 2: (levels - 1) // 2 + 1, 3: levels}[mode or 2]
    study["rungs"] = {
        "rule": "asha",
        "type": "stop" if once else "promotion",
        "unit": unit,
        "min": least,
        "max": length,
        "eta": divisor,
        "brackets": brackets,
    }
    if not once:
        searcher.log.notes.append(
            "trials pause at rungs and the best go on (promotion); `stop_once: true` would stop them"
        )


def _log_floor(value: int, base: int) -> int:
    found = 0
    while value >= base:
        value //= base
        found += 1
    return found


def _length(searcher: KeyReader) -> tuple[str, int | None]:
    """The unit and the length of a whole trial: `max_length`, or `time_metric` with `max_time`."""
    metric = searcher.text("time_metric", "rungs.unit")
    time = searcher.whole("max_time", "rungs.max")
    length = searcher.take("max_length", "rungs.max")
    if metric is not None or time is not None:
        unit = _UNITS.get((metric or "batches").lower())
        if unit is None:
            searcher.problem(
                "time_metric", f"cannot be translated; known: {', '.join(_UNITS)}", metric
            )
        return unit or "step", time
    if isinstance(length, Mapping):
        given = KeyReader(length, searcher.log, searcher.at("max_length"))
        for key, unit in _UNITS.items():
            value = given.whole(key)
            if value is not None:
                given.finish()
                return unit, value
        given.finish()
        searcher.problem("max_length", f"write one of {', '.join(_UNITS)}")
        return "step", None
    if length is None:
        return "step", None
    value = as_whole(length)
    if value is None:
        searcher.problem("max_length", "must be a whole number, or {epochs: 27}", length)
    return "step", value


def _space(section: KeyReader, grid: bool, prefix: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in section.data:
        value, name = section.take(key), f"{prefix}{key}"
        if not isinstance(value, Mapping):
            if is_scalar(value):
                found[name] = value
            else:
                section.problem(key, "a constant is a number, text, true, false or null")
            continue
        if "type" not in value:
            if depth < MAX_DEPTH:
                inner = KeyReader(value, section.log, section.at(key))
                found |= _space(inner, grid, f"{name}.", depth + 1)
            else:
                section.problem(key, "is nested too deep")
            continue
        found[name] = _parameter(KeyReader(value, section.log, section.at(key)), grid)
        section.log.mapped.append(f"{section.at(key)} -> space.{name}: {found[name]}")
    return found


def _parameter(one: KeyReader, grid: bool) -> Any:
    kinds = {name: name for name in ("const", "int", "double", "float", "log", "categorical")}
    kind = one.choice("type", kinds)
    if kind == "const":
        value = one.take("val")
        one.finish()
        return {"value": value}
    if kind == "categorical":
        values = one.items("vals")
        one.finish()
        return {"values": values}
    base = one.number("base") or 10.0
    low, high = one.number("minval"), one.number("maxval")
    count = one.whole("count")
    one.finish()
    if kind is None:
        return None
    if low is None or high is None:
        one.problem("minval", "needs two numbers, minval and maxval")
        return None
    if kind == "log":
        try:
            low, high = base**low, base**high
        except (OverflowError, ZeroDivisionError):
            one.problem(
                "minval", "the bounds are exponents, and make numbers that are too large", low
            )
            return None
        if isinstance(low, complex) or isinstance(high, complex) or not 0 < low <= high <= 1e15:
            one.problem("minval", "the bounds are exponents of `base`, the lower one first")
            return None
    elif low > high:
        one.problem("minval", "is above maxval", low)
        return None
    if grid and count is not None:
        return (
            {"values": _points(kind, low, high, count)} if 1 <= count <= 1000 else _many(one, count)
        )
    if kind == "log":
        return {"log": [low, high]} if low < high else {"value": low}
    if kind == "int" and (as_whole(low) is None or as_whole(high) is None):
        one.problem("minval", "must be a whole number", low)
        return None
    return bounds(low, high, "int" if kind == "int" else "float")


def _many(one: KeyReader, count: int) -> None:
    one.problem("count", "must be from 1 to 1000", count)


def _points(kind: str, low: float, high: float, count: int) -> list[float]:
    """`count` values from low to high, on the scale of the parameter, as a grid has them."""
    if count == 1:
        return [low]
    if kind == "log":
        return [low * (high / low) ** (index / (count - 1)) for index in range(count)]
    points = [low + (high - low) * index / (count - 1) for index in range(count)]
    return sorted({round(one) for one in points}) if kind == "int" else points


def _job(doc: KeyReader) -> dict[str, Any]:
    job: dict[str, Any] = {}
    run = _run(doc)
    if run is not None:
        job["run"] = run
    slots = doc.section("resources")
    number = slots.whole("slots_per_trial", "job.resources.accelerators")
    if number:
        job["resources"] = {"accelerators": number}
    pool = slots.text("resource_pool", "job.pool")
    if pool is not None:
        job["pool"] = [pool]
    shared = "slots are shared by projects and priorities"
    slots.drop(shared, "max_slots", "weight", "priority")
    own = "devices are those of the slots"
    slots.drop(own, "devices", "native_parallel", "agent_label", "is_single_node")
    slots.drop("the size of /dev/shm is that of the node", "shm_size")
    slots.finish()
    job |= _environment(doc.section("environment"))
    restarts = doc.whole("max_restarts", "job.recovery.rank_crash")
    if restarts is not None:
        job["recovery"] = {"rank_crash": restarts}
    return job


def _run(doc: KeyReader) -> str | None:
    run = doc.take("entrypoint", "job.run")
    if isinstance(run, list) and all(isinstance(one, str) for one in run):
        run = shlex.join(run)
    if run is None:
        doc.problem("entrypoint", "is required: the command that trains")
    elif not isinstance(run, str):
        doc.problem("entrypoint", "must be a command")
    elif _TRIAL_CLASS.fullmatch(run):
        said = "names a class of Determined's Trial API; write the command that trains"
        doc.problem("entrypoint", said, run)
    else:
        launched = _LAUNCHER.match(run)
        if launched is None:
            return run
        said = "Phalanx starts the ranks itself: the launcher of Determined is left out"
        doc.log.notes.append(said)
        return launched[2] if "python" in launched[2] else f"{launched[1]} {launched[2]}"
    return None


def _environment(section: KeyReader) -> dict[str, Any]:
    job: dict[str, Any] = {}
    image = section.take("image", "job.image")
    if isinstance(image, str):
        job["image"] = image
    elif image is not None:
        section.problem("image", "write one image")
    values = section.take("environment_variables", "job.env")
    if isinstance(values, list) and all(isinstance(one, str) and "=" in one for one in values):
        job["env"] = dict(one.split("=", 1) for one in values)
    elif values is not None:
        section.problem("environment_variables", "write a list of NAME=VALUE")
    pods = "pods are described by the pool"
    section.drop(pods, "pod_spec", "ports", "add_capabilities", "drop_capabilities")
    access = "images are pulled with the node's credentials"
    section.drop(access, "registry_auth", "force_pull_image")
    section.finish()
    return job


def _rest(doc: KeyReader) -> None:
    doc.drop("write it as a label of the job", "description", "labels", "workspace", "project")
    doc.drop(
        "the script reads its data itself", "data", "records_per_epoch", "bind_mounts", "data_layer"
    )
    doc.drop(
        "see `job.checkpoint`",
        "checkpoint_storage",
        "min_checkpoint_period",
        "checkpoint_policy",
        "save_trial_best",
        "save_experiment_best",
    )
    doc.drop(
        "the script decides when it validates",
        "min_validation_period",
        "perform_initial_validation",
        "scheduling_unit",
    )
    doc.drop(
        "has no counterpart",
        "debug",
        "profiling",
        "optimizations",
        "integrations",
        "log_policies",
        "internal",
        "hyperparameter_search",
        "slurm",
        "pbs",
        "preemption_timeout",
        "pachyderm",
        "tensorboard_storage",
        "security",
    )
