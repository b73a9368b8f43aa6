"""The options of a run: what `phalanx.train.init` takes, checked once.

`parse` turns arguments into `RunOptions`; `with_spec` lays the job's spec over them. Neither imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from phalanx.core.gang import meshes
from phalanx.core.training.guards import GuardPolicy
from phalanx.core.training.learning_rate import LR_SCALES
from phalanx.core.training.pipelines import SCHEDULES
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest

PRECISIONS = ("fp32", "bf16", "fp16")
RESIZES = ("keep_batch", "scale_batch")
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd", "topk", "randomk", "auto")
SYNCS = ("none", "local_sgd", "diloco", "server")
QUANTIZATIONS = ("none", "int8", "int4")


# -- checks of single values: each returns the value to use, or raises ValueError or TypeError ------


def _one_of(*allowed: str) -> Any:
    def check(value: Any) -> str:
        if value not in allowed:
            near = nearest(str(value), allowed)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}{hint}")
        return str(value)

    return check


def _whole(least: int | None = None) -> Any:
    def check(value: Any) -> int:
        plain = isinstance(value, int) and not isinstance(value, bool)
        if not plain or (least is not None and value < least):
            low = "" if least is None else f", at least {least}"
            raise ValueError(f"must be a whole number{low}")
        return int(value)

    return check


def _number(text: str, fits: Callable[[float], bool]) -> Any:
    """Return a check for numbers that `text` describes and `fits` accepts."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise ValueError(f"must be a number {text}")
        return value

    return check


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _norm(value: Any) -> float:
    if not value > 0:
        raise ValueError("must be a norm above 0, or None")
    return float(value)


def _names(what: str) -> Any:
    def check(value: Any) -> tuple[str, ...]:
        if isinstance(value, str) or not all(isinstance(name, str) for name in value):
            raise ValueError(f"must be {what}")
        return tuple(value)

    return check


def _blocks(value: Any) -> bool | tuple[str, ...]:
    names = _names("true, false or a list of names of module classes")
    return value if isinstance(value, bool) else tuple(names(value))


def _shares(value: Any) -> str | tuple[float, ...]:
    if value in ("even", "auto"):
        return str(value)
    numbers = isinstance(value, list | tuple) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and one > 0 for one in value
    )
    if not numbers or not value:
        raise ValueError("must be even, auto or a list of one number above 0 for each rank")
    return tuple(float(one) for one in value)


def _candidates(value: Any) -> tuple[str, ...]:
    if not value:
        raise ValueError("must name at least one method")
    return tuple(_one_of(*COMPRESSIONS[:-1])(name) for name in value)


def _or_off(*allowed: str) -> Any:
    # YAML reads a bare `off` as false.
    return lambda value: _one_of(*allowed)("off" if value is False else value)


def _policy(value: Any) -> GuardPolicy:
    return GuardPolicy(_or_off("off", "skip", "rollback", "stop")(value))


def _optional(check: Any) -> Any:
    return lambda value: None if value is None else check(value)


def _as_is(value: Any) -> Any:
    return value


def _arguments(value: Any) -> Mapping[str, Any]:
    if not isinstance(value or {}, Mapping):
        raise ValueError("must be a mapping")
    return value or {}


def _option(default: Any, check: Callable[[Any], Any]) -> Any:
    """Return a field of a settings class: its default, and the check of given values."""
    return field(default_factory=lambda: default, metadata={"check": check})


def _checked(
    kind: Any, given: Mapping[str, Any], prefix: str = ""
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values for the fields of a settings class, and what is wrong with others."""
    checks = {one.name: one.metadata["check"] for one in fields(kind)}
    found: dict[str, Any] = {}
    problems = []
    for key, value in given.items():
        if key not in checks:
            near = nearest(str(key), checks)
            hint = f"; did you mean {prefix}{near}?" if near else ""
            problems.append(Problem(f"{prefix}{key}", f"is unknown{hint}"))
            continue
        try:
            found[key] = checks[key](value)
        except (ValueError, TypeError) as error:
            problems.append(Problem(f"{prefix}{key}", str(error), str(value)))
    return found, problems


def _nested(kind: Any, value: Any, prefix: str = "") -> dict[str, Any]:
    """Read a method's name or a mapping of fields. Raises ValueError naming each wrong field."""
    if value is None or value is False:
        return {}
    given = value if isinstance(value, Mapping) else {"method": value}
    found, problems = _checked(kind, given, prefix)
    if problems:
        raise ValueError("; ".join(f"{one.path} {one.message}" for one in problems))
    return found


# -- the settings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """How replicas send gradients to each other."""

    method: str = _option("none", _one_of(*COMPRESSIONS))
    rank: int = _option(1, _whole(1))
    """The rank of PowerSGD's approximation."""
    fraction: float = _option(0.01, _number("above 0 and at most 1", lambda one: 0 < one <= 1))
    """The share of each tensor's elements that topk and randomk send."""
    start_step: int = _option(0, _whole(0))
    """Steps before this one send whole gradients."""
    error_feedback: bool = _option(True, _switch)
    """Whether what was not sent is added to the next step's gradient."""
    candidates: tuple[str, ...] = _option(("none", "bf16", "powersgd"), _candidates)
    """The methods that auto measures, most accurate first; it takes the first that is fast enough."""

    @classmethod
    def parse(cls, value: Any) -> CompressionSettings:
        """Read a method's name or a mapping of these fields. Raises ValueError or TypeError."""
        return value if isinstance(value, CompressionSettings) else cls(**_nested(cls, value))

    @property
    def compresses(self) -> bool:
        """Whether gradients are reduced in any other way than DDP's own."""
        return self.method != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSettings:
    """The outer optimizer, SGD: its gradient is the mean of the ranks' weight changes."""

    lr: float = _option(1.0, _number("above 0", lambda one: 0 < one < math.inf))
    momentum: float = _option(0.0, _number("at least 0 and below 1", lambda one: 0 <= one < 1))
    nesterov: bool = _option(False, _switch)


_OUTER = {"diloco": OuterSettings(lr=0.7, momentum=0.9, nesterov=True)}
_EVERY = {"local_sgd": 50, "diloco": 50}
# The methods to which a setting applies.
_ONLY = {
    "fragments": ("local_sgd", "diloco"),
    "quantize": ("local_sgd", "diloco"),
    "control_every": ("local_sgd", "diloco", "server"),
    "servers": ("server",),
    "staleness": ("server",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """How ranks stay synchronised: by the gradients of every step (`none`), or by weights at intervals."""

    method: str = _option("none", _one_of(*SYNCS))
    every: int = _option(1, _whole(1))
    """Optimizer steps between two exchanges."""
    outer: OuterSettings = _option(OuterSettings(), _arguments)
    fragments: int = _option(1, _whole(1))
    """The number of parts of the model that are exchanged in turn."""
    quantize: str = _option("none", _one_of(*QUANTIZATIONS))
    control_every: int | None = _option(None, _optional(_whole(1)))
    """Steps between requests to stop or save; None: about a second, with `server` every step."""
    servers: int = _option(1, _whole(1))
    """The last ranks of the gang, which hold the weights."""
    staleness: int = _option(0, _whole(0))
    """The most exchanges a rank may be ahead of the slowest; 0 keeps them in step."""

    @classmethod
    def parse(cls, value: Any) -> SyncSettings:
        """Read a method's name or a mapping of these fields. Raises ValueError or TypeError."""
        if isinstance(value, SyncSettings):
            return value
        given = _nested(cls, value)
        method = given.get("method", "none")
        for key, methods in _ONLY.items():
            if key in given and method not in methods:
                raise ValueError(f"{key} is only for {' or '.join(methods)}, not for {method}")
        chosen = _nested(OuterSettings, given.pop("outer", {}), "outer.")
        outer = replace(_OUTER.get(method, OuterSettings()), **chosen)
        made = cls(**{"every": _EVERY.get(method, 1), **given, "outer": outer})
        if made.fragments > made.every:
            raise ValueError(f"fragments must be at most `every`, which is {made.every}")
        if outer.nesterov and not outer.momentum:
            raise ValueError("outer.nesterov needs a momentum above 0")
        return made

    @property
    def is_local(self) -> bool:
        """Whether ranks take optimizer steps on their own."""
        return self.method != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to train. `phalanx.train.init` documents each option."""

    #: of initial weights, data order and sample randomness
    seed: int = _option(0, _whole())
    #: make a resume at the same world size bit-identical
    exact: bool = _option(True, _as_is)
    #: micro-batches of an optimizer step
    accumulate: int = _option(1, _whole(1))
    #: largest norm of a step's gradients; None: not clipped
    clip: float | None = _option(None, _optional(_norm))
    #: arguments of DistributedDataParallel
    ddp: Mapping[str, Any] = _option({}, _arguments)
    #: a strategy, or ranks by dimension
    strategy: str | Mapping[str, int] = _option("ddp", meshes.parse_sizes)
    #: tensor parallel style by module name
    tp_plan: Mapping[str, Any] = _option({}, _arguments)
    #: arguments of `fully_shard`
    fsdp: Mapping[str, Any] = _option({}, _arguments)
    precision: str = _option("fp32", _one_of(*PRECISIONS))  # of computing
    sync_batchnorm: bool = _option(False, _switch)  # batch norm statistics over all ranks
    #: recompute activations. True: of all blocks; or class names
    activation_checkpointing: bool | tuple[str, ...] = _option(False, _blocks)
    #: most samples that a rank computes at once
    max_micro_batch: int | None = _option(None, _optional(_whole(1)))
    on_resize: str = _option("keep_batch", _one_of(*RESIZES))  # what a resize keeps
    scale_lr: str = _option("none", _one_of(*LR_SCALES))  # with the ranks of the first start
    warmup_steps: int = _option(0, _whole(0))  # steps to the learning rate of a new batch size
    #: for gradients that are not finite
    on_non_finite: GuardPolicy = _option(GuardPolicy.OFF, _policy)
    on_spike: GuardPolicy = _option(GuardPolicy.OFF, _policy)  # for a logged loss that jumps
    deterministic: bool = _option(False, _switch)  # allow only deterministic kernels
    straggler_window: int = _option(0, _whole(0))  # steps between comparisons of compute times
    #: of gradients between replicas
    compression: CompressionSettings = _option(CompressionSettings(), CompressionSettings.parse)
    #: exchange of weights between ranks that train on their own
    sync: SyncSettings = _option(SyncSettings(), SyncSettings.parse)
    #: `even`, `auto` or one number per rank
    batch_shares: str | tuple[float, ...] = _option("even", _shares)
    #: what a resume on other data does
    data_changed: str = _option("refuse", _one_of("refuse", "allow"))
    pipeline_schedule: str = _option("1f1b", _one_of(*SCHEDULES))  # order of micro-batches
    #: most pieces of a batch in a pipeline; None: 2 × stages
    micro_batches: int | None = _option(None, _optional(_whole(1)))
    #: layers that begin a pipeline stage
    pipeline_split: tuple[str, ...] = _option((), _names("a list of names of layers"))
    preflight: str = _option("check", _or_off("check", "off"))  # the comparison of ranks


def parse(values: Mapping[str, Any]) -> RunOptions:
    """Check a script's options. Raises SpecInvalid naming every one that makes no sense."""
    checked, problems = _checked(RunOptions, values)
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return RunOptions(**checked)


def with_spec(options: RunOptions, training: Mapping[str, Any]) -> RunOptions:
    """Replace a script's options by those of the job's spec. Raises SpecInvalid as `parse` does."""
    own = {one.name: getattr(options, one.name) for one in fields(RunOptions)}
    return parse({**own, **training})


def sync_conflicts(options: RunOptions, layout: meshes.Layout) -> list[Problem]:
    """Return the options that exclude local SGD, where `sync` asks for it."""
    if not options.sync.is_local:
        return []
    method, problems = options.sync.method, []
    if layout.dp != layout.world_size:
        problems.append(Problem("sync", "needs whole replicas; use strategy ddp", method))
    if options.compression.method != "none":
        text = "compresses gradients, which sync does not send; use sync's quantize"
        problems.append(Problem("compression", text, options.compression.method))
    guarded = options.on_non_finite is not GuardPolicy.OFF or options.precision == "fp16"
    if method == "server" and options.sync.staleness and guarded:
        text = "needs all ranks in every step; set staleness to 0"
        which = "precision" if options.precision == "fp16" else "on_non_finite"
        problems.append(Problem(which, text))
    if options.sync_batchnorm:
        text = "needs all ranks in every step; not supported with sync"
        problems.append(Problem("sync_batchnorm", text, "true"))
    return problems
