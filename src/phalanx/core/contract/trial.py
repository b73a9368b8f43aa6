"""The trial of a study that a job is: its parameters, and the unit at which it pauses.

A job that is no trial has the defaults: no parameters, no study, no target. A trial's job may begin from
the checkpoint of another trial (`ForkSource`), with other parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.core.contract.checkpointing import variable, write_seconds
from phalanx.kit.text import job_label
from phalanx.kit.units import parse_duration

Param = str | int | float | bool | None
"""The value of one parameter."""
TARGET_SUFFIX = ".target"
"""Of the file, beside rank 0's report file, in which its supervisor writes a raised target."""
UNITS = ("epoch", "step", "sample", "token")
"""What a trial's progress is counted in."""


@dataclass(frozen=True, slots=True)
class ForkSource:
    """The committed checkpoint of another job that a trial begins from: the job's number, and a path."""

    job: int
    path: str

    @classmethod
    def parse(cls, text: str) -> ForkSource:
        """From `j-12:/path/of/the/checkpoint`. Raises ValueError."""
        label, colon, path = text.partition(":")
        num = label.removeprefix("j-")
        if not (colon and path and num.isascii() and num.isdigit()):
            raise ValueError(
                "must be a job and the folder of its checkpoint: j-12:/folder/step-7-…"
            )
        return cls(int(num), path)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"{job_label(self.job)}:{self.path}"


def read_params(text: str) -> dict[str, Param]:
    """The parameters in a JSON object. Raises ValueError unless all values are plain and finite."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be a JSON object: {error}") from None
    if not isinstance(body, dict):
        raise ValueError('must be a JSON object, such as {"lr": 0.01}')
    for name, value in body.items():
        plain = value is None or isinstance(value, str | int | float)
        if not plain or (isinstance(value, float) and not math.isfinite(value)):
            said = "must be a finite number, a text, true, false or null"
            raise ValueError(f"{name}: {said}")
    return body


def _write_params(params: Mapping[str, Param]) -> str:
    return json.dumps(dict(params), sort_keys=True, allow_nan=False)


def whole(text: str) -> int:
    """A whole number. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _unit(text: str) -> str:
    if text not in UNITS:
        raise ValueError(f"must be one of {', '.join(UNITS)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContract:
    """One trial of a study, as its ranks see it."""

    #: number of the study; absent in a job that is no trial
    study: int | None = variable("PHALANX_STUDY", None, whole)
    #: number of the trial in its study
    trial: int = variable("PHALANX_TRIAL", 0, whole)
    #: the trial's parameters as a JSON object, which `run.params` holds; may be set by hand
    params: Mapping[str, Param] = variable(
        "PHALANX_PARAMS", read=read_params, write=_write_params, default_factory=dict
    )
    #: what progress is counted in: `epoch`, `step`, `sample` or `token`
    unit: str = variable("PHALANX_TRIAL_UNIT", UNITS[0], _unit)
    #: the trial saves and pauses once it has completed so many units; absent: it runs to its end
    until: int | None = variable("PHALANX_TRIAL_UNTIL", None, whole)
    #: how long a trial that has reached `until` keeps its slots while it waits for a higher one
    hold_s: float = variable("PHALANX_TRIAL_HOLD", 0.0, parse_duration, write_seconds)
    #: name of the metric that the study compares trials by
    objective: str = variable("PHALANX_TRIAL_OBJECTIVE", "")
    #: checkpoint of another trial to begin from: its job and the folder; absent: begin anew
    fork_of: ForkSource | None = variable("PHALANX_FORK_OF", None, ForkSource.parse)
    #: seed of a final retraining, in place of the one that the script gives; absent: the script's
    seed: int | None = variable("PHALANX_SEED", None, whole)

    @property
    def is_trial(self) -> bool:
        """Whether the job is a trial of a study."""
        return self.study is not None


def param_variable(name: str) -> str:
    """The environment variable of a rank with the value of one parameter."""
    return "PHALANX_PARAM_" + _upper(name)


def _upper(name: str) -> str:
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in name).upper()


def param_variables(params: Mapping[str, Param]) -> dict[str, str]:
    """Variables with a trial's parameters for scripts that do not use the library; none without any.

    Besides one of our own for each parameter, those that scripts for Determined (`DET_HPARAMS`, JSON) and
    Kubeflow (`KUBEFLOW_TRAINER_OPT_LR`) read. Texts stand there as they are, other values as in JSON.
    Of names that differ only in signs or case, the last in alphabetical order counts.
    """
    if not params:
        return {}
    found = {"DET_HPARAMS": _write_params(params)}
    for name, value in sorted(params.items()):
        text = value if isinstance(value, str) else json.dumps(value)
        found[param_variable(name)] = text
        found[f"KUBEFLOW_TRAINER_OPT_{_upper(name)}"] = text
    return found
