"""Bodies about alerts of the built-in notifier, silences, receivers and their messages, and probes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody


class LiveAlertView(ResponseBody):
    """An alert for one combination of labels. `muted`: by a silence, or by an alert that explains it."""

    fingerprint: str
    alert: str
    severity: str
    phase: Literal["pending", "firing", "resolved"]
    labels: dict[str, str] = Field(default_factory=dict)
    summary: str
    value: float
    since: At  # when the condition began to hold
    fired_at: At | None = None
    resolved_at: At | None = None
    muted: bool = False


class ReceiverView(ResponseBody):
    """A receiver of the settings, without its address. `gone_at`: it answered that it is gone."""

    name: str
    kind: Literal["webhook", "slack", "mail"]
    severities: list[str]
    projects: list[str] = Field(default_factory=list)  # empty: all, and the platform
    jobs: list[str] = Field(default_factory=list)  # states in which the end of a job is told
    gone_at: At | None = None
    message: str = ""  # why


class AlertsView(ResponseBody):
    """Alerts that are pending or firing or were resolved within a day; without receivers there are none."""

    alerts: list[LiveAlertView]
    receivers: list[ReceiverView]


class SilenceRequest(RequestBody):
    """Alerts that are not told for a while: labels, or `alertname` or `severity`, with their values.

    All matchers must match; `*` in a value stands for any text.
    """

    matchers: dict[
        Annotated[str, Field(min_length=1, max_length=64)],
        Annotated[str, Field(min_length=1, max_length=200)],
    ] = Field(min_length=1, max_length=10)
    duration_s: float = Field(gt=0, le=90 * 86_400)
    comment: str = Field(default="", max_length=500)


class SilenceView(ResponseBody):
    """A silence that is not over."""

    num: int
    matchers: dict[str, str]
    until: At
    comment: str = ""
    by: str = ""
    made_at: At


class DeliveryView(ResponseBody):
    """A message to a receiver. `error` is that of the last try."""

    num: int
    id: str
    receiver: str
    kind: str
    state: Literal["open", "sent", "dead"]
    title: str
    tries: int
    made_at: At
    due_at: At | None = None  # of the next try
    done_at: At | None = None
    error: str = ""


class ProbeView(ResponseBody):
    """The newest probe of one pool.

    `ok` is that of the newest probe that has ended; None while none has. Seconds count from the submission.
    """

    pool: str = Field(description="Name of the pool.")
    probed: bool = Field(description="Whether the settings let it be probed.")
    ok: bool | None = Field(
        default=None, description="Whether the newest probe that has ended succeeded."
    )
    job: str | None = Field(default=None, description="The newest probe, such as j-12.")
    state: str | None = Field(default=None, description="State of the newest probe.")
    submitted_at: At | None = Field(default=None, description="When it was submitted.")
    ended_at: At | None = Field(default=None, description="When it ended.")
    start_s: float | None = Field(default=None, description="Time until its rank ran.")
    first_step_s: float | None = Field(default=None, description="Time until its step.")
    end_s: float | None = Field(default=None, description="Time until its end.")
    message: str = Field(default="", description="Why it has failed, or waits.")
