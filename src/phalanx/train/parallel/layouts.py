"""From a layout of the ranks to the strategy that makes it true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.gang.meshes import AUTO, Layout
from phalanx.train.parallel.auto_strategy import AutoStrategy
from phalanx.train.parallel.grid import GridStrategy
from phalanx.train.parallel.strategies import ReplicaStrategy, ShardStrategy, SingleRank, Strategy

if TYPE_CHECKING:
    from phalanx.train.step.components import Options, Parts


def strategy_for(parts: Parts) -> Strategy:
    """What a run begins with: `auto` becomes another one at the first model."""
    info, options = parts.info, parts.options

    def make(layout: Layout) -> Strategy:
        return chosen(layout, info.rank, options)

    compresses = options.tuning.compression.method != "none"
    if options.strategy != AUTO or info.world_size == 1 or compresses:
        return make(parts.layout)
    made = AutoStrategy(info, parts.connection.channel, parts.report, make)

    def told(name: str) -> None:
        parts.saver.share_as(name)

    made.on_choice = told
    return made


def chosen(layout: Layout, rank: int, options: Options) -> Strategy:
    """The strategy of a layout, for this rank; one rank alone needs none."""
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

    tuning = options.tuning
    pipeline = PipelineOptions(
        schedule=tuning.pipeline_schedule,
        micro_batches=tuning.micro_batches,
        split=tuning.pipeline_split,
        precision=tuning.precision,
    )
    return PipelineStrategy(layout, rank, options.tp_plan, options.fsdp, pipeline)
