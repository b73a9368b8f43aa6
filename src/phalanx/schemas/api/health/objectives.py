"""Bodies about the objectives of job classes and their error budgets."""

from __future__ import annotations

from typing import Literal

from phalanx.schemas.api.body import ResponseBody


class BurnView(ResponseBody):
    """A pair of windows: it fires when both rates exceed `limit`, with three bad events in the long one."""

    severity: Literal["page", "ticket"]
    long_s: int
    short_s: int
    limit: float  # times the rate that spends the budget in exactly its period
    long_rate: float
    short_rate: float
    fires: bool


class ObjectiveReport(ResponseBody):
    """One objective of a class of jobs, over the days of the report.

    `total` and `bad` are jobs, starts, recoveries, or slot-seconds of `goodput`. `reached` and
    `budget_left` are null without events; `budget_left` is 1 when nothing is spent, and below 0 when more
    than all is. `state`: `no data`, `ok`, `burning` or `spent`.
    """

    job_class: str
    objective: str  # success, goodput, start_p95 or recovery_p95
    target: float  # share of good events
    limit_s: float | None = None  # of starts and recoveries
    total: float
    bad: float
    reached: float | None = None
    budget_left: float | None = None
    state: str
    burns: list[BurnView]


class ObjectivesView(ResponseBody):
    """All objectives of all classes. `truncated`: there are more jobs than the newest, which were read."""

    days: int
    objectives: list[ObjectiveReport]
    truncated: bool = False
