"""The spec's section `checkpoint`, and where metrics stand in what a script prints."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.telemetry.line_patterns import LinePattern
from phalanx.core.training.checkpoints import Best, Keep, far_prefix
from phalanx.schemas.spec.fields import (
    TEXT_OR_LIST,
    Duration,
    Interval,
    NotEmpty,
    Section,
    Variable,
    Whether,
    WholeFromOne,
    one_or_more,
    optional,
)


def _pattern(text: str) -> str:
    LinePattern.parse(text)
    return text


def _below(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a folder below the work directory, such as out/state")
    if any(part.startswith(".") for part in path.parts):
        raise ValueError("must not be hidden")
    return text


KeptDirectory = Annotated[str, Field(strict=True), AfterValidator(_below)]
MetricLines = Annotated[
    list[Annotated[str, Field(strict=True), AfterValidator(_pattern)]],
    BeforeValidator(one_or_more),
    TEXT_OR_LIST,
]


class BestCheckpoints(Section):
    """Which checkpoints are the best ones."""

    metric: NotEmpty = Field(description="A metric that the script logs.")
    mode: Literal["min", "max"] = Field(default="max", description="Whether low or high is good.")
    count: WholeFromOne = Field(default=1, description="How many of them to keep.")


class KeepCheckpoints(Section):
    """Which checkpoints stay. The only valid one is never deleted."""

    last: WholeFromOne | None = Field(default=3, description="The newest ones; null keeps all.")
    best: BestCheckpoints | None = optional("And the best ones by a metric.")
    every: WholeFromOne | None = optional("And those at steps that are multiples of this.")
    age: Duration | None = optional("And those younger than this.")

    def to_core(self) -> Keep:
        """The core value."""
        best = None if self.best is None else Best(**self.best.model_dump())
        return Keep(self.last, best, self.every, self.age)


class CheckpointKey(Section):
    """Where the ranks find the key that encrypts checkpoints; the key itself never stands in a spec."""

    key_env: Variable | None = optional("A variable of the ranks that holds it.")
    key_file: NotEmpty | None = optional("A file on the ranks' nodes that holds it.")

    @model_validator(mode="after")
    def _one(self) -> CheckpointKey:
        if (self.key_env is None) == (self.key_file is None):
            raise ValueError("give either key_env or key_file")
        return self


class Checkpointing(Section):
    """When checkpoints are made, which of them stay, and where."""

    every: Interval = Field(
        default="10m", description="A duration, `500 steps`, `1 epoch` or auto."
    )
    keep: KeepCheckpoints = Field(default_factory=KeepCheckpoints, description="Retention.")
    in_background: Whether = Field(
        default=True,
        alias="async",
        description="Training goes on while a checkpoint is written from a copy of the state.",
    )
    compress: Literal["none", "zstd"] = Field(
        default="none", description="Makes the files smaller, at the cost of processor time."
    )
    store: Annotated[str, Field(strict=True), AfterValidator(far_prefix)] | None = optional(
        "An object store that gets copies, `s3://bucket/prefix`; absent: none."
    )
    encryption: CheckpointKey | None = optional(
        "Encrypts checkpoints, here and in the object store."
    )
    directory: KeptDirectory | None = optional(
        "The script's own folder: committed as it changes, put back before every start."
    )

    def to_core(self) -> CheckpointPolicy:
        """The core value, the same for every rank of the first role."""
        key = self.encryption
        return CheckpointPolicy(
            every=SaveInterval.parse(self.every),
            keep=self.keep.to_core(),
            background=self.in_background,
            compress=self.compress,
            store=self.store,
            key_env=None if key is None else key.key_env,
            key_file=None if key is None else key.key_file,
            directory=self.directory,
        )
