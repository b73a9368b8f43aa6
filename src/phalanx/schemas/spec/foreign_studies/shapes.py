"""Which tool a document was written for, told by its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.errors import Problem, SpecInvalid
from phalanx.schemas.spec.foreign_studies.determined import translate_determined
from phalanx.schemas.spec.foreign_studies.katib import translate_katib
from phalanx.schemas.spec.foreign_studies.plain import PARAMETERS, translate_plain
from phalanx.schemas.spec.foreign_studies.reading import Translation
from phalanx.schemas.spec.foreign_studies.wandb import translate_wandb

_PLAIN = frozenset({"algorithm", "metric_name", "max_trials", "num_trials", "n_iter", *PARAMETERS})
# Keys of the section `search` that a job spec's `search` may hold beside those of a study.
_METHOD_KEYS = frozenset(
    {
        "method",
        "seed",
        "init_points",
        "initial_points",
        "acquisition",
        "kappa",
        "warm_start",
        "options",
    }
)


def translate(data: Mapping[str, Any]) -> Translation | None:
    """The study of another tool's document; None for a study spec of our own. Raises SpecInvalid.

    SpecInvalid also for a document that is no search at all.
    """
    kind = data.get("kind")
    if kind == "study" or {"space", "objective"} <= set(data):
        return None
    if kind == "Experiment" or str(data.get("apiVersion", "")).startswith("kubeflow.org/"):
        return translate_katib(data)
    if isinstance(data.get("searcher"), Mapping):
        return translate_determined(data)
    if isinstance(data.get("search"), Mapping) and "space" not in data:
        return _in_job(data, data["search"])
    if "method" in data and isinstance(data.get("parameters"), Mapping) and _is_wandb(data):
        return translate_wandb(data)
    if _PLAIN & set(data):
        return translate_plain(data)
    said = (
        "is no study: begin with `kind: study`, or give a job spec with `search:`, a search with "
        "`algorithm` and `parameters`, a Determined experiment, a Katib Experiment or a W&B sweep"
    )
    raise SpecInvalid([Problem("", said)])


def _is_wandb(data: Mapping[str, Any]) -> bool:
    return (
        data.get("method") in ("bayes", "grid", "random")
        and (isinstance(data.get("metric"), Mapping) or "program" in data or "command" in data)
        and not {"max_trials", "metric_name", "algorithm"} & set(data)
    )


def _in_job(data: Mapping[str, Any], block: Mapping[str, Any]) -> Translation:
    """A job spec with `search:`; the block is a study without `job`, or a search in the plain shape."""
    job = {key: one for key, one in data.items() if key != "search"}
    if "space" not in block and _PLAIN & set(block):
        given = translate_plain({key: one for key, one in block.items() if key != "job"})
        study = {**given.study, "job": job}
        mapped, dropped, notes = given.mapped, given.dropped, given.notes
    else:
        study = {key: one for key, one in block.items() if key not in _METHOD_KEYS}
        own = {key: one for key, one in block.items() if key in _METHOD_KEYS}
        inner = block.get("search")
        if own:
            study["search"] = {**(inner if isinstance(inner, Mapping) else {}), **own}
        study = {"schema": 1, "kind": "study", **study, "job": job}
        mapped, dropped, notes = ("search -> the study", "the other keys -> job"), (), ()
    if isinstance(job.get("name"), str):
        study.setdefault("name", job["name"])
    return Translation("job spec with `search`", study, mapped, dropped, notes)
