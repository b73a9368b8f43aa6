"""Conversion of a rank's contract to environment variables and back.

The variable of a field is named where the field is defined (`gang.RankContract`,
`checkpointing.CheckpointPolicy`, `trial.TrialContract`), so a field cannot be written and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

from phalanx.core.contract.checkpointing import CheckpointPolicy, Variable
from phalanx.core.contract.gang import RankContract, as_path
from phalanx.core.contract.trial import TrialContract
from phalanx.errors import Problem

R = TypeVar("R", bound=RankContract[Any])
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
"""All of them have to be there for a rank to be launched."""
_OF_LAUNCHED = frozenset({*RENDEZVOUS, "LOCAL_RANK", "LOCAL_WORLD_SIZE"})


def _variables(kind: type[Any]) -> Iterator[tuple[Field[Any], Variable]]:
    for one in fields(kind):
        if "variable" in one.metadata:
            yield one, one.metadata["variable"]


def to_environment(rank: RankContract[Any]) -> dict[str, str]:
    """The variables of a rank; a value that is None or empty has none."""
    env: dict[str, str] = {}
    for contract in (rank, rank.checkpoint, rank.trial):
        for one, variable in _variables(type(contract)):
            value = getattr(contract, one.name)
            if value is not None and value != {}:
                env[variable.name] = variable.write(value)
    return env


def from_environment(
    env: Mapping[str, str], kind: type[R], path: Callable[[str], Any] = str
) -> tuple[R, list[Problem]]:
    """The contract of a rank, and every variable that makes no sense.

    `kind` is `RankContract` or a subclass; `path` makes a path of a variable's text. A variable that is
    absent or empty leaves its field at the default, and so does one with a problem.
    """
    problems: list[Problem] = []
    launched = all(env.get(name) for name in RENDEZVOUS)
    absent = frozenset() if launched else _OF_LAUNCHED
    found = _read(env, kind, absent, path, problems)
    if "node_rank" not in found:
        found |= _read({"NODE_RANK": env.get("GROUP_RANK", "")}, kind, frozenset(), path, problems)
    world_size = found.get("world_size", 1)
    found.setdefault("local_world_size", world_size)
    found.setdefault("reference_world", world_size)
    policy = CheckpointPolicy(**_read(env, CheckpointPolicy, frozenset(), path, problems))
    trial = TrialContract(**_read(env, TrialContract, frozenset(), path, problems))
    rank = kind(launched=launched, checkpoint=policy, trial=trial, **found)
    if not 0 <= rank.rank < rank.world_size:
        said = f"must be 0 to {rank.world_size - 1}"
        problems.append(Problem("RANK", said, env.get("RANK")))
    if rank.reference_world < 1:
        problems.append(Problem("PHALANX_REFERENCE_WORLD", "must be at least 1"))
    return rank, problems


def _read(
    env: Mapping[str, str],
    kind: type[Any],
    absent: frozenset[str],
    path: Callable[[str], Any],
    problems: list[Problem],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one, variable in _variables(kind):
        text = "" if variable.name in absent else env.get(variable.name, "")
        if not text:
            continue
        try:
            found[one.name] = (path if variable.read is as_path else variable.read)(text)
        except (ValueError, AttributeError, TypeError) as error:
            problems.append(Problem(variable.name, str(error), text))
    return found
