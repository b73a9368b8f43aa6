"""Local SGD, DiLoCo and parameter servers: ranks train on their own and exchange weights now and then.

Read `rounds` first (when weights are exchanged, what a checkpoint holds), then `outer_step` and `exchange`
(the exchange by all-reduce), `worker`, `server` and `wire` (by parameter servers), and `server_ranks`
(which ranks are servers). Nothing here reduces gradients: `compression` and `train.parallel` do.
"""

from __future__ import annotations

from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.numerics.local_sgd import server_ranks
from phalanx.train.numerics.local_sgd.outer_step import AllReducedOuterStep
from phalanx.train.numerics.local_sgd.rounds import LocalRounds, Rounds
from phalanx.train.numerics.local_sgd.worker import ServerRounds
from phalanx.train.settings import SyncSettings


def rounds_for(sync: SyncSettings, info: RankInfo, report: Report) -> Rounds:
    """Return the exchange of weights for these settings. Connects to the parameter servers."""
    if not sync.is_local:
        return Rounds()
    if sync.method == "server":
        servers = server_ranks.find_servers(sync, info)
        return ServerRounds(sync, servers, info.rank, report.write)
    return LocalRounds(
        sync, lambda at: AllReducedOuterStep(sync.outer, sync.quantize), report.write
    )
