"""Searches as many users write them: `algorithm`, `parameters` or `pbounds`, `max_trials`, `metric_name`.

Keys of bayes_opt (`init_points`, `n_iter`, `random_state`, `pbounds`) and of common trainers are read too.
A plain list is a choice; with nothing but lists and no algorithm the search is a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.schemas.spec.foreign_studies.reading import (
    MAX_DEPTH,
    KeyReader,
    Translation,
    TranslationLog,
    as_name,
    as_number,
    as_whole,
    bounds,
    is_list,
    is_scalar,
)

PARAMETERS = ("parameters", "search_space", "param_space", "hyperparameters", "pbounds")
ALGORITHMS = {
    "grid": "grid",
    "grid_search": "grid",
    "random": "random",
    "random_search": "random",
    "sobol": "qmc",
    "qmc": "qmc",
    "tpe": "tpe",
    "hyperopt": "tpe",
    "optuna": "tpe",
    "bayesian": "bayesian",
    "bayesian_optimization": "bayesian",
    "bayesopt": "bayesian",
    "bayes": "bayesian",
    "gp": "bayesian",
    "auto": "auto",
    "pbt": "pbt",
    "pb2": "pb2",
}
_HALVING = {
    "asha": "asha",
    "hyperband": "hyperband",
    "pasha": "pasha",
    "bohb": "asha",
    "median": "median",
}
_GOALS = {
    "max": "maximize",
    "maximize": "maximize",
    "maximum": "maximize",
    "min": "minimize",
    "minimize": "minimize",
    "minimum": "minimize",
}
_KINDS = {
    **dict.fromkeys(("float", "double", "uniform", "quniform", "real", "range"), "float"),
    **dict.fromkeys(("int", "integer", "randint", "int_uniform", "quniformint"), "int"),
    **dict.fromkeys(("loguniform", "log_uniform", "log", "log_float", "reciprocal"), "log"),
    **dict.fromkeys(("lograndint", "log_int", "loguniformint"), "logint"),
    **dict.fromkeys(("choice", "categorical", "discrete", "values", "grid", "enum"), "choice"),
    **dict.fromkeys(("const", "constant", "fixed", "value"), "const"),
}
_JOB_KEYS = (
    "run",
    "setup",
    "python",
    "framework",
    "workdir",
    "image",
    "resources",
    "roles",
    "data",
    "placement",
    "pool",
    "priority",
    "env",
    "secrets",
    "labels",
    "project",
    "max_duration",
    "checkpoint",
    "metrics",
    "training",
    "recovery",
    "stall",
    "warm",
    "grace",
)


def translate_plain(data: Mapping[str, Any]) -> Translation:
    """The study of a document in this shape. Raises SpecInvalid."""
    log = TranslationLog()
    doc = KeyReader(data, log)
    space, only_lists = _space(doc)
    study: dict[str, Any] = {
        "schema": 1,
        "kind": "study",
        "objective": _objective(doc),
        "search": {},
        "space": space,
        "trials": {},
    }
    name = doc.first(("name", "study_name", "experiment_name"), "name")
    if isinstance(name, str):
        study["name"] = as_name(name)
    _method(doc, study, only_lists)
    _numbers(doc, study)
    _stopping(doc, study)
    study["job"] = _job(doc)
    for key in ("constraints", "start_with", "budget", "final", "rungs", "population"):
        study.setdefault(key, doc.take(key, key))
    doc.drop("has no meaning here", "schema", "kind", "version", "verbose", "description")
    doc.finish()
    return log.finish("search in the shape `algorithm / parameters`", study)


def read_space(data: Mapping[str, Any], log: TranslationLog, path: str = "") -> dict[str, Any]:
    """The space in a mapping of parameters in this shape, or in the study spec's own."""
    return _parameters(KeyReader(data, log, path), False, 0)


def _objective(doc: KeyReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    metric = doc.first(
        ("metric_name", "metric", "objective_metric", "objective", "monitor"), "objective.metric"
    )
    if isinstance(metric, Mapping):
        inner = KeyReader(metric, doc.log, "objective" if "objective" in doc else "metric")
        found["metric"] = inner.first(("name", "metric", "metric_name"), "objective.metric")
        found["goal"] = inner.choice("goal", _GOALS, "objective.goal")
        found["target"] = inner.number("target", "objective.target")
        found["at"] = inner.text("at", "objective.at")
        for key in ("max", "min"):
            if inner.flag(key, "objective.goal") is not None:
                found["goal"] = "maximize" if inner.data[key] == (key == "max") else "minimize"
        inner.finish()
    else:
        found["metric"] = metric
    maximize = doc.flag("maximize", "objective.goal")
    if maximize is not None:
        found["goal"] = "maximize" if maximize else "minimize"
    for key in ("mode", "direction", "goal"):
        goal = doc.choice(key, _GOALS, "objective.goal")
        found["goal"] = goal or found.get("goal")
    found["target"] = doc.first(("target", "target_value"), "objective.target") or found.get(
        "target"
    )
    return {key: one for key, one in found.items() if one is not None}


def _space(doc: KeyReader) -> tuple[dict[str, Any], bool]:
    given = [key for key in PARAMETERS if key in doc]
    for key in given[1:]:
        doc.refuse(key, f"is the same as {given[0]}; remove one")
    for key in PARAMETERS:
        doc.take(key)
    if not given:
        doc.problem("parameters", "is required: the parameters to search")
        return {}, False
    key = given[0]
    section = doc.section(key)
    lists = [is_list(one) for one in section.data.values()]
    space = _parameters(section, key == "pbounds", 0)
    doc.log.mapped.append(f"{key} -> space ({', '.join(list(space)[:8]) or 'nothing'})")
    return space, bool(lists) and all(lists) and key != "pbounds"


def _parameters(section: KeyReader, pairs: bool, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in section.data:
        value = section.take(name)
        if isinstance(value, Mapping):
            found[name] = _mapping(section, name, value, depth)
        elif is_list(value):
            found[name] = _list(section, name, list(value), pairs)
        else:
            found[name] = value
    return found


def _list(section: KeyReader, name: str, value: list[Any], pair: bool) -> Any:
    """A list: a choice; in `pbounds` two bounds, or two bounds and a type."""
    if not pair:
        return {"values": value}
    numbers = [as_number(one) for one in value[:2]]
    if len(value) == 2 and None not in numbers:
        return _checked(section, name, value[0], value[1], "float")
    if len(value) == 3 and None not in numbers and value[2] in ("int", "float"):
        return _checked(section, name, value[0], value[1], str(value[2]))
    if all(isinstance(one, str | bool) for one in value):
        return {"values": value}
    section.problem(name, "write two bounds, as in [0.0001, 0.1]", str(value))
    return None


def _mapping(section: KeyReader, name: str, value: Mapping[str, Any], depth: int) -> Any:
    one = KeyReader(value, section.log, section.at(name))
    own, others = {"float", "int", "log", "values", "value"}, {"type", "min", "max", "low", "high"}
    if own & set(one.data) and not others & set(one.data):
        return dict(one.data)  # the study spec's own form, which checks it
    word = one.first(("type", "distribution", "kind"))
    kind = _KINDS.get(word.lower()) if isinstance(word, str) else None
    if word is not None and kind is None:
        one.problem("type", f"cannot be translated; known: {', '.join(sorted(_KINDS))}", word)
        return None
    low = one.first(("min", "low", "lower", "minval"))
    high = one.first(("max", "high", "upper", "maxval"))
    both = one.first(("range", "bounds"))
    if is_list(both) and len(both) == 2:
        low, high = both
    values = one.first(("values", "choices", "options", "categories"))
    constant = one.take("value")
    log = one.flag("log") or one.text("scale") in ("log", "logarithmic")
    step = one.first(("step", "q"))
    when = one.text("when")
    one.drop("has no meaning here", "default", "description")
    one.finish()
    if kind == "const" or (constant is not None and kind is None):
        return {"value": constant, **({"when": when} if when else {})}
    if values is not None or kind == "choice":
        return {"values": values, **({"when": when} if when else {})}
    if kind is None:
        whole = as_whole(low) is not None and as_whole(high) is not None
        kind = "int" if whole and isinstance(low, int) and isinstance(high, int) else "float"
    if kind in ("log", "logint"):
        kind, log = ("float" if kind == "log" else "int"), True
    found = _checked(section, name, low, high, kind, log=log, step=step)
    return None if found is None else {**found, **({"when": when} if when else {})}


def _checked(section: KeyReader, name: str, low: Any, high: Any, kind: str, **more: Any) -> Any:
    if as_number(low) is None or as_number(high) is None:
        section.problem(name, "needs two numbers, its lower and its upper bound")
        return None
    if kind == "int" and (as_whole(low) is None or as_whole(high) is None):
        section.problem(name, "needs two whole numbers, its lower and its upper bound")
        return None
    return bounds(low, high, kind, **more)


def _method(doc: KeyReader, study: dict[str, Any], only_lists: bool) -> None:
    search = study["search"]
    word = doc.first(("algorithm", "method", "search_algorithm", "strategy", "optimizer_type"))
    if isinstance(word, str) and word.lower().replace("-", "_") in _HALVING:
        rule = _HALVING[word.lower().replace("-", "_")]
        doc.log.mapped.append(f"algorithm -> rungs.rule: {rule}, search.method: auto")
        search["method"] = "auto"
        study["rungs"] = _rungs(doc, rule)
    elif isinstance(word, str) and word.lower().replace("-", "_") in ALGORITHMS:
        search["method"] = ALGORITHMS[word.lower().replace("-", "_")]
        doc.log.mapped.append(f"algorithm -> search.method: {search['method']}")
    elif word is not None:
        known = ", ".join(sorted({*ALGORITHMS, *_HALVING}))
        doc.problem("algorithm", f"cannot be translated; known: {known}", word)
    elif "pbounds" in doc or "acquisition_function" in doc or "n_iter" in doc:
        search["method"] = "bayesian"
    elif only_lists:
        search["method"] = "grid"
        doc.log.notes.append("every parameter is a plain list: the search is a grid")
    seed = doc.first(("random_state", "seed", "random_seed"), "search.seed")
    search["init_points"] = doc.first(
        ("init_points", "initial_points", "n_startup_trials", "n_initial_points"),
        "search.init_points",
    )
    kind = doc.first(("acquisition_function", "acquisition", "acq"), "search.acquisition")
    names = {
        "ucb": "ucb",
        "upper_confidence_bound": "ucb",
        "lcb": "ucb",
        "ei": "ei",
        "expected_improvement": "ei",
    }
    if isinstance(kind, str) and kind.lower() in names:
        search["acquisition"] = names[kind.lower()]
    elif kind is not None:
        doc.problem("acquisition_function", "cannot be translated; known: ucb, ei", kind)
    search["kappa"] = doc.number("kappa", "search.kappa")
    doc.drop("there is no such option; `kappa` weighs the uncertainty", "xi")
    if seed is not None:
        search["seed"] = seed
    study["search"] = {key: one for key, one in search.items() if one is not None}


def _rungs(doc: KeyReader, rule: str) -> dict[str, Any]:
    most = doc.first(("max_epochs", "max_t", "max_resource", "max_budget", "max_iter"), "rungs.max")
    least = doc.first(("min_epochs", "grace_period", "min_resource", "min_budget"), "rungs.min")
    eta = doc.first(("reduction_factor", "eta"), "rungs.eta")
    if most is None:
        doc.problem("max_epochs", "is required with this algorithm: how long a whole trial trains")
    found = {"rule": rule, "min": least, "max": most, "eta": eta}
    return {key: one for key, one in found.items() if one is not None}


def _numbers(doc: KeyReader, study: dict[str, Any]) -> None:
    most = doc.first(("max_trials", "num_trials", "n_trials", "num_samples"), "trials.max")
    rounds = doc.whole("n_iter", "trials.max, beside init_points")
    if rounds is not None and most is None:
        first = study["search"].get("init_points")
        most = rounds + (first if isinstance(first, int) else 0)
    parallel = doc.first(
        (
            "max_parallel_trials",
            "parallel_trials",
            "max_concurrent_trials",
            "max_concurrent",
            "n_jobs",
        ),
        "trials.parallel",
    )
    if parallel is None and isinstance(most, int):
        parallel = max(1, min(4, most))
    failed = doc.first(("max_failed_trials", "max_failures"), "trials.failed.max")
    abort = doc.first(
        ("abort_failing_trials", "abort_on_failure", "fail_fast"), "trials.failed.max"
    )
    if abort is True and failed is None:
        failed = 0
    found = {
        "max": most,
        "parallel": parallel,
        "failed": None if failed is None else {"max": failed},
    }
    study["trials"] = {key: one for key, one in found.items() if one is not None}


def _stopping(doc: KeyReader, study: dict[str, Any]) -> None:
    section = doc
    if isinstance(doc.data.get("early_stopping"), Mapping):
        section = doc.section("early_stopping")
    elif "early_stopping" in doc:
        doc.refuse("early_stopping", "must be a mapping with `patience` and `min_delta`")
    patience = section.whole("patience", "early_stop.patience")
    delta = section.number("min_delta", "early_stop.min_delta")
    if patience is not None:
        study["early_stop"] = {
            "patience": patience,
            **({} if delta is None else {"min_delta": delta}),
        }
    elif delta is not None:
        section.problem("min_delta", "has no effect without `patience`")
    if section is not doc:
        section.drop("has no meaning here", "enabled", "metric", "mode")
        section.finish()


def _job(doc: KeyReader) -> dict[str, Any] | None:
    job = doc.take("job", "job")
    if job is not None and not isinstance(job, Mapping):
        doc.problem("job", "must be a job spec")
        return None
    found: dict[str, Any] = dict(job or {})
    command = doc.first(("command", "entrypoint", "script", "run"), "job.run")
    if isinstance(command, str) and command.endswith(".py") and " " not in command:
        command = f"python {command}"
    if command is not None:
        found["run"] = command
    for key in _JOB_KEYS:
        if key != "run" and key in doc:
            found[key] = doc.take(key, f"job.{key}")
        doc.take(key)
    slots = doc.first(("gpus_per_trial", "slots_per_trial"), "job.resources.slots_per_node")
    if slots is not None:
        resources = found.get("resources")
        found["resources"] = {
            **(resources if isinstance(resources, Mapping) else {}),
            "slots_per_node": slots,
        }
    return found or None


def is_space(value: Any) -> bool:
    """Whether a mapping looks like nothing but parameters."""
    return isinstance(value, Mapping) and all(
        is_scalar(one) or is_list(one) or isinstance(one, Mapping) for one in value.values()
    )


__all__ = ["ALGORITHMS", "MAX_DEPTH", "PARAMETERS", "is_space", "read_space", "translate_plain"]
