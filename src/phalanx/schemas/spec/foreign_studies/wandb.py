"""Sweeps of Weights & Biases: `method`, `metric`, `parameters`, `early_terminate`, `command`.

`log_uniform` and `q_log_uniform` take exponents of e, `…_values` take values.
"""

from __future__ import annotations

import math
import re
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
)

_REFUSED = (
    "normal",
    "q_normal",
    "log_normal",
    "q_log_normal",
    "inv_log_uniform",
    "inv_log_uniform_values",
    "beta",
    "q_beta",
)
_KINDS = (
    "constant",
    "categorical",
    "int_uniform",
    "uniform",
    "q_uniform",
    "log_uniform",
    "log_uniform_values",
    "q_log_uniform",
    "q_log_uniform_values",
)
_MACRO = re.compile(r"\$\{([^}]*)\}")


def translate_wandb(data: Mapping[str, Any]) -> Translation:
    """The study of a sweep configuration. Raises SpecInvalid."""
    log = TranslationLog()
    doc = KeyReader(data, log)
    study: dict[str, Any] = {"schema": 1, "kind": "study"}
    name = doc.text("name", "name")
    if name is not None:
        study["name"] = as_name(name)
    metric = doc.section("metric")
    title = metric.text("name", "objective.metric")
    if title is None:
        metric.problem("name", "is required: the metric to optimize")
    goal = metric.choice("goal", {"minimize": "minimize", "maximize": "maximize"}, "objective.goal")
    target = metric.number("target", "objective.target")
    metric.drop("failed runs count as the worst ones", "impute", "impute_while_running")
    metric.finish()
    study["objective"] = {"metric": title, "goal": goal or "minimize"}
    if target is not None:
        study["objective"]["target"] = target
    methods = {"grid": "grid", "random": "random", "bayes": "bayesian"}
    method = doc.choice("method", methods, "search.method")
    study["search"] = {"method": method or "random"}
    study["space"] = _space(doc.section("parameters"), "", 0)
    most = doc.whole("run_cap", "trials.max")
    if most is None and method != "grid":
        doc.problem("run_cap", "is required: the number of trials of a study has a limit")
    study["trials"] = {} if most is None else {"max": most, "parallel": max(1, min(4, most))}
    _early(doc.section("early_terminate"), study)
    study["job"] = {"run": _command(doc, study["space"])}
    doc.drop("write labels of the job", "description", "entity", "project", "tags")
    doc.drop(
        "has no counterpart",
        "controller",
        "settings",
        "job",
        "image_uri",
        "queue",
        "launch",
        "scheduler",
    )
    doc.finish()
    log.notes.append(
        "wandb.config stays empty in the script: it reads its arguments, or run.params"
    )
    return log.finish("W&B sweep", study)


def _space(section: KeyReader, prefix: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in section.data:
        name, value = f"{prefix}{key}", section.take(key)
        if not isinstance(value, Mapping):
            section.problem(key, "must be a mapping such as {values: [1, 2]}", value)
            continue
        one = KeyReader(value, section.log, section.at(key))
        if isinstance(value.get("parameters"), Mapping):
            inner = one.section("parameters")
            one.finish()
            if depth < MAX_DEPTH:
                found |= _space(inner, f"{name}.", depth + 1)
            else:
                section.problem(key, "is nested too deep")
            continue
        found[name] = _parameter(one)
        section.log.mapped.append(f"{section.at(key)} -> space.{name}: {found[name]}")
    if not section.data:
        section.problem("", "is required: the parameters to search")
    return found


def _parameter(one: KeyReader) -> Any:
    kind = one.text("distribution") or _usual(one)
    if kind in _REFUSED or kind not in _KINDS:
        said = f"cannot be translated; known: {', '.join(_KINDS)}"
        one.problem("distribution", said, kind)
        return None
    weights = one.items("probabilities")
    if weights and len({str(weight) for weight in weights}) > 1:
        one.problem("probabilities", "all values have the same probability here; remove it")
    value, values = one.take("value"), one.items("values")
    low, high, step = one.number("min"), one.number("max"), one.number("q")
    one.drop("has no effect with this distribution", "mu", "sigma")
    one.finish()
    if kind == "constant":
        return {"value": value}
    if kind == "categorical":
        return {"values": values}
    if low is None or high is None or low > high:
        one.problem("min", "needs two numbers, min and max, the lower one first")
        return None
    if kind in ("log_uniform", "q_log_uniform"):
        if high > 34:
            one.problem("max", "is an exponent of e: write log_uniform_values for values", high)
            return None
        low, high = math.exp(low), math.exp(high)
    return _bounded(one, kind, low, high, step)


def _bounded(one: KeyReader, kind: str, low: float, high: float, step: float | None) -> Any:
    if kind == "uniform":
        return bounds(low, high, "float")
    if kind == "int_uniform":
        if as_whole(low) is None or as_whole(high) is None:
            one.problem("min", "must be a whole number", low)
            return None
        return bounds(low, high, "int")
    if kind in ("log_uniform", "log_uniform_values"):
        if low <= 0:
            one.problem("min", "must be more than 0 on a logarithmic scale", low)
            return None
        return {"log": [low, high]} if low < high else {"value": low}
    step = 1.0 if step is None else step
    if step <= 0 or (high - low) / step > 1e9:
        one.problem("q", "must be more than 0, and not tiny", step)
        return None
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if first > last:
        one.problem("q", "no multiple of it is between min and max", step)
        return None
    whole = step == int(step)
    if kind == "q_uniform":
        kind_, pair = ("int" if whole else "float"), (first * step, last * step)
        return bounds(*pair, kind_, step=None if step == 1 else int(step) if whole else step)
    if step != 1 or first < 1:
        one.problem("q", "a logarithmic scale has no step here, but for whole numbers from 1", step)
        return None
    return bounds(first, last, "int", log=True)


def _usual(one: KeyReader) -> str:
    """The distribution that W&B takes where none is given."""
    if "values" in one:
        return "categorical"
    if "value" in one.data:
        return "constant"
    ends = (one.data.get("min"), one.data.get("max"))
    return "int_uniform" if all(type(end) is int for end in ends) else "uniform"


def _early(one: KeyReader, study: dict[str, Any]) -> None:
    if not one.data:
        return
    one.choice("type", {"hyperband": "asha"}, "rungs.rule")
    least = one.whole("min_iter", "rungs.min")
    most = one.whole("max_iter", "rungs.max")
    eta = one.whole("eta", "rungs.eta") or 3
    count = one.whole("s", "rungs.min")
    one.drop("a trial is stopped at a rung or not at all", "strict")
    one.finish()
    if not 2 <= eta <= 100:
        one.problem("eta", "must be from 2 to 100", eta)
        return
    if most is not None and count is not None and least is None:
        least = max(1, most // eta ** min(max(count, 1), 40))
    if least is None or least < 1:
        one.problem("min_iter", "is required: the first comparison, counted in logged values")
        return
    if most is None:
        most = least * eta**5
        one.log.notes.append(
            f"trials end by themselves, at {most} epochs at the latest (write `max_iter`)"
        )
    study["rungs"] = {
        "rule": "asha",
        "type": "stop",
        "unit": "epoch",
        "min": least,
        "max": most,
        "eta": eta,
    }
    one.log.notes.append(
        "W&B counts logged values; rungs here count the epochs that a script reports"
    )


def _command(doc: KeyReader, space: Mapping[str, Any]) -> str:
    program = doc.text("program", "job.run")
    words = doc.items("command", "job.run") or ["${interpreter}", "${program}", "${args}"]
    made = []
    for word in words:
        if not isinstance(word, str):
            word = str(word)
        made.append(_MACRO.sub(lambda match: _expanded(doc, match[1], program, space), word))
    return " ".join(one for one in made if one)


def _expanded(doc: KeyReader, macro: str, program: str | None, space: Mapping[str, Any]) -> str:
    if macro == "env":
        return ""
    if macro == "interpreter":
        return "python"
    if macro == "program":
        if program is None:
            doc.problem("program", "is required: the script that trains")
        return program or ""
    if macro in ("args", "args_no_hyphens"):
        dash = "--" if macro == "args" else ""
        return " ".join(f"{dash}{name}=${{params.{name}}}" for name in space)
    if macro == "args_json":
        return '"$PHALANX_PARAMS"'
    if macro.startswith("envvar:") and re.fullmatch(r"[A-Za-z_]\w*", macro[7:]):
        return f"${macro[7:]}"
    doc.problem("command", f"${{{macro}}} cannot be translated; write the arguments", None)
    return ""
