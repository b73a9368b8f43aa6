"""What a rank finds in its environment, read once.

This is the only module of the library that reads environment variables. Outside a launcher none of
them exist, and the answer is a run of one process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phalanx.checkpoint.encryption import EncryptionKey, keys_from
from phalanx.core.gang import meshes
from phalanx.core.gang.networks import PREFIXES
from phalanx.core.training.cadence import FIRST_S
from phalanx.core.training.checkpoints import COMPRESSIONS, Keep, compression, far_prefix
from phalanx.errors import Problem, SpecInvalid, UserError
from phalanx.kit.units import parse_duration

DEFAULT_EVERY_S = 600.0
DEFAULT_GRACE_S = 30.0
_COUNTED = re.compile(r"(\d+)\s*(steps?|epochs?)")


@dataclass(frozen=True, slots=True)
class Every:
    """How often to save: after `seconds`, every `steps` steps or every `epochs` passes.

    With `auto`, `seconds` is the time to the first save; `core.cadence` says when the next ones are due.
    """

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None
    auto: bool = False

    @classmethod
    def parse(cls, text: str) -> Every:
        """From `10m`, `500 steps`, `1 epoch` or `auto`. Raises ValueError."""
        text = text.strip()
        if text == "auto":
            return cls(seconds=FIRST_S, auto=True)
        if not text:
            return cls(seconds=DEFAULT_EVERY_S)
        if counted := _COUNTED.fullmatch(text):
            count = int(counted[1])
            if count < 1:
                raise ValueError(f"{text!r}: at least 1")
            return cls(steps=count) if counted[2].startswith("step") else cls(epochs=count)
        return cls(seconds=parse_duration(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One rank's place in its gang, and where its files are.

    `launched` says whether a launcher (ours or torchrun) gave a rendezvous. Paths are None where the
    launcher gave none: the part that would use it is then replaced by its null twin.
    """

    launched: bool = False
    master: tuple[str, int] = ("", 0)
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    reference_world: int = 1
    job: str | None = None
    job_name: str | None = None
    project: str | None = None
    attempt: int = 1
    generation: int = 0
    checkpoint_dir: Path | None = None
    report_file: Path | None = None
    control_file: Path | None = None
    error_file: Path | None = None
    every: Every = field(default_factory=lambda: Every(seconds=DEFAULT_EVERY_S))
    keep: Keep = field(default_factory=Keep)
    save_async: bool = True
    compress: str = "none"
    checkpoint_store: str | None = None
    keys: tuple[EncryptionKey, ...] = ()
    strategy: str | Mapping[str, int] | None = None
    grace_s: float = DEFAULT_GRACE_S
    restart_cause: str | None = None
    restarts: int = 0
    job_started_at: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def one_node(self) -> bool:
        """Whether all ranks share this machine."""
        return self.world_size == self.local_world_size


class _Reader:
    """Reads typed values; collects every problem, to name them all at once."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.problems: list[Problem] = []

    def number(self, key: str, default: int) -> int:
        text = self.env.get(key, "")
        try:
            return int(text) if text else default
        except ValueError:
            self.problems.append(Problem(key, "must be a whole number", text))
            return default

    def switch(self, key: str, default: str) -> bool:
        text = self.env.get(key, "") or default
        if text not in ("0", "1"):
            self.problems.append(Problem(key, "must be 0 or 1", text))
        return text == "1"

    def one_of(self, key: str, names: tuple[str, ...]) -> str | None:
        text = self.env.get(key, "")
        if text and text not in names:
            self.problems.append(Problem(key, f"must be one of {', '.join(names)}", text))
        return text or None

    def strategy(self, key: str) -> str | Mapping[str, int] | None:
        text = self.env.get(key, "")
        try:
            return meshes.parse_sizes(text) if text else None
        except ValueError as error:
            self.problems.append(Problem(key, str(error), text))
            return None

    def path(self, key: str) -> Path | None:
        text = self.env.get(key, "")
        return Path(text) if text else None

    def every(self, key: str) -> Every:
        text = self.env.get(key, "")
        try:
            return Every.parse(text)
        except ValueError as error:
            self.problems.append(Problem(key, str(error), text))
            return Every.parse("")

    def keep(self, key: str) -> Keep:
        text = self.env.get(key, "")
        try:
            return Keep.from_json(json.loads(text)) if text else Keep()
        except (ValueError, AttributeError, TypeError) as error:
            self.problems.append(Problem(key, str(error), text))
            return Keep()

    def keys(self) -> tuple[EncryptionKey, ...]:
        names = ("PHALANX_CHECKPOINT_KEY_ENV", "PHALANX_CHECKPOINT_KEY_FILE")
        variable, file = self.env.get(names[0]) or None, self.path(names[1])
        try:
            return keys_from(self.env, variable, file)
        except ValueError as error:
            self.problems.append(Problem(names[0] if variable else names[1], str(error)))
            return ()

    def mapping(self, key: str) -> Mapping[str, Any]:
        text = self.env.get(key, "")
        try:
            return dict(json.loads(text)) if text else {}
        except (ValueError, TypeError) as error:
            self.problems.append(Problem(key, f"must be a JSON object: {error}", text))
            return {}

    def seconds(self, key: str, default: float) -> float:
        text = self.env.get(key, "")
        try:
            return parse_duration(text) if text else default
        except ValueError as error:
            self.problems.append(Problem(key, str(error), text))
            return default


def keys(variable: str | None, file: Path | None) -> tuple[EncryptionKey, ...]:
    """The keys in a variable of this process, or in a file. Raises UserError."""
    try:
        return keys_from(os.environ, variable, file)  # noqa: TID251
    except ValueError as error:
        raise UserError(f"the key: {error}") from None


def network_variables() -> dict[str, str]:
    """What this process's environment says to NCCL, gloo and torch's collectives."""
    return {key: value for key, value in os.environ.items() if key.startswith(PREFIXES)}  # noqa: TID251


def error_file() -> Path | None:
    """Where this process is to leave why it failed, whatever else its environment says."""
    text = os.environ.get("TORCHELASTIC_ERROR_FILE", "")  # noqa: TID251
    return Path(text) if text else None


def ask_for_huge_pages() -> None:
    """Have torch put large CPU tensors on huge pages, unless this process's environment says otherwise.

    It looks when it makes the first tensor, and never again.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # noqa: TID251


def tunes_malloc() -> bool:
    """Whether this process's environment says when the C library gives memory back."""
    env = os.environ  # noqa: TID251
    return "MALLOC_MMAP_THRESHOLD_" in env or "glibc.malloc" in env.get("GLIBC_TUNABLES", "")


def read(environ: Mapping[str, str] | None = None) -> RankInfo:
    """The rank's place and files. Raises SpecInvalid naming each variable that makes no sense."""
    env = os.environ if environ is None else environ  # noqa: TID251
    get = _Reader(env)
    launched = all(env.get(key) for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    world_size = get.number("WORLD_SIZE", 1) if launched else 1
    info = RankInfo(
        launched=launched,
        master=(env.get("MASTER_ADDR", ""), get.number("MASTER_PORT", 0)),
        rank=get.number("RANK", 0) if launched else 0,
        world_size=world_size,
        local_rank=get.number("LOCAL_RANK", 0) if launched else 0,
        local_world_size=get.number("LOCAL_WORLD_SIZE", world_size) if launched else 1,
        node_rank=get.number("NODE_RANK", get.number("GROUP_RANK", 0)),
        reference_world=get.number("PHALANX_REFERENCE_WORLD", world_size),
        job=env.get("PHALANX_JOB") or None,
        job_name=env.get("PHALANX_JOB_NAME") or None,
        project=env.get("PHALANX_PROJECT") or None,
        attempt=get.number("PHALANX_ATTEMPT", 1),
        generation=get.number("PHALANX_GENERATION", 0),
        checkpoint_dir=get.path("PHALANX_CHECKPOINT_DIR"),
        report_file=get.path("PHALANX_REPORT_FILE"),
        control_file=get.path("PHALANX_CONTROL_FILE"),
        error_file=get.path("TORCHELASTIC_ERROR_FILE"),
        every=get.every("PHALANX_CHECKPOINT_EVERY"),
        keep=get.keep("PHALANX_CHECKPOINT_KEEP"),
        strategy=get.strategy("PHALANX_STRATEGY"),
        save_async=get.switch("PHALANX_CHECKPOINT_ASYNC", default="1"),
        compress=get.one_of("PHALANX_CHECKPOINT_COMPRESS", COMPRESSIONS) or "none",
        checkpoint_store=env.get("PHALANX_CHECKPOINT_STORE") or None,
        keys=get.keys(),
        grace_s=get.seconds("PHALANX_GRACE_S", DEFAULT_GRACE_S),
        restart_cause=env.get("PHALANX_RESTART_CAUSE") or None,
        restarts=get.number("TORCHELASTIC_RESTART_COUNT", 0),
        job_started_at=get.number("PHALANX_JOB_STARTED_AT", 0) or None,
        training=get.mapping("PHALANX_TRAINING"),
    )
    if not 0 <= info.rank < info.world_size:
        get.problems.append(Problem("RANK", f"must be 0 to {info.world_size - 1}", env.get("RANK")))
    if info.reference_world < 1:
        get.problems.append(Problem("PHALANX_REFERENCE_WORLD", "must be at least 1"))
    if get.problems:
        raise SpecInvalid(get.problems, "the launcher sets these variables")
    return info


def with_checkpoints(
    info: RankInfo, given: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> RankInfo:
    """What the launcher says stands; the script's `checkpoint_…` arguments count where it names no folder.

    Raises SpecInvalid naming each argument that makes no sense.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if info.checkpoint_dir is not None or not given:
        return info
    env = os.environ if environ is None else environ  # noqa: TID251
    read_as: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "dir": ("checkpoint_dir", Path),
        "every": ("every", Every.parse),
        "keep": ("keep", Keep.from_json),
        "compress": ("compress", compression),
        "store": ("checkpoint_store", far_prefix),
        "key_env": ("keys", lambda name: keys_from(env, name, None)),
        "key_file": ("keys", lambda file: keys_from(env, None, Path(file))),
    }
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in given.items():
        name, reader = read_as[key]
        try:
            found[name] = reader(value)
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(Problem(f"checkpoint_{key}", str(error), str(value)))
    if "dir" not in given and given.keys() - {"every"}:
        said = "is needed: copies and keys are for what is saved there"
        problems.append(Problem("checkpoint_dir", said))
    if {"key_env", "key_file"} <= given.keys():
        problems.append(Problem("checkpoint_key_env", "give either it or checkpoint_key_file"))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return replace(info, **found)
