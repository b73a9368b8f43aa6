"""What a supervisor reads of its assignment before the models are imported."""

import json
from dataclasses import replace

import pytest

from phalanx.core.contract.gang import RolePlace, WorldShape
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.boot import _num_ranks
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("role", [False, True])
@pytest.mark.parametrize("ranks", [(2, 2, 2), (2, 1, 1), (1, 2, 1)])
def test_the_ranks_of_a_node_are_those_of_the_model(ranks, role):
    """Threads of a rank follow from them: other threads than those of a warm process, other rounding."""
    for node, count in enumerate(ranks):
        gang = replace(gang_contract(1, num_nodes=3), world=WorldShape.of(ranks))
        place = (
            RolePlace(
                name="worker", node_rank=node, first_rank=0, gang_size=sum(ranks), lead_dir="/l"
            )
            if role
            else None
        )
        made = Assignment(
            gang=gang,
            node_rank=node + 5 * role,
            role=place,
            node_dir="/n",
            workdir="/",
            cwd="/",
            command=["true"],
            env={},
            cpus=4,
            server_url="http://127.0.0.1:1",
            token="t",
        )
        told = json.loads(made.model_dump_json())
        assert _num_ranks(told) == made.num_ranks == count
