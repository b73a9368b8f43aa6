"""The strategy of a layout of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.gang.meshes import AUTO, Layout
from phalanx.train.parallel.auto_strategy import AutoStrategy
from phalanx.train.parallel.grid import GridStrategy
from phalanx.train.parallel.strategies import ReplicaStrategy, ShardStrategy, SingleRank, Strategy

if TYPE_CHECKING:
    from phalanx.train.settings import RunOptions
    from phalanx.train.step.components import RunComponents


def strategy_for(components: RunComponents) -> Strategy:
    """Return the strategy of a run; `auto` is resolved at the first model."""
    info, options = components.info, components.options

    def make(layout: Layout) -> Strategy:
        return chosen(layout, info.rank, options)

    compresses = options.compression.method != "none"
    if options.strategy != AUTO or info.world_size == 1 or compresses:
        return make(components.layout)
    made = AutoStrategy(info, components.connection.channel, components.report, make)

    def told(name: str) -> None:
        components.saver.share_as(name)

    made.on_choice = told
    return made


def chosen(layout: Layout, rank: int, options: RunOptions) -> Strategy:
    """Return the strategy of a layout, for this rank."""
    if layout.world_size == 1:
        return SingleRank()
    if layout.dp == layout.world_size:
        # Also what `auto` takes where gradients are compressed.
        return ReplicaStrategy()
    if layout.fsdp == layout.world_size:
        return ShardStrategy(options.fsdp)
    if layout.pp == 1:
        return GridStrategy(layout, options.tp_plan, options.fsdp)
    # torch's pipelines bring its compiler along, which takes most of a second.
    from phalanx.train.parallel.pipeline import PipelineOptions, PipelineStrategy

    pipeline = PipelineOptions(
        schedule=options.pipeline_schedule,
        micro_batches=options.micro_batches,
        split=options.pipeline_split,
        precision=options.precision,
    )
    return PipelineStrategy(layout, rank, options.tp_plan, options.fsdp, pipeline)
