"""Bodies that explain the planner's decision about one job."""

from __future__ import annotations

from pydantic import Field

from phalanx.schemas.api.body import At, ResponseBody
from phalanx.schemas.api.jobs import CommunicationView, ReasonView


class ConstraintView(ResponseBody):
    """One constraint that blocks the job: `need` against `have` in `unit`, and the names concerned."""

    binding: str
    text: str
    need: float = 0.0
    have: float = 0.0
    unit: str = "slots"
    names: list[str] = Field(default_factory=list)


class CounterfactualView(ResponseBody):
    """One change that would let the job start now, found by planning again.

    `by_preemption`: the start follows once the `victims` have saved and exited.
    """

    kind: str
    text: str
    by_preemption: bool
    victims: list[int] = Field(default_factory=list)


class VictimView(ResponseBody):
    """A running job that would be preempted for another one: the reason and the expected cost."""

    job: int
    beneficiary: int
    price_slot_s: float
    lost_slot_s: float
    text: str


class EvictionView(ResponseBody):
    """A stop of this job by the scheduler. Costs are None while they are not known.

    `beneficiary` None: no other job gained from it, as with a resize or a drained node.
    """

    at: At
    code: str
    text: str
    beneficiary: int | None = None
    price_slot_s: float | None = None
    next_step_at: At | None = None
    lost_s: float | None = None  # from the request to the next completed step


class WaitView(ResponseBody):
    """One wait in the queue that is over; `text` is the last reason for it."""

    attempt: int
    placed_at: At
    waited_s: float
    text: str = ""


class WhyView(ResponseBody):
    """An explanation of a job's state. Fields about waiting are given for queued jobs only.

    `position` counts from 1 in the order in which the planner serves the queue; ETAs are absent
    where none can be estimated. `trial` is what the study of a trial's job says about it.
    """

    num: int
    label: str
    url: str = ""  # of its page
    state: str
    reason: ReasonView
    trial: str = ""
    growth: str = ""  # what became of a request for nodes for it
    position: int | None = None
    num_waiting: int | None = None
    eta_p50_at: At | None = None
    eta_p90_at: At | None = None
    constraints: list[ConstraintView] = Field(default_factory=list)
    changes: list[CounterfactualView] = Field(default_factory=list)
    victims: list[VictimView] = Field(default_factory=list)  # the jobs that make room for it
    preempted_for: VictimView | None = None  # the job it makes room for
    evictions: list[EvictionView] = Field(default_factory=list)
    waits: list[WaitView] = Field(default_factory=list)  # those that are over, the oldest first
    communication: CommunicationView | None = None  # of the live placement
