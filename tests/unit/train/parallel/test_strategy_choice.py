"""The strategy of each layout, without processes."""

from __future__ import annotations

import pytest
from torch import nn

from phalanx.core.gang import meshes
from phalanx.core.training.estimates import DeviceSet, LayoutChoice
from phalanx.train import settings
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.gang.report import NoReport
from phalanx.train.parallel import strategy_choice
from phalanx.train.parallel.grid import GridStrategy
from phalanx.train.parallel.strategies import (
    IndependentReplicas,
    ReplicaStrategy,
    ShardStrategy,
    SingleRank,
)
from phalanx.train.parallel.strategy_choice import AutoStrategy, strategy_for


def strategy(world_size: int, **given: object) -> object:
    options = settings.parse(given)
    layout = meshes.layout(options.strategy, world_size)
    info = RankInfo(world_size=world_size, local_world_size=world_size)
    return strategy_for(
        options,
        layout,
        info,
        channel=LocalChannel(),
        report=NoReport(),
        on_choice=lambda name: None,
    )


@pytest.mark.parametrize(
    ("world_size", "wish", "kind"),
    [
        (1, "fsdp", SingleRank),
        (4, "ddp", ReplicaStrategy),
        (4, "fsdp", ShardStrategy),
        (4, {"fsdp": 2, "tp": 2}, GridStrategy),
        (4, {"fsdp": 2, "dp": 2}, GridStrategy),
        (1, "auto", SingleRank),
        (4, "auto", AutoStrategy),
    ],
)
def test_each_layout_has_its_strategy(world_size: int, wish: object, kind: type) -> None:
    assert type(strategy(world_size, strategy=wish)) is kind


def test_auto_with_compressed_gradients_means_replicas() -> None:
    assert type(strategy(4, strategy="auto", compression="bf16")) is ReplicaStrategy


def test_local_sgd_trains_independent_replicas_under_its_own_name() -> None:
    found = strategy(4, sync="diloco")
    assert type(found) is IndependentReplicas
    assert found.name == "diloco"
    assert not found.reduces([])


def test_local_sgd_excludes_what_asks_all_ranks_in_every_step() -> None:
    options = settings.parse({"sync": "local_sgd", "compression": "bf16", "sync_batchnorm": True})
    found = settings.sync_conflicts(options, meshes.layout("fsdp", 4))
    assert [one.path for one in found] == ["sync", "compression", "sync_batchnorm"]
    alone = settings.parse({"sync": "local_sgd"})
    assert settings.sync_conflicts(alone, meshes.layout("ddp", 4)) == []


class UnequalChannel(LocalChannel):
    """Rank 0 of a gang with so many ranks on each rank's node."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = [size for size in sizes for _ in range(size)]

    def gather(self, mine: bytes) -> list[bytes]:
        """See `LocalChannel`."""
        return [str(size).encode() for size in self.sizes]


@pytest.mark.parametrize(
    ("sizes", "nodes", "slots"),
    [((2, 4, 4), 5, 2), ((4, 2, 2), 4, 2), ((3, 4), 7, 1), ((4,), 1, 4)],
)
def test_auto_takes_unequal_nodes_for_more_of_a_size_that_divides_all(
    sizes: tuple[int, ...], nodes: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def pick(model: nn.Module, world: DeviceSet) -> LayoutChoice:
        seen.append((world.nodes, world.slots_per_node))
        return chosen(model, world)

    chosen = strategy_choice.pick
    monkeypatch.setattr(strategy_choice, "pick", pick)
    channel = UnequalChannel(*sizes)
    options, world_size = settings.parse({"strategy": "auto"}), sum(sizes)
    made = strategy_for(
        options,
        meshes.layout("auto", world_size),
        RankInfo(world_size=world_size, local_world_size=sizes[0]),
        channel=channel,
        report=NoReport(),
        on_choice=lambda name: None,
    )
    assert isinstance(made, AutoStrategy)
    made._decide(nn.Linear(2, 2))
    assert seen == [(nodes, slots)]
