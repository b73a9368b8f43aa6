"""Text about the roles of a gang."""

from __future__ import annotations

import pytest

from phalanx.cli.terminal.roles import role_line
from phalanx.schemas.api.jobs import RoleView

pytestmark = pytest.mark.unit


def role(**more: object) -> RoleView:
    values = {"num_nodes": 2, "slots_per_node": 4, "num_ranks": 8, "first_rank": 8}
    values |= {"world": "worker", "world_size": 8, **more}
    return RoleView(name="worker", **values)


def test_ranks_count_in_the_gang() -> None:
    assert role_line(role()) == "worker: 2 × 4 slots, ranks 8-15"
    assert role_line(role(num_ranks=1)).endswith("rank 8")


def test_a_role_in_the_world_of_another_names_it() -> None:
    said = role_line(role(first_rank=2, world="master", world_size=10))
    assert said == "worker: 2 × 4 slots, ranks 2-9 of the 10 of master"


def test_phases_of_all_nodes_are_summed_up() -> None:
    assert role_line(role(phases=["running", "running"])).endswith("; running")
    assert role_line(role(phases=["running", "ready"])).endswith("; 1 running, 1 ready")


def test_a_role_that_may_fail_is_marked() -> None:
    assert role_line(role(required=False)).endswith("(not required)")
