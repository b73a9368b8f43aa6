"""The body about a project: its limits and its current usage."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.api.body import At, ResponseBody


class ProjectView(ResponseBody):
    """A tenant: its limits, and how things stand. Limits None: none.

    `held_slots` are its own, `child_slots` those that the projects below it hold: its limits bind both
    together. `entitled_slots` is what it may count on now, `average_slots` what it has held on
    average, older use counting less.
    """

    name: str
    parent: str | None = None
    guaranteed_slots: int = 0
    weight: float = 1.0
    max_slots: int | None = None
    lend_slots: int | None = None
    max_priority: int | None = None
    max_running: int | None = None
    held_slots: int = 0
    child_slots: int = 0
    num_running: int = 0
    num_waiting: int = 0
    waiting_slots: int = 0
    entitled_slots: float | None = None
    average_slots: float = 0.0
    applied_at: At | None = None  # None: jobs name it, no file does
    spec: dict[str, Any] | None = None
