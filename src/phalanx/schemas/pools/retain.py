"""Retention periods in a project file, and in requests that change them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from phalanx.core.retention.policy import FOREVER
from phalanx.kit.units import format_duration, parse_duration
from phalanx.schemas.spec.fields import Section, optional

LEAST_S = 3600.0
"""A supervisor may send unacknowledged reports again: younger data are not deleted."""
_YEARS = re.compile(r"(\d{1,2})\s*y")
_WORD = "forever"


def read_period(value: Any) -> float:
    """Seconds from `30d`, `1y` or `forever`. Raises ValueError."""
    if isinstance(value, str) and value.strip() == _WORD:
        return FOREVER
    if isinstance(value, str) and (years := _YEARS.fullmatch(value.strip())):
        value = f"{int(years[1]) * 365}d"
    if not isinstance(value, str | int | float):
        raise ValueError("must be a duration such as 30d or 1y, or forever")
    period_s = value if value == FOREVER else parse_duration(value)
    if period_s < LEAST_S:
        raise ValueError("must be at least 1h: supervisors may still have reports to send")
    return float(period_s)


def write_period(period_s: float | None) -> str | None:
    """The text that `read_period` reads; None for None."""
    if period_s is None:
        return None
    return _WORD if period_s == FOREVER else f"{period_s:.15g}s"


def shown_period(period_s: float | None) -> str:
    """A period in words, for users; None: without limit."""
    if period_s is None or period_s == FOREVER:
        return _WORD
    days = period_s / 86_400
    return f"{days:.0f}d" if days.is_integer() else format_duration(period_s)


Period = Annotated[
    float,
    BeforeValidator(read_period),
    PlainSerializer(write_period, return_type=str),
    Field(json_schema_extra={"type": "string", "examples": ["30d", "1y", "forever"]}),
]


class RetainSpec(Section):
    """How long data of ended jobs is kept, such as `{logs: 30d, jobs: 1y}`; absent: as the parent says."""

    logs: Period | None = optional("Output of ranks, in the database and as files.")
    failed_logs: Period | None = optional(
        "Output of jobs that failed, where this is longer than `logs`; absent: as `logs`."
    )
    metrics: Period | None = optional("Metrics.")
    checkpoints: Period | None = optional(
        "Checkpoints, except the newest, the best and pinned ones of each job."
    )
    code: Period | None = optional("Code archives.")
    jobs: Period | None = optional("Jobs, with everything that they have.")

    @property
    def chosen(self) -> dict[str, float]:
        """The periods that are given, in seconds; FOREVER: without limit."""
        given = {
            "logs": self.logs,
            "failed_logs": self.failed_logs,
            "metrics": self.metrics,
            "checkpoints": self.checkpoints,
            "code": self.code,
            "jobs": self.jobs,
        }
        return {name: period for name, period in given.items() if period is not None}
