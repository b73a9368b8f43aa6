"""The checkpoint policy of a job: when checkpoints are saved, where, and which are kept.

A new option is a field of `CheckpointPolicy` here, with its environment variable beside it, the field of
the spec in `schemas/spec/checkpointing.py`, and the code that uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field
from typing import Any

from phalanx.core.training.checkpoints import FIRST_SAVE_S, Keep, compression
from phalanx.core.training.resumption import DEFAULT_WAIT_S
from phalanx.kit.units import parse_duration

DEFAULT_EVERY_S = 600.0
# What follows a last save that failed for as long as `wait_s`: the job succeeds and says so, or it fails.
FINAL_FAILURES = ("succeed", "fail")
_COUNTED = re.compile(r"(\d+)\s*(steps?|epochs?)")


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """How often to save: after `seconds`, every `steps` steps or every `epochs` passes.

    With `auto`, `seconds` is the time to the first save; `core.training.checkpoints` computes the next.
    """

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None
    auto: bool = False

    @classmethod
    def parse(cls, text: str) -> SaveInterval:
        """From `10m`, `500 steps`, `1 epoch` or `auto`; empty: the default. Raises ValueError."""
        text = text.strip()
        if text == "auto":
            return cls(seconds=FIRST_SAVE_S, auto=True)
        if not text:
            return cls(seconds=DEFAULT_EVERY_S)
        if counted := _COUNTED.fullmatch(text):
            count = int(counted[1])
            if count < 1:
                raise ValueError(f"{text!r}: must be at least 1")
            return cls(steps=count) if counted[2].startswith("step") else cls(epochs=count)
        return cls(seconds=parse_duration(text))

    def __str__(self) -> str:
        """The text that `parse` reads."""
        if self.auto:
            return "auto"
        if self.steps is not None:
            return f"{self.steps} steps"
        if self.epochs is not None:
            return f"{self.epochs} epochs"
        return "" if self.seconds is None else f"{self.seconds:.15g}s"


@dataclass(frozen=True, slots=True)
class Variable:
    """The environment variable of a field: its name, and the field's value from text and to text.

    `read` raises ValueError, AttributeError or TypeError for text that makes no sense.
    """

    name: str
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = str


def variable(
    name: str,
    default: Any = MISSING,
    read: Callable[[str], Any] = str,
    write: Callable[[Any], str] = str,
    **options: Any,
) -> Any:
    """A dataclass field that ranks find in the environment variable `name`; the rest as in `field`."""
    return field(default=default, metadata={"variable": Variable(name, read, write)}, **options)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text == "1"


def final_failure(text: str) -> str:
    """One of FINAL_FAILURES. Raises ValueError."""
    if text not in FINAL_FAILURES:
        raise ValueError(f"must be one of {', '.join(FINAL_FAILURES)}")
    return text


def write_seconds(value: float) -> str:
    """A duration as a variable holds it."""
    return f"{value:.15g}"


def _write_keep(keep: Keep) -> str:
    body = {name: value for name, value in asdict(keep).items() if value is not None}
    return json.dumps(body, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """How a role's ranks save. Fields without an environment variable are read by the supervisor."""

    #: how often to save: a duration such as `10m`, `500 steps`, `1 epoch` or `auto`
    every: SaveInterval = variable(
        "PHALANX_CHECKPOINT_EVERY", SaveInterval(DEFAULT_EVERY_S), SaveInterval.parse
    )
    #: which checkpoints to keep: JSON with `last`, `best`, `every` (steps) and `age_s` (seconds)
    keep: Keep = variable(
        "PHALANX_CHECKPOINT_KEEP",
        Keep(),
        lambda text: Keep.from_json(json.loads(text)),
        _write_keep,
    )
    #: 1: training goes on while a checkpoint is written from a copy of the state; 0: training waits
    background: bool = variable("PHALANX_CHECKPOINT_ASYNC", True, _switch, lambda on: str(int(on)))
    #: compression of checkpoint files: `none` or `zstd`
    compress: str = variable("PHALANX_CHECKPOINT_COMPRESS", "none", compression)
    #: URL of a prefix in an object store that receives copies of all checkpoints
    store: str | None = variable("PHALANX_CHECKPOINT_STORE", None)
    #: name of the ranks' variable that holds the encryption key
    key_env: str | None = variable("PHALANX_CHECKPOINT_KEY_ENV", None)
    #: path of the file on the ranks' nodes that holds the encryption key
    key_file: str | None = variable("PHALANX_CHECKPOINT_KEY_FILE", None)
    #: how long to wait for checkpoints that are missing or unreadable at a start, and for the disk at the
    #: last save
    wait_s: float = variable(
        "PHALANX_CHECKPOINT_WAIT", DEFAULT_WAIT_S, parse_duration, write_seconds
    )
    #: when the last checkpoint cannot be saved within that time: `succeed` (and say so) or `fail`
    on_final_failure: str = variable(
        "PHALANX_CHECKPOINT_ON_FINAL_FAILURE", FINAL_FAILURES[0], final_failure
    )
    #: 1: the job may continue from checkpoints of another job that are in its folder
    continues: bool = variable(
        "PHALANX_CHECKPOINT_CONTINUE", False, _switch, lambda on: str(int(on))
    )
    #: a folder of the script's own that the supervisor commits, relative to its working directory
    directory: str | None = None
