"""Bodies about schedules and their runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, ShownAs
from phalanx.schemas.spec.job import JobSpec


class PutScheduleRequest(RequestBody):
    """A schedule: the job spec and code that it submits, and when.

    `cron` has five fields in the time zone `timezone`. `catch_up` says which times that passed while no job
    could be started start one: none, the last, or all (the newest `catch_up_limit`). `overlap` says what
    becomes of a time while a job of the schedule is not over.
    """

    spec: Annotated[dict[str, Any], ShownAs(JobSpec)]
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    cron: Annotated[str, Field(max_length=100)]
    timezone: Annotated[str, Field(max_length=100)] = "UTC"
    catch_up: Literal["none", "last", "all"] = "last"
    catch_up_limit: Annotated[int, Field(ge=1, le=100)] = 10
    overlap: Literal["forbid", "allow", "replace"] = "forbid"
    paused: bool = False
    replace: bool = False  # an earlier schedule of the same name
    owner: ShortText = ""


class ScheduleRunView(ResponseBody):
    """What became of a due time: `outcome` is submitted, missed, overlapped or refused."""

    due_at: At
    handled_at: At
    outcome: str
    job: int | None = None  # the first one of an array
    label: str | None = None
    url: str | None = None  # of its page
    num_jobs: int = 0
    on_request: bool = False  # a user asked for it
    by: str = ""  # id of the principal that asked for it
    message: str = ""  # why no job was submitted


class ScheduleView(ResponseBody):
    """A schedule. `spec`, `next` (due times) and `runs` (newest first) are given for a single one only."""

    project: str
    name: str
    principal: str  # the user or service account with the rights that its jobs need
    owner: str  # of its jobs
    cron: str
    timezone: str
    catch_up: str
    catch_up_limit: int
    overlap: str
    paused: bool
    code: str | None = None
    next_at: At | None = None  # None: paused, or no day matches any more
    created_at: At
    changed_at: At
    changed_by: str
    last_run: ScheduleRunView | None = None
    spec: dict[str, Any] | None = None
    next: list[At] = Field(default_factory=list)
    runs: list[ScheduleRunView] = Field(default_factory=list)
