"""One step of the roll-ups: fold the metrics that have arrived, job by job, for a short while.

Each job is a transaction of its own: reports of other jobs get in between. A job with a damaged chunk is
left out and named in the log, once for each process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial

from phalanx.errors import StoreCorrupt
from phalanx.services.platform import Platform
from phalanx.store.metrics import arrivals

JOBS = 20
"""Jobs in one step."""
ROUNDS = 10
"""Transactions of one job in one step."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class FoldingProgress:
    """Jobs that cannot be folded."""

    damaged: set[int] = field(default_factory=set)


def metrics_step(platform: Platform, progress: FoldingProgress, now: int) -> bool:
    """Fold what is due; returns whether more may be left."""
    nums = platform.store.view(lambda tx: arrivals.due(tx, now, limit=JOBS + len(progress.damaged)))
    mine = [num for num in nums if num not in progress.damaged][:JOBS]
    return any([_fold(platform, progress, num) for num in mine]) or len(mine) == JOBS


def _fold(platform: Platform, progress: FoldingProgress, num: int) -> bool:
    """Fold one job; returns whether some of it is left."""
    from phalanx.store.metrics import folding

    try:
        for _ in range(ROUNDS):
            if not platform.store.transact(partial(folding.fold, job=num)):
                return False
    except StoreCorrupt as error:
        progress.damaged.add(num)
        _LOG.error(
            "metrics of job %d are not rolled up: %s",
            num,
            error,
            extra={"event": "metrics_not_rolled_up", "job": num},
        )
        return False
    return True
