"""Advice about the most expensive jobs, and about those that keep the most checkpoints."""

from __future__ import annotations

from phalanx.core.cost import advice as rules
from phalanx.core.cost.advice import Advice
from phalanx.core.cost.totals import usd_of
from phalanx.schemas.api.cost import AdviceView
from phalanx.services.ledger.accounts import dearest_jobs
from phalanx.services.platform import Platform
from phalanx.store.cost import rows
from phalanx.store.cost.rows import CostFilter
from phalanx.store.database import Tx

_JOBS = 1000
"""The most expensive jobs, and those with the most checkpoints, that are looked at."""


def cost_advice(
    platform: Platform, wanted: CostFilter, now: int, *, limit: int
) -> list[AdviceView]:
    """What could be saved, the largest savings first."""

    def work(tx: Tx) -> list[Advice]:
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        used = dearest_jobs(tx, wanted, [*waiting, *holding], now, _JOBS)
        found = [
            rule(int(job), one)
            for job, one in used.items()
            for rule in (rules.idle_advice, rules.wasted_advice)
        ]
        kept = rows.kept_checkpoints(tx, wanted, rules.MOST_CHECKPOINTS, _JOBS)
        found += [rules.checkpoint_advice(*one) for one in kept]
        return rules.ranked([one for one in found if one is not None])

    return [_view(one) for one in platform.store.view(work)[:limit]]


def _view(one: Advice) -> AdviceView:
    return AdviceView(
        rule=one.rule.value,
        job=one.job,
        evidence=one.evidence,
        action=one.action,
        slot_hours=one.slot_us / 3.6e9,
        usd=usd_of(one.nano_usd) if one.nano_usd else None,
        size_bytes=one.num_bytes,
    )
