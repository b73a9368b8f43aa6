"""The checkpoint policy of a job: when checkpoints are saved, where, and which are kept.

A new option is a field of `CheckpointPolicy` here, with its environment variable beside it, the field of
the spec in `schemas/spec/checkpointing.py`, and the code that uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.core.training.checkpoints import FIRST_SAVE_S, Keep, compression
from phalanx.kit.units import parse_duration

DEFAULT_EVERY_S = 600.0
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
                raise ValueError(f"{text!r}: at least 1")
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


def as_variable(
    name: str, read: Callable[[str], Any] = str, write: Callable[[Any], str] = str
) -> dict[str, Variable]:
    """The metadata of a dataclass field that ranks find in the environment variable `name`."""
    return {"variable": Variable(name, read, write)}


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text == "1"


def _write_keep(keep: Keep) -> str:
    body = {name: value for name, value in asdict(keep).items() if value is not None}
    return json.dumps(body, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """How a role's ranks save. Fields without an environment variable are read by the supervisor."""

    every: SaveInterval = field(
        default=SaveInterval(DEFAULT_EVERY_S),
        metadata=as_variable("PHALANX_CHECKPOINT_EVERY", SaveInterval.parse),
    )
    keep: Keep = field(
        default=Keep(),
        metadata=as_variable(
            "PHALANX_CHECKPOINT_KEEP", lambda text: Keep.from_json(json.loads(text)), _write_keep
        ),
    )
    #: training goes on while a checkpoint is written from a copy of the state
    background: bool = field(
        default=True,
        metadata=as_variable("PHALANX_CHECKPOINT_ASYNC", _switch, lambda on: str(int(on))),
    )
    #: one of `core.training.checkpoints.COMPRESSIONS`
    compress: str = field(
        default="none", metadata=as_variable("PHALANX_CHECKPOINT_COMPRESS", compression)
    )
    #: prefix in an object store that receives copies
    store: str | None = field(default=None, metadata=as_variable("PHALANX_CHECKPOINT_STORE"))
    #: variable of the ranks that holds the encryption key
    key_env: str | None = field(default=None, metadata=as_variable("PHALANX_CHECKPOINT_KEY_ENV"))
    #: file on the ranks' nodes that holds the encryption key
    key_file: str | None = field(default=None, metadata=as_variable("PHALANX_CHECKPOINT_KEY_FILE"))
    #: a folder of the script's own that the supervisor commits, relative to its working directory
    directory: str | None = None
