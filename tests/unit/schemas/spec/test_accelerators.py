"""Slots in all: `resources.accelerators`, `-n`, and `communication`."""

import pytest

from phalanx.cli.client.run_spec import RunFlags, _merge
from phalanx.core.gang.placement import GangShape
from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.support import check_supported

pytestmark = pytest.mark.unit


def spec(**more):
    return validate_spec({"run": "true", **more})


def problems(**more):
    return [str(one) for one in check_supported(spec(**more))]


def test_slots_in_all_may_be_split_evenly():
    policy = spec(resources={"accelerators": 16, "slots_per_rank": 2}).to_policy()
    assert policy.shape == GangShape(1, 16, 8)
    assert policy.splits == (GangShape(2, 8, 4), GangShape(4, 4, 2), GangShape(8, 2, 1))


def test_a_shape_that_is_given_stays():
    assert spec(resources={"slots_per_node": 16}).to_policy().splits == ()


def test_the_resolved_spec_can_be_read_again():
    body = resolved(spec(resources={"accelerators": 16}))
    assert validate_spec(body).to_policy() == spec(resources={"accelerators": 16}).to_policy()


@pytest.mark.parametrize("other", [{"nodes": 2}, {"slots_per_node": 8}])
def test_a_shape_beside_slots_in_all_is_refused(other):
    with pytest.raises(SpecInvalid, match="is chosen with the placement"):
        spec(resources={"accelerators": 16, **other})


def test_a_framework_with_a_launcher_on_each_node_may_be_split():
    policy = spec(framework="mpi", resources={"accelerators": 4}).to_policy()
    assert policy.splits == (GangShape(2, 2, 1), GangShape(4, 1, 1))


def test_the_first_of_several_roles_may_be_split_and_no_other():
    roles = {"server": {"run": "true", "resources": {"slots_per_node": 0}}}
    policy = spec(roles=roles, resources={"accelerators": 4}).to_policy()
    assert policy.splits == (GangShape(2, 2, 2), GangShape(4, 1, 1))
    assert problems(roles=roles, resources={"accelerators": 4}) == []
    roles["server"]["resources"] = {"accelerators": 2}
    (found,) = problems(roles=roles)
    assert "roles.server.resources.accelerators: supported for the first role only" in found


def test_isolated_devices_reach_the_ranks():
    (role,) = spec(resources={"isolate_devices": True}).to_contract().roles
    assert role.isolate_devices
    assert not spec().to_contract().roles[0].isolate_devices
    (found,) = problems(framework="mpi", resources={"isolate_devices": True})
    assert "resources.isolate_devices: is not possible with mpi" in found


def test_communication_reaches_the_planner():
    assert spec(communication="intensive").to_demand().intensive
    assert not spec().to_demand().intensive
    with pytest.raises(SpecInvalid):
        spec(communication="some")


def test_keys_of_training_that_jax_does_not_have_are_refused():
    more = {"training": {"scale_lr": "linear", "warmup_steps": 5, "clip": 1.0}}
    (found,) = problems(framework="jax", **more)
    assert found.startswith("training.clip: has no effect with jax, which has network, scale_lr")
    assert problems(framework="torch", **more) == []


def test_scale_lr_is_a_flag_of_run():
    found = _merge({"training": {"clip": 1.0}}, RunFlags(scale_lr="sqrt"))
    assert found["training"] == {"clip": 1.0, "scale_lr": "sqrt"}


class TestRanksOfRun:
    def test_ranks_without_nodes_are_ranks_in_all(self):
        assert _merge({}, RunFlags(ranks_per_node=16))["resources"] == {"accelerators": 16}
        two = {"resources": {"slots_per_rank": 2, "slots_per_node": 4}}
        assert _merge(two, RunFlags(ranks_per_node=3))["resources"] == {
            "slots_per_rank": 2,
            "accelerators": 6,
        }

    def test_ranks_with_nodes_are_ranks_on_each_node(self):
        found = _merge({}, RunFlags(ranks_per_node=8, nodes=2))["resources"]
        assert found == {"nodes": 2, "slots_per_node": 8}

    @pytest.mark.parametrize("name", ["mpi", "ray"])
    def test_launchers_on_each_node_may_be_split_too(self, name):
        flags = RunFlags(ranks_per_node=4, framework=name)
        assert _merge({}, flags)["resources"] == {"accelerators": 4}
