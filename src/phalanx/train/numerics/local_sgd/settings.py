"""What a run may be told about exchanging weights rarely, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from phalanx.kit.text import nearest

METHODS = ("none", "local_sgd", "diloco", "server")
QUANTIZATIONS = ("none", "int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSettings:
    """The optimizer that takes the mean of what the ranks did as its gradient: SGD."""

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False


_OUTER = {"diloco": OuterSettings(lr=0.7, momentum=0.9, nesterov=True)}
_EVERY = {"local_sgd": 50, "diloco": 50}
# Which methods a setting means something to.
_ONLY = {
    "fragments": ("local_sgd", "diloco"),
    "quantize": ("local_sgd", "diloco"),
    "control_every": ("local_sgd", "diloco", "server"),
    "servers": ("server",),
    "staleness": ("server",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """How ranks keep together: by every step's gradients (`none`), or by weights, now and then.

    `every` counts optimizer steps between exchanges. The model travels in `fragments` parts that take
    turns, quantised or not. Requests to stop or save travel every `control_every` steps; None: about once
    a second, with `server` after each step. With `server` the last `servers` ranks of the gang hold the
    weights, and no rank is more than `staleness` exchanges ahead of the slowest; 0 keeps them in step.
    """

    method: str = "none"
    every: int = 1
    outer: OuterSettings = OuterSettings()
    fragments: int = 1
    quantize: str = "none"
    control_every: int | None = None
    servers: int = 1
    staleness: int = 0

    @classmethod
    def parse(cls, value: Any) -> SyncSettings:
        """From a method's name, or a mapping of these fields. Raises ValueError or TypeError."""
        if isinstance(value, SyncSettings):
            return value
        if value is None or value is False:
            return cls()
        given = dict(value) if isinstance(value, Mapping) else {"method": value}
        _known_keys(given, cls, "")
        method = given.get("method", "none")
        _one_of(method, METHODS, "method")
        for key, methods in _ONLY.items():
            if key in given and method not in methods:
                raise ValueError(f"{key} goes with {' or '.join(methods)}, not with {method}")
        outer = _OUTER.get(method, OuterSettings())
        wishes = dict(given.pop("outer", None) or {})
        _known_keys(wishes, OuterSettings, "outer.")
        given = {"every": _EVERY.get(method, 1), **given, "outer": replace(outer, **wishes)}
        made = cls(**given)
        made._check()
        return made

    def _check(self) -> None:
        for name in ("every", "fragments", "servers"):
            _whole(getattr(self, name), name, least=1)
        if self.control_every is not None:
            _whole(self.control_every, "control_every", least=1)
        _whole(self.staleness, "staleness", least=0)
        if self.fragments > self.every:
            raise ValueError(f"fragments must be at most every, which is {self.every}")
        _one_of(self.quantize, QUANTIZATIONS, "quantize")
        _number(self.outer.lr, "outer.lr", above=0.0, below=float("inf"))
        _number(self.outer.momentum, "outer.momentum", above=None, below=1.0)
        if not isinstance(self.outer.nesterov, bool):
            raise ValueError("outer.nesterov must be true or false")
        if self.outer.nesterov and not self.outer.momentum:
            raise ValueError("outer.nesterov needs a momentum above 0")

    @property
    def is_local(self) -> bool:
        """Whether ranks take optimizer steps on their own."""
        return self.method != "none"


def _known_keys(given: Mapping[str, Any], kind: Any, prefix: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in given:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {prefix}{near}?" if near else ""
            raise ValueError(f"{prefix}{key} is unknown{hint}")


def _one_of(name: Any, allowed: tuple[str, ...], field: str) -> None:
    if name not in allowed:
        near = nearest(str(name), allowed)
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"{field} must be one of {', '.join(allowed)}, not {name!r}{hint}")


def _whole(value: Any, field: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{field} must be a whole number, at least {least}, not {value!r}")


def _number(value: Any, field: str, above: float | None, below: float) -> None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    low = plain and (value > above if above is not None else value >= 0)
    if not low or not value < below:
        least = f"above {above:g}" if above is not None else "at least 0"
        most = "" if below == float("inf") else f" and below {below:g}"
        raise ValueError(f"{field} must be a number {least}{most}, not {value!r}")
