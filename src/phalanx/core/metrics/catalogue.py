"""Every family of metrics that a process of the platform exports, by name."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.core.metrics.family import Family, Label, MetricOrigin
from phalanx.core.metrics.lifecycle import LIFECYCLE
from phalanx.core.metrics.platform import PLATFORM
from phalanx.core.metrics.training import TRAINING
from phalanx.core.telemetry.instruments import Kind

_LOOK_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
_KIND = Label("kind", most=20)
_SERVES = "`phalanx operator` runs with `--metrics-port`"


def _of_operator(name: str, kind: Kind, text: str, *labels: Label) -> Family:
    unit = "seconds" if name.endswith("seconds") else ""
    bounds = _LOOK_BOUNDS if kind is Kind.HISTOGRAM else ()
    return Family(
        name,
        kind,
        text,
        labels,
        bounds=bounds,
        origin=MetricOrigin.OPERATOR,
        unit=unit,
        where="operator/metrics.py",
        condition=_SERVES,
    )


OPERATOR = (
    _of_operator(
        "phalanx_operator_reconciles",
        Kind.COUNTER,
        "Looks at objects, by kind and result: ok or error.",
        _KIND,
        Label("result", ("error", "ok")),
    ),
    _of_operator(
        "phalanx_operator_reconcile_seconds",
        Kind.HISTOGRAM,
        "Duration of a look at an object.",
        _KIND,
    ),
    _of_operator("phalanx_operator_objects", Kind.GAUGE, "Objects that are served.", _KIND),
    _of_operator("phalanx_operator_queue_length", Kind.GAUGE, "Objects that are due for a look."),
    _of_operator(
        "phalanx_operator_contact",
        Kind.GAUGE,
        "1 while the mirror of the cluster is whole, else 0.",
    ),
)

GROUPS: tuple[tuple[str, tuple[Family, ...]], ...] = (
    *TRAINING,
    *LIFECYCLE,
    *PLATFORM,
    ("Operator", OPERATOR),
)
"""The families by their headings in the reference."""
CATALOGUE: Mapping[str, Family] = {one.name: one for _, group in GROUPS for one in group}
"""Every family by its name without `_total`."""


def family(name: str) -> Family:
    """The family of a name without `_total`. Raises KeyError."""
    return CATALOGUE[name]
