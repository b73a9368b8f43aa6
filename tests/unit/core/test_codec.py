"""Plain data and back: whatever a job can be, whatever an older record lacks."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.codec import decode, earlier_names, encode
from phalanx.core.gang.placement import Demand, GangShape, NodeShare, Placement
from phalanx.core.jobs import events as e
from phalanx.core.jobs.budgets import Budget
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import Attempt, Job, JobPolicy
from phalanx.core.reasons import Reason
from phalanx.core.scheduling import Reservation
from phalanx.store.events import KINDS

pytestmark = pytest.mark.unit


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Leaf:
    num: int
    weight: float = 1.5


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    colour: Colour = Colour.RED
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    words: tuple[str, ...] = ()
    by_name: dict[str, Leaf] = field(default_factory=dict)
    inner: Tree | None = None


WHOLE = Tree(
    "t", Colour.RED, Leaf(1), (Leaf(2), Leaf(3, 2.0)), ("b", 2), ("x",), {"k": Leaf(4)}, Tree("u")
)


def test_there_and_back() -> None:
    assert decode(Tree, json.loads(json.dumps(encode(WHOLE)))) == WHOLE


def test_a_job_in_mid_life() -> None:
    job = create(e.Submitted(1, JobPolicy(GangShape(2, 4, 4))), 5)
    shares = tuple(NodeShare(f"n{i}", "h", (0, 1, 2, 3)) for i in range(2))
    job = decide(job, e.AttemptPlaced(1, Placement("p", shares)), 7).job
    assert decode(Job, json.loads(json.dumps(encode(job)))) == job


def test_old_records_lack_fields_and_new_ones_have_more() -> None:
    assert decode(Tree, {"name": "t", "unknown": 1}) == Tree("t")


def test_whole_numbers_are_read_as_floats_where_those_are_meant() -> None:
    found = decode(Leaf, {"num": 1, "weight": 2})
    assert isinstance(found.weight, float)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="blue"):
        decode(Tree, {"name": "t", "colour": "blue"})
    with pytest.raises(TypeError):
        decode(Tree, {})


def test_what_is_written_once_reads_back_as_each_value_was() -> None:
    """Equal values share what they are written as; others do not."""
    one, same, other = (JobPolicy(GangShape(nodes, 2, 2), grace_s=5.0) for nodes in (1, 1, 3))
    assert encode(one) is encode(same)
    assert decode(JobPolicy, encode(one)) == one
    assert decode(JobPolicy, encode(other)) == other != one


ROOT = Path(__file__).resolve().parents[3]


def kinds_in(hint: Any, found: set[type]) -> set[type]:
    """Every class that values of this type may hold."""
    for inner in typing.get_args(hint):
        kinds_in(inner, found)
    if isinstance(hint, type) and hint not in found and hint.__module__.startswith("phalanx."):
        found.add(hint)
        if dataclasses.is_dataclass(hint):
            for each in typing.get_type_hints(hint).values():
                kinds_in(each, found)
    return found


def compiled(but: Iterable[str]) -> set[Path]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["phalanx"]["compiled"]
    files = {path for pattern in table["files"] for path in ROOT.glob(pattern)}
    return files - {ROOT / name for name in but}


def test_what_is_read_again_is_never_compiled() -> None:
    """A compiled class does not say any more what its fields are made of, so it cannot be decoded."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["phalanx"]["compiled"]
    found: set[type] = set()
    for kind in (Job, Demand, Placement, Reservation, *KINDS.values()):
        kinds_in(kind, found)
    assert {GangShape, Attempt, Reason} < found
    files = {ROOT / "src" / f"{kind.__module__.replace('.', '/')}.py" for kind in found}
    assert all(path.exists() for path in files)
    assert not files & compiled(table["but"])
    assert files & compiled(())


def test_a_class_that_does_not_say_what_its_fields_are_made_of_is_refused() -> None:
    @dataclass
    class Erased:
        leaves: tuple  # type: ignore[type-arg]

    with pytest.raises(TypeError, match=r"Erased\.leaves does not say"):
        decode(Erased, {"leaves": [{"num": 1}]})


@earlier_names(policy="terms", limit="most")
@dataclass(frozen=True)
class _Renamed:
    policy: Budget
    limit: int = 1


def test_fields_are_read_under_their_earlier_names_and_written_under_the_present_one() -> None:
    value = _Renamed(Budget(count=2), 5)
    plain = encode(value)
    assert set(plain) == {"policy", "limit"}
    old = {"terms": plain["policy"], "most": 5, "unknown": None}
    assert decode(_Renamed, old) == value
    assert decode(_Renamed, {**old, "limit": 7}) == _Renamed(Budget(count=2), 7)


def test_a_job_row_of_the_first_release_is_read() -> None:
    snapshot = encode(create(e.Submitted(3, JobPolicy(GangShape(1, 2, 2))), 10))
    policy = dict(snapshot.pop("policy"))
    recovery = dict(policy.pop("recovery"))
    del recovery["max_no_progress"]
    old = {
        **snapshot,
        "terms": {**policy, "policy": {**recovery, "max_barren": 9}},
        "progress": {"high_water_step": 4, "barren": 2},
    }
    job = decode(Job, old)
    assert job.policy.recovery.max_no_progress == 9
    assert (job.progress.high_water_step, job.progress.no_progress) == (4, 2)


def test_an_earlier_name_belongs_to_a_field_and_is_not_one() -> None:
    with pytest.raises(TypeError, match="has no field missing"):
        earlier_names(missing="old")(Budget)
    with pytest.raises(TypeError, match="still has a field count"):
        earlier_names(per_s="count")(Budget)
