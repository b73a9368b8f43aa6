"""The spec's section `checkpoint`, and where metrics stand in what a script prints."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.contract.resume import ResumeReference
from phalanx.core.telemetry.line_patterns import LinePattern
from phalanx.core.training.checkpoints import Best, Keep, far_prefix
from phalanx.core.training.resumption import DEFAULT_WAIT_S
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


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("cannot hold a NUL byte")
    return text


def _pattern(text: str) -> str:
    LinePattern.parse(text)
    return text


def _below(text: str) -> str:
    _no_nul(text)
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a folder below the work directory, such as out/state")
    if any(part.startswith(".") for part in path.parts):
        raise ValueError("must not be hidden: no part may begin with a dot")
    return text


def _reference(text: str) -> str:
    ResumeReference.parse(text)
    return text


ResumeFrom = Annotated[
    str, Field(strict=True, min_length=1, max_length=4096), AfterValidator(_reference)
]
KeptDirectory = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(_below)]
MetricLines = Annotated[
    list[Annotated[str, Field(strict=True), AfterValidator(_pattern)]],
    BeforeValidator(one_or_more),
    Field(max_length=50),
    TEXT_OR_LIST,
]


class BestCheckpoints(Section):
    """Which checkpoints are the best ones."""

    metric: NotEmpty = Field(description="Name of a metric that the script logs.")
    mode: Literal["min", "max"] = Field(default="max", description="Which values are best.")
    count: WholeFromOne = Field(default=1, description="Number of best checkpoints to keep.")


class KeepCheckpoints(Section):
    """Which checkpoints retention keeps. The only valid one is never deleted."""

    last: WholeFromOne | None = Field(default=3, description="Newest checkpoints; null: all.")
    best: BestCheckpoints | None = optional("The best checkpoints by a metric are kept as well.")
    every: WholeFromOne | None = optional("Checkpoints at multiples of this step are kept as well.")
    age: Duration | None = optional("Checkpoints younger than this are kept as well.")

    def to_core(self) -> Keep:
        """The core value."""
        best = None if self.best is None else Best(**self.best.model_dump())
        return Keep(self.last, best, self.every, self.age)


class CheckpointKey(Section):
    """Where the ranks find the key that encrypts checkpoints; the spec never holds the key itself."""

    key_env: Variable | None = optional("Environment variable of the ranks that holds the key.")
    key_file: NotEmpty | None = optional("File on the ranks' nodes that holds the key.")

    @model_validator(mode="after")
    def _one(self) -> CheckpointKey:
        if (self.key_env is None) == (self.key_file is None):
            raise ValueError("give either key_env or key_file")
        return self


class Checkpointing(Section):
    """When checkpoints are made, which of them stay, and where."""

    every: Interval = Field(
        default="10m", description="Interval: a duration, `500 steps`, `1 epoch` or auto."
    )
    keep: KeepCheckpoints = Field(default_factory=KeepCheckpoints, description="Retention.")
    in_background: Whether = Field(
        default=True,
        alias="async",
        description="Training continues while a checkpoint is written from a copy of the state.",
    )
    compress: Literal["none", "zstd"] = Field(
        default="none", description="Compression of checkpoint files; zstd takes CPU time."
    )
    store: (
        Annotated[str, Field(strict=True, max_length=4096), AfterValidator(far_prefix)] | None
    ) = optional("Object store that receives copies, `s3://bucket/prefix`; absent: none.")
    encryption: CheckpointKey | None = optional(
        "Encryption of checkpoints, on the nodes and in the object store."
    )
    wait: Duration = Field(
        default=DEFAULT_WAIT_S,
        description="Time to wait for checkpoints that are missing or unreadable at a start, and for"
        " the disk at the last save.",
    )
    on_final_failure: Literal["succeed", "fail"] = Field(
        default="succeed",
        description="How a job ends when its last checkpoint could not be saved; `succeed` gives the"
        " reason final_checkpoint_not_saved.",
    )
    directory: KeptDirectory | None = optional(
        "Folder of the script's own checkpoints: committed when it changes, restored before every start."
    )
    resume_from: ResumeFrom | None = optional(
        "Checkpoint to begin from: latest (of the newest job of this name), j-12, j-12@1200, j-12@best, an"
        " absolute path or a URL. A job with a checkpoint of its own resumes from that."
    )
    continues: Whether = Field(
        default=False,
        alias="continue",
        description="The job begins with what `directory` holds; otherwise such a job is refused. It"
        " also continues from checkpoints of a job of another database that had the same number.",
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
            wait_s=self.wait,
            on_final_failure=self.on_final_failure,
            continues=self.continues,
            directory=self.directory,
        )
