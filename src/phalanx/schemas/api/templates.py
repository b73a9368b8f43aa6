"""Bodies about job templates."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from phalanx.schemas.api.body import At, RequestBody, ResponseBody, ShortText, ShownAs
from phalanx.schemas.api.jobs import BatchedJob
from phalanx.schemas.spec.template import JobTemplate, ParameterValue


class PutTemplateRequest(RequestBody):
    """A new version of a template, as plain data, and the code that its jobs run."""

    template: Annotated[dict[str, Any], ShownAs(JobTemplate)]
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class TemplateView(ResponseBody):
    """A version of a template. Without `project` it is one of the whole platform."""

    project: str | None
    name: str
    version: int
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    job: dict[str, Any]
    code: str | None = None
    created_at: At
    created_by: str


class SubmitTemplateRequest(RequestBody):
    """Values for the parameters of a template. Without `version` the newest one is used."""

    set: Annotated[dict[str, ParameterValue], Field(max_length=100)] = Field(default_factory=dict)
    version: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    dry_run: bool = False  # only check
    owner: ShortText = ""


class TemplateJobs(ResponseBody):
    """The jobs, every element of an array, and the spec with every default; no jobs for a dry run."""

    jobs: list[BatchedJob]
    version: int
    spec: dict[str, Any]
    code: str | None = None
