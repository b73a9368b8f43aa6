"""Bodies of the API about pools, nodes, projects and the planner's answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.schemas.api.jobs import Ask, At, ReasonView, View


class ApplyRequest(Ask):
    """A pool file or a project file as plain data; the file's own schema says what it may hold."""

    file: dict[str, Any]


class ChangeView(View):
    """What became of one pool or project of the file."""

    name: str
    outcome: Literal["created", "changed", "unchanged"]


class ApplyResponse(View):
    """`warnings` are about what is allowed and probably not meant."""

    changes: list[ChangeView]
    warnings: list[str] = Field(default_factory=list)


class DrainRequest(Ask):
    """Take a node out. `jobs`: leave them running there, or let them save and go elsewhere."""

    reason: Annotated[str, Field(max_length=500)] = ""
    state: Literal["drained", "quarantined"] = "drained"
    jobs: Literal["leave", "move"] = "leave"


class DrainResponse(View):
    """The jobs on the node: those that were asked to move, and those that stay until they end."""

    node: str
    state: str
    moving: list[int] = Field(default_factory=list)
    staying: list[int] = Field(default_factory=list)


class ProjectView(View):
    """A tenant: its limits, and how things stand. Limits None: none.

    `held_slots` are its own, `parts_slots` those that the projects below it hold: its limits bind both
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
    parts_slots: int = 0
    num_running: int = 0
    num_waiting: int = 0
    waiting_slots: int = 0
    entitled_slots: float | None = None
    average_slots: float = 0.0
    applied_at: At | None = None  # None: jobs name it, no file does
    spec: dict[str, Any] | None = None


class ConstraintView(View):
    """One thing in the way: `need` against `have` in `unit`, and the names that it is about."""

    binding: str
    text: str
    need: float = 0.0
    have: float = 0.0
    unit: str = "slots"
    names: list[str] = Field(default_factory=list)


class CounterfactualView(View):
    """One change that would let the job start now, found by planning again with it.

    `by_preemption`: once the `victims` have saved and left.
    """

    kind: str
    text: str
    by_preemption: bool
    victims: list[int] = Field(default_factory=list)


class VictimView(View):
    """A running job that leaves for another one: for whom, why it, and at what expected cost."""

    job: int
    beneficiary: int
    price_slot_s: float
    lost_slot_s: float
    text: str


class EvictionView(View):
    """A time when the scheduler asked this job to save and leave. Costs None: not known yet.

    `beneficiary` None: it was moved or resized for its own good, or its node was drained.
    """

    at: At
    code: str
    text: str
    beneficiary: int | None = None
    price_slot_s: float | None = None
    next_step_at: At | None = None
    lost_s: float | None = None  # from the request to the next completed step


class WhyView(View):
    """Why a job is where it is. What concerns waiting is given for queued jobs only.

    `position` counts from 1 in the order in which the planner looks at the queue; ETAs are absent
    where nobody knows.
    """

    num: int
    label: str
    state: str
    reason: ReasonView
    position: int | None = None
    num_waiting: int | None = None
    eta_p50_at: At | None = None
    eta_p90_at: At | None = None
    constraints: list[ConstraintView] = Field(default_factory=list)
    changes: list[CounterfactualView] = Field(default_factory=list)
    victims: list[VictimView] = Field(default_factory=list)  # who makes room for it
    leaves_for: VictimView | None = None  # whose victim it is itself
    evictions: list[EvictionView] = Field(default_factory=list)
