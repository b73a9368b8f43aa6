"""Training that talks rarely: Local SGD, DiLoCo, and a parameter server.

Ranks take optimizer steps on their own and exchange what has become of the weights every so many steps.
Nothing here reduces gradients; that is `strategies` and `compression`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.gang.meshes import Layout
from phalanx.core.training.guards import GuardPolicy
from phalanx.errors import Problem
from phalanx.train.numerics.local_sgd import server_ranks
from phalanx.train.numerics.local_sgd.independent_replicas import IndependentReplicas
from phalanx.train.numerics.local_sgd.outer_step import AllReducedOuterStep
from phalanx.train.numerics.local_sgd.rounds import LocalRounds, NoRounds, Rounds
from phalanx.train.numerics.local_sgd.worker import ServerRounds
from phalanx.train.parallel import layouts
from phalanx.train.parallel.strategies import Strategy

if TYPE_CHECKING:
    from phalanx.train.settings import RunOptions
    from phalanx.train.step.components import RunComponents


def conflicts(options: RunOptions, layout: Layout) -> list[Problem]:
    """What does not go together with ranks that train on their own."""
    if not options.sync.is_local:
        return []
    method, problems = options.sync.method, []
    if layout.dp != layout.world_size:
        problems.append(Problem("sync", "works between whole replicas: strategy ddp", method))
    if options.compression.method != "none":
        text = "compresses gradients, which sync does not send; use sync's quantize"
        problems.append(Problem("compression", text, options.compression.method))
    guarded = options.on_non_finite is not GuardPolicy.OFF or options.precision == "fp16"
    if method == "server" and options.sync.staleness and guarded:
        text = "asks all ranks in every step, which staleness is there to avoid"
        which = "precision" if options.precision == "fp16" else "on_non_finite"
        problems.append(Problem(which, text))
    if options.sync_batchnorm:
        text = "needs all ranks in every step, which sync does without"
        problems.append(Problem("sync_batchnorm", text, "true"))
    return problems


def strategy_for(components: RunComponents) -> Strategy:
    """How the ranks of a run with these components hold the model."""
    options = components.options
    if options.sync.is_local:
        return IndependentReplicas(options.sync.method)
    return layouts.strategy_for(components)


def rounds_for(components: RunComponents) -> Rounds:
    """What exchanges weights, in a run with these components."""
    sync = components.options.sync
    if not sync.is_local:
        return NoRounds()
    if sync.method == "server":
        servers = server_ranks.find_servers(sync, components.info)
        return ServerRounds(sync, servers, components.info.rank, components.report.write)
    return LocalRounds(
        sync, lambda at: AllReducedOuterStep(sync.outer, sync.quantize), components.report.write
    )
