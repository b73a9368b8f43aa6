"""What is wrong with a gang, in one line."""

from dataclasses import replace

import pytest

from phalanx.core.gang.preflight import RankFacts, problems, summary

pytestmark = pytest.mark.unit
VERSIONS = {"torch": "2.13.0", "NCCL": "2.28"}


def gang(nodes=2, per_node=2, devices=0):
    return [
        RankFacts(
            rank=node * per_node + local,
            world_size=nodes * per_node,
            local_rank=local,
            local_world_size=per_node,
            node_rank=node,
            host=f"n{node}",
            pid=9,
            versions=VERSIONS,
            devices=devices,
            device=f"GPU-{node}-{local}" if devices else "",
        )
        for node in range(nodes)
        for local in range(per_node)
    ]


def changed(at, **changes):
    facts = gang(devices=changes.pop("gpus", 0))
    facts[at] = replace(facts[at], **changes)
    return problems(facts)


def test_equal_ranks_fit():
    assert problems(gang()) == problems(gang(devices=2)) == problems(gang(1, 1)) == []


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            changed(3, versions={**VERSIONS, "torch": "2.12.0"}),
            "rank 3 (n1) has torch 2.12.0, the others 2.13.0",
        ),
        (changed(0, versions={"torch": "2.13.0"}), "rank 0 (n0) has NCCL none, the others 2.28"),
        (changed(1, world_size=8), "rank 1 (n0) has WORLD_SIZE 8, the others 4"),
        (changed(1, host="n7"), "node rank 0 is used by several hosts: n0, n7"),
        (changed(1, local_rank=0), "node rank 0 (n0) has local ranks 0, 0, not 0 to 1"),
        (changed(3, gpus=2, devices=0), "rank 3 (n1) sees 0 GPUs"),
        (changed(3, gpus=2, device="GPU-1-0"), "ranks 2, 3 (n1) use the same GPU GPU-1-0"),
    ],
)
def test_each_mistake_has_its_line(found, line):
    assert found and found[0].startswith(line)


def test_one_device_per_rank_is_what_containers_show():
    facts = [replace(one, devices=1) for one in gang(devices=2)]
    assert problems(facts) == []


def test_two_halves_that_differ_blame_the_half_without_rank_0():
    facts = [replace(one, versions={"torch": f"2.{one.node_rank}"}) for one in gang()]
    assert problems(facts) == ["ranks 2, 3 (n1) have torch 2.1, the others 2.0"]
    assert summary(["a", "b", "c"]) == "a (and 2 more)"
