"""The section `scaling` of a pool: what it accepts, and what it says where it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.core.cost.prices import NANO
from phalanx.errors import SpecInvalid
from phalanx.schemas.pools.pool_file import EXECUTORS, read_pools
from phalanx.schemas.pools.scaling import ScalingSection

pytestmark = pytest.mark.unit

NODE = {"slots": 8, "cpus": 90}


def problems(pool: dict[str, Any]) -> str:
    with pytest.raises(SpecInvalid) as caught:
        read_pools({"schema": 1, "pools": [{"name": "p", **pool}]}, EXECUTORS)
    return str(caught.value)


def test_the_policy_has_microseconds_and_exact_money() -> None:
    section = ScalingSection.model_validate(
        {
            "min": 1,
            "max": 4,
            "node": NODE,
            "cool_down": {"up": "1m"},
            "budget": {"per_hour": 0.1, "per_day": 20},
        }
    )
    policy = section.to_core()
    assert (policy.min_nodes, policy.max_nodes) == (1, 4)
    assert policy.cool_down_up_us == 60_000_000
    assert (policy.hourly_nano, policy.daily_nano) == (NANO // 10, 20 * NANO)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"min": 5, "max": 4, "node": NODE}, "min is 5, which is above max, 4"),
        ({"max": 4, "max_slots": 7, "node": NODE}, "less than the slots of one node"),
        ({"max": 4, "node": NODE, "budget": {}}, "give per_hour, per_day or both"),
        ({"max": 0, "node": NODE}, "max"),
        ({"max": 4}, "node"),
        ({"max": 4, "node": NODE, "mechanism": "placeholders"}, "mechanism"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(scaling: dict[str, Any], said: str) -> None:
    assert said in problems({"executor": "ray", "scaling": scaling})


def test_a_kubernetes_pool_says_what_its_slots_are() -> None:
    pool = {"executor": "kubernetes", "image": "x", "scaling": {"max": 4, "node": NODE}}
    assert "such as `slot: nvidia.com/gpu`" in problems(pool)


def test_the_machine_itself_cannot_grow() -> None:
    pool = {"nodes": [{"name": "n", "slots": 1}], "scaling": {"max": 4, "node": NODE}}
    assert "executor local cannot add nodes" in problems(pool)


def test_the_older_form_of_ray_pools_is_read() -> None:
    scale = {"max_nodes": 4, "slots": 1, "cpus": 2, "slot": "slot"}
    older = {"name": "r", "executor": "ray", "scale": scale}
    (pool,) = read_pools({"schema": 1, "pools": [older]}, EXECUTORS).clusters
    assert pool.slot == "slot"
    assert pool.scaling == ScalingSection.model_validate(
        {"max": 4, "node": {"slots": 1, "cpus": 2}}
    )
    both = {"executor": "ray", "scale": scale, "scaling": {"max": 4, "node": NODE}}
    assert "give scaling alone" in problems(both)
    assert "scale.max_nodes" in problems({"executor": "ray", "scale": {"slots": 1}})
