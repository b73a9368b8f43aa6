"""The options of a run: what `phalanx.train.init` takes, checked once.

`parse` turns arguments into `RunOptions`; `with_spec` lays the job's spec over them. Neither imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from phalanx.core.gang import meshes
from phalanx.core.training.guards import GuardPolicy
from phalanx.core.training.pipelines import SCHEDULES
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest

PRECISIONS = ("fp32", "bf16", "fp16")
RESIZES = ("keep_batch", "scale_batch")
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd", "topk", "randomk", "auto")
LOSSY = ("powersgd", "topk", "randomk")
SYNCS = ("none", "local_sgd", "diloco", "server")
QUANTIZATIONS = ("none", "int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """How replicas send gradients to each other."""

    method: str = "none"
    rank: int = 1
    """The rank of PowerSGD's approximation."""
    fraction: float = 0.01
    """The share of each tensor's elements that topk and randomk send."""
    start_step: int = 0
    """Steps before this one send whole gradients."""
    error_feedback: bool = True
    """Whether what was not sent is added to the next step's gradient."""
    candidates: tuple[str, ...] = ("none", "bf16", "powersgd")
    """The methods that auto measures, most accurate first; it takes the first that is fast enough."""

    @classmethod
    def parse(cls, value: Any) -> CompressionSettings:
        """Read a method's name or a mapping of these fields. Raises ValueError or TypeError."""
        if isinstance(value, CompressionSettings):
            return value
        if value is None or value is False:
            return cls()
        given = dict(value) if isinstance(value, Mapping) else {"method": value}
        _require_known(given, cls)
        if "candidates" in given:
            given["candidates"] = tuple(given["candidates"])
        made = cls(**given)
        made._check()
        return made

    def _check(self) -> None:
        _require_one_of(self.method, COMPRESSIONS, "method")
        _require_whole(self.rank, "rank", least=1)
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction!r}")
        _require_whole(self.start_step, "start_step", least=0)
        if not isinstance(self.error_feedback, bool):
            raise ValueError("error_feedback must be true or false")
        if not self.candidates:
            raise ValueError("candidates must name at least one method")
        for name in self.candidates:
            _require_one_of(name, COMPRESSIONS[:-1], "candidates")

    @property
    def compresses(self) -> bool:
        """Whether gradients are reduced in any other way than DDP's own."""
        return self.method != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSettings:
    """The outer optimizer, SGD: its gradient is the mean of the ranks' weight changes."""

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False


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

    method: str = "none"
    every: int = 1
    """Optimizer steps between two exchanges."""
    outer: OuterSettings = OuterSettings()
    fragments: int = 1
    """The number of parts of the model that are exchanged in turn."""
    quantize: str = "none"
    control_every: int | None = None
    """Steps between requests to stop or save; None: about a second, with `server` every step."""
    servers: int = 1
    """The last ranks of the gang, which hold the weights."""
    staleness: int = 0
    """The most exchanges a rank may be ahead of the slowest; 0 keeps them in step."""

    @classmethod
    def parse(cls, value: Any) -> SyncSettings:
        """Read a method's name or a mapping of these fields. Raises ValueError or TypeError."""
        if isinstance(value, SyncSettings):
            return value
        if value is None or value is False:
            return cls()
        given = dict(value) if isinstance(value, Mapping) else {"method": value}
        _require_known(given, cls)
        method = given.get("method", "none")
        _require_one_of(method, SYNCS, "method")
        for key, methods in _ONLY.items():
            if key in given and method not in methods:
                raise ValueError(f"{key} goes with {' or '.join(methods)}, not with {method}")
        chosen = dict(given.pop("outer", None) or {})
        _require_known(chosen, OuterSettings, "outer.")
        outer = replace(_OUTER.get(method, OuterSettings()), **chosen)
        made = cls(**{"every": _EVERY.get(method, 1), **given, "outer": outer})
        made._check()
        return made

    def _check(self) -> None:
        for name in ("every", "fragments", "servers"):
            _require_whole(getattr(self, name), name, least=1)
        if self.control_every is not None:
            _require_whole(self.control_every, "control_every", least=1)
        _require_whole(self.staleness, "staleness", least=0)
        if self.fragments > self.every:
            raise ValueError(f"fragments must be at most every, which is {self.every}")
        _require_one_of(self.quantize, QUANTIZATIONS, "quantize")
        _require_number(self.outer.lr, "outer.lr", above=0.0, below=float("inf"))
        _require_number(self.outer.momentum, "outer.momentum", above=None, below=1.0)
        if not isinstance(self.outer.nesterov, bool):
            raise ValueError("outer.nesterov must be true or false")
        if self.outer.nesterov and not self.outer.momentum:
            raise ValueError("outer.nesterov needs a momentum above 0")

    @property
    def is_local(self) -> bool:
        """Whether ranks take optimizer steps on their own."""
        return self.method != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to train. `phalanx.train.init` documents each option."""

    seed: int = 0  # of initial weights, data order and sample randomness
    exact: bool = True  # make a resume at the same world size bit-identical
    accumulate: int = 1  # micro-batches of an optimizer step
    clip: float | None = None  # largest norm of a step's gradients; None: not clipped
    ddp: Mapping[str, Any] = field(default_factory=dict)  # arguments of DistributedDataParallel
    strategy: str | Mapping[str, int] = "ddp"  # a strategy, or ranks by dimension
    tp_plan: Mapping[str, Any] = field(default_factory=dict)  # tensor parallel style by module name
    fsdp: Mapping[str, Any] = field(default_factory=dict)  # arguments of `fully_shard`
    precision: str = "fp32"  # one of PRECISIONS
    sync_batchnorm: bool = False  # batch norm statistics over all ranks
    activation_checkpointing: bool | tuple[str, ...] = False  # True: all blocks; or class names
    max_micro_batch: int | None = None  # most samples that a rank computes at once
    on_resize: str = "keep_batch"  # one of RESIZES: the global batch at another world size
    warmup_steps: int = 0  # steps to the learning rate of a new batch size
    on_non_finite: GuardPolicy = GuardPolicy.OFF  # for gradients that are not finite
    on_spike: GuardPolicy = GuardPolicy.OFF  # for a logged loss that jumps
    deterministic: bool = False  # allow only deterministic kernels
    straggler_window: int = 0  # steps between comparisons of compute times; 0: never
    compression: CompressionSettings = CompressionSettings()  # of gradients between replicas
    sync: SyncSettings = SyncSettings()  # exchange of weights between ranks that train on their own
    batch_shares: str | tuple[float, ...] = "even"  # `even`, `auto` or one number per rank
    data_changed: str = "refuse"  # `refuse` or `allow` a resume on other data
    pipeline_schedule: str = "1f1b"  # one of SCHEDULES
    micro_batches: int | None = None  # most pieces of a batch in a pipeline; None: 2 × stages
    pipeline_split: tuple[str, ...] = ()  # layers that begin a pipeline stage
    preflight: str = "check"  # `check` or `off`


def parse(values: Mapping[str, Any]) -> RunOptions:
    """Check a script's options. Raises SpecInvalid naming every one that makes no sense."""
    known = [one.name for one in fields(RunOptions)]
    problems = []
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            near = nearest(key, known)
            problems.append(Problem(key, f"is unknown{f'; did you mean {near}?' if near else ''}"))
            continue
        try:
            checked[key] = _CHECKS[key](value)
        except (ValueError, TypeError) as error:
            problems.append(Problem(key, str(error), str(value)))
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
        problems.append(Problem("sync", "works between whole replicas: strategy ddp", method))
    if options.compression.method != "none":
        text = "compresses gradients, which sync does not send; use sync's quantize"
        problems.append(Problem("compression", text, options.compression.method))
    guarded = options.on_non_finite is not GuardPolicy.OFF or options.precision == "fp16"
    if method == "server" and options.sync.staleness and guarded:
        text = "asks all ranks in every step, which staleness is there to avoid"
        which = "precision" if options.precision == "fp16" else "on_non_finite"
        problems.append(Problem(which, text))
    if options.sync_batchnorm:
        text = "needs all ranks in every step, which sync does without"
        problems.append(Problem("sync_batchnorm", text, "true"))
    return problems


def _one_of(*allowed: str) -> Any:
    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return str(value)

    return check


def _whole(least: int | None = None) -> Any:
    def check(value: Any) -> int:
        low = "" if least is None else f", at least {least}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number{low}")
        if least is not None and value < least:
            raise ValueError(f"must be a whole number{low}")
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


def _policy(value: Any) -> GuardPolicy:
    # YAML reads a bare `off` as false.
    allowed = _one_of("off", "skip", "rollback", "stop")
    return GuardPolicy(allowed("off" if value is False else value))


def _preflight(value: Any) -> str:
    # YAML reads a bare `off` as false.
    return str(_one_of("check", "off")("off" if value is False else value))


def _optional(check: Any) -> Any:
    return lambda value: None if value is None else check(value)


def _as_is(value: Any) -> Any:
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "seed": _whole(),
    "exact": _as_is,
    "accumulate": _whole(1),
    "clip": _optional(_norm),
    "ddp": _as_is,
    "strategy": meshes.parse_sizes,
    "tp_plan": _as_is,
    "fsdp": _as_is,
    "precision": _one_of(*PRECISIONS),
    "sync_batchnorm": _switch,
    "activation_checkpointing": _blocks,
    "max_micro_batch": _optional(_whole(1)),
    "on_resize": _one_of(*RESIZES),
    "warmup_steps": _whole(0),
    "on_non_finite": _policy,
    "on_spike": _policy,
    "deterministic": _switch,
    "straggler_window": _whole(0),
    "compression": CompressionSettings.parse,
    "sync": SyncSettings.parse,
    "batch_shares": _shares,
    "data_changed": _one_of("refuse", "allow"),
    "pipeline_schedule": _one_of(*SCHEDULES),
    "micro_batches": _optional(_whole(1)),
    "pipeline_split": _names("a list of names of layers"),
    "preflight": _preflight,
}


# -- checks of nested settings: they name the field ------------------------------------------------


def _require_known(given: Mapping[str, Any], kind: Any, prefix: str = "") -> None:
    known = [one.name for one in fields(kind)]
    for key in given:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {prefix}{near}?" if near else ""
            raise ValueError(f"{prefix}{key} is unknown{hint}")


def _require_one_of(name: Any, allowed: tuple[str, ...], where: str) -> None:
    if name not in allowed:
        near = nearest(str(name), allowed)
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"{where} must be one of {', '.join(allowed)}, not {name!r}{hint}")


def _require_whole(value: Any, where: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{where} must be a whole number, at least {least}, not {value!r}")


def _require_number(value: Any, where: str, above: float | None, below: float) -> None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    low = plain and (value > above if above is not None else value >= 0)
    if not low or not value < below:
        least = f"above {above:g}" if above is not None else "at least 0"
        most = "" if below == float("inf") else f" and below {below:g}"
        raise ValueError(f"{where} must be a number {least}{most}, not {value!r}")
