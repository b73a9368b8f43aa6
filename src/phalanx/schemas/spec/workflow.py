"""The parts of a spec that connect jobs with each other: dependencies and arrays."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from phalanx.core.jobs.dependencies import MAX_DEPENDENCIES, DependencyKind
from phalanx.kit.text import parse_job_label
from phalanx.schemas.spec.fields import Indices, Jobs, Section, WholeFromOne, optional


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
        if not (self.after or self.afterany or self.afterok or self.afternotok):
            return []
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


class Array(Section):
    """A job for each index, all under one id. `0-99%10` is short for both keys."""

    indices: Indices = Field(description="Indices: 0-99, 0-20:5 (every fifth) or 1,3,7.")
    parallel: WholeFromOne | None = optional("Maximum number of elements under way at once.")


def as_indices(value: Any) -> Any:
    """`0-99%10` and a list of indices as the two keys."""
    if isinstance(value, str):
        indices, percent, parallel = value.partition("%")
        count: Any = int(parallel) if parallel.isdecimal() and len(parallel) < 10 else parallel
        return {"indices": indices, **({"parallel": count} if percent else {})}
    return {"indices": value} if isinstance(value, list | int) else value


def fill_index(value: Any, index: int, count: int) -> Any:
    """Plain data with `${array.index}` and `${array.count}` replaced in every text."""
    if isinstance(value, str):
        return value.replace("${array.index}", str(index)).replace("${array.count}", str(count))
    if isinstance(value, dict):
        return {key: fill_index(one, index, count) for key, one in value.items()}
    return [fill_index(one, index, count) for one in value] if isinstance(value, list) else value


def array_id(name: str) -> int | None:
    """The number of an array that is written by its id, such as `a-12`; None for any other name."""
    return parse_job_label(f"j-{name[2:]}") if name.startswith("a-") else None


def job_id(name: str) -> int | None:
    """The number of a job that is written by its id, such as `j-12`; None for any other name."""
    return parse_job_label(name) if name.startswith("j-") else None
