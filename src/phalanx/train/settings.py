"""What a run may be told about precision, batch, guards and determinism, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from phalanx.core.training.guards import GuardPolicy
from phalanx.core.training.pipelines import SCHEDULES
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest
from phalanx.train.numerics.compression.settings import CompressionSettings
from phalanx.train.numerics.local_sgd.settings import SyncSettings

PRECISIONS = ("fp32", "bf16", "fp16")
RESIZES = ("keep_batch", "scale_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How to compute a step; see `phalanx.train.init` for each."""

    precision: str = "fp32"
    sync_batchnorm: bool = False
    activation_checkpointing: bool | tuple[str, ...] = False
    max_micro_batch: int | None = None
    on_resize: str = "keep_batch"
    warmup_steps: int = 0
    on_non_finite: GuardPolicy = GuardPolicy.OFF
    on_spike: GuardPolicy = GuardPolicy.OFF
    deterministic: bool = False
    straggler_window: int = 0
    compression: CompressionSettings = CompressionSettings()
    sync: SyncSettings = SyncSettings()
    batch_shares: str | tuple[float, ...] = "even"
    data_changed: str = "refuse"
    pipeline_schedule: str = "1f1b"
    micro_batches: int | None = None
    pipeline_split: tuple[str, ...] = ()
    preflight: str = "check"


def tuned(values: Mapping[str, Any], over: Mapping[str, Any]) -> Tuning:
    """The script's wishes, with those of the job's spec laid over them.

    Raises SpecInvalid naming every value that makes no sense.
    """
    known = [field.name for field in fields(Tuning)]
    problems = []
    merged: dict[str, Any] = {}
    for key, value in {**values, **over}.items():
        if key not in known:
            near = nearest(key, known)
            problems.append(Problem(key, f"is unknown{f'; did you mean {near}?' if near else ''}"))
            continue
        try:
            merged[key] = _CHECKS[key](value)
        except (ValueError, TypeError) as error:
            problems.append(Problem(key, str(error), str(value)))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return replace(Tuning(), **merged)


def _one_of(*allowed: str) -> Any:
    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return str(value)

    return check


def _whole(least: int) -> Any:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"must be a whole number, at least {least}")
        return value

    return check


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _blocks(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be true, false or a list of names of module classes")
    return tuple(value)


def _layers(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of names of layers")
    return tuple(value)


def _shares(value: Any) -> str | tuple[float, ...]:
    if value in ("even", "auto"):
        return str(value)
    numbers = isinstance(value, list | tuple) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and one > 0 for one in value
    )
    if not numbers or not value:
        raise ValueError("must be even, auto or a list of one number above 0 for each rank")
    return tuple(float(one) for one in value)


def _policy(*allowed: str) -> Any:
    check = _one_of(*allowed)
    # YAML reads a bare `off` as false.
    return lambda value: GuardPolicy(check("off" if value is False else value))


def _optional(check: Any) -> Any:
    return lambda value: None if value is None else check(value)


_CHECKS: Mapping[str, Any] = {
    "precision": _one_of(*PRECISIONS),
    "sync_batchnorm": _switch,
    "activation_checkpointing": _blocks,
    "max_micro_batch": _optional(_whole(1)),
    "on_resize": _one_of(*RESIZES),
    "warmup_steps": _whole(0),
    "on_non_finite": _policy("off", "skip", "rollback", "stop"),
    "on_spike": _policy("off", "skip", "rollback", "stop"),
    "deterministic": _switch,
    "straggler_window": _whole(0),
    "compression": CompressionSettings.parse,
    "sync": SyncSettings.parse,
    "batch_shares": _shares,
    "data_changed": _one_of("refuse", "allow"),
    "pipeline_schedule": _one_of(*SCHEDULES),
    "micro_batches": _optional(_whole(1)),
    "pipeline_split": _layers,
    # YAML reads a bare `off` as false.
    "preflight": lambda value: _one_of("check", "off")("off" if value is False else value),
}
