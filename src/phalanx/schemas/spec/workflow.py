"""The parts of a spec that connect jobs with each other: dependencies."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from phalanx.core.jobs.dependencies import MAX_DEPENDENCIES, DependencyKind
from phalanx.kit.text import parse_job_label
from phalanx.schemas.spec.fields import Jobs, Section


class DependsOn(Section):
    """Other jobs that this one waits for, outside of the queue: `j-12`, or a name in the same batch.

    A list is short for `afterok`.
    """

    after: Jobs = Field(default_factory=list, description="Jobs that must have started or ended.")
    afterany: Jobs = Field(default_factory=list, description="Jobs that must have ended.")
    afterok: Jobs = Field(default_factory=list, description="Jobs that must have succeeded.")
    afternotok: Jobs = Field(
        default_factory=list, description="Jobs that must have failed or been cancelled."
    )

    @model_validator(mode="after")
    def _not_too_many(self) -> DependsOn:
        if len(self.named()) > MAX_DEPENDENCIES:
            raise ValueError(f"write at most {MAX_DEPENDENCIES} jobs in all")
        return self

    def named(self) -> list[tuple[DependencyKind, str]]:
        """Every dependency: its kind, and the job as it is written."""
        by_kind = (
            (DependencyKind.AFTER, self.after),
            (DependencyKind.AFTERANY, self.afterany),
            (DependencyKind.AFTEROK, self.afterok),
            (DependencyKind.AFTERNOTOK, self.afternotok),
        )
        return [(kind, name) for kind, names in by_kind for name in names]


def as_afterok(value: Any) -> Any:
    """A job or a list of jobs as `afterok`."""
    return {"afterok": value} if isinstance(value, list | str | int) else value


def job_id(name: str) -> int | None:
    """The number of a job that is written by its id, such as `j-12`; None for any other name."""
    return parse_job_label(name) if name.startswith("j-") else None
