"""The environment of a rank: the launcher's variables, read once.

This is the only module of the library that reads environment variables. Outside a launcher none of
them exist, and the run has one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.checkpoint.encryption import EncryptionKey, keys_from
from phalanx.core.contract.checkpointing import SaveInterval
from phalanx.core.contract.environment import from_environment
from phalanx.core.contract.gang import RankContract
from phalanx.core.gang.networks import PREFIXES
from phalanx.core.training.checkpoints import Keep, compression, far_prefix
from phalanx.errors import Problem, SpecInvalid, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo(RankContract[Path]):
    """The contract of this rank, with paths as `Path` and the keys of its checkpoints.

    A path is None where the launcher gave none; the part that would use it is then replaced by one that
    does nothing.
    """

    keys: tuple[EncryptionKey, ...] = ()


def keys(variable: str | None, file: Path | None) -> tuple[EncryptionKey, ...]:
    """Return the keys in an environment variable or a file. Raises UserError."""
    try:
        return keys_from(os.environ, variable, file)  # noqa: TID251
    except ValueError as error:
        raise UserError(f"the key: {error}") from None


def network_variables() -> dict[str, str]:
    """Return the environment variables that NCCL, gloo and torch's collectives read."""
    return {key: value for key, value in os.environ.items() if key.startswith(PREFIXES)}  # noqa: TID251


def store_variables() -> Mapping[str, str]:
    """Return the environment, in which the client of an object store finds its address and credentials."""
    return os.environ  # noqa: TID251


def error_file() -> Path | None:
    """Return the path of this process's error file; None without a launcher."""
    text = os.environ.get("TORCHELASTIC_ERROR_FILE", "")  # noqa: TID251
    return Path(text) if text else None


def launcher_serves_store() -> bool:
    """Return whether the launcher itself serves torch's store at the rendezvous port, as torchrun does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # noqa: TID251


def ask_for_huge_pages() -> None:
    """Have torch put large CPU tensors on huge pages, unless this process's environment says otherwise.

    torch reads the setting once, when it creates the first tensor.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # noqa: TID251


def tunes_malloc() -> bool:
    """Return whether the environment already tunes how the C library releases memory."""
    env = os.environ  # noqa: TID251
    return "MALLOC_MMAP_THRESHOLD_" in env or "glibc.malloc" in env.get("GLIBC_TUNABLES", "")


def read(environ: Mapping[str, str] | None = None) -> RankInfo:
    """Return the contract of this rank. Raises SpecInvalid, which names each invalid variable."""
    env = os.environ if environ is None else environ  # noqa: TID251
    info, problems = from_environment(env, RankInfo, Path)
    variable, file = info.checkpoint.key_env, info.checkpoint.key_file
    try:
        found = keys_from(env, variable, None if file is None else Path(file))
    except ValueError as error:
        name = f"PHALANX_CHECKPOINT_KEY_{'ENV' if variable else 'FILE'}"
        problems.append(Problem(name, str(error)))
    if problems:
        raise SpecInvalid(problems, "the launcher sets these variables")
    return replace(info, keys=found)


# The `checkpoint_…` arguments of `phalanx.train.init` that are fields of the policy, and how they are read.
_POLICY: Mapping[str, Callable[[Any], Any]] = {
    "every": SaveInterval.parse,
    "keep": Keep.from_json,
    "compress": compression,
    "store": far_prefix,
    "key_env": str,
    "key_file": str,
}


def with_checkpoints(
    info: RankInfo, given: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> RankInfo:
    """The script's `checkpoint_…` arguments laid over `info`, where the launcher names no folder.

    Raises SpecInvalid naming each argument that makes no sense.
    """
    given = {key: value for key, value in given.items() if value is not None}
    if info.checkpoint_dir is not None or not given:
        return info
    env = os.environ if environ is None else environ  # noqa: TID251
    folder = given.get("dir")
    found: dict[str, Any] = {}
    key_env, key_file = given.get("key_env"), given.get("key_file")
    own_keys: tuple[EncryptionKey, ...] = info.keys
    problems: list[Problem] = []
    for key, value in given.items():
        try:
            if key != "dir":
                found[key] = _POLICY[key](value)
            if key in ("key_env", "key_file"):
                own_keys = keys_from(env, key_env, None if key_file is None else Path(key_file))
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(Problem(f"checkpoint_{key}", str(error), str(value)))
    if folder is None and given.keys() - {"every"}:
        said = "is required with other checkpoint_ arguments"
        problems.append(Problem("checkpoint_dir", said))
    if key_env is not None and key_file is not None:
        problems.append(Problem("checkpoint_key_env", "give this or checkpoint_key_file, not both"))
    if problems:
        raise SpecInvalid(problems, "these are arguments of phalanx.train.init")
    return replace(
        info,
        checkpoint_dir=None if folder is None else Path(folder),
        checkpoint=replace(info.checkpoint, **found),
        keys=own_keys,
    )
