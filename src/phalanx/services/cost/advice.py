"""Advice about the most expensive jobs, and about those that keep the most checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phalanx.core.cost import advice as rules
from phalanx.core.cost.advice import Advice, SpotOffer, Utilisation
from phalanx.core.cost.ledger import Account
from phalanx.core.cost.price_table import PriceKey, PriceKind
from phalanx.core.cost.prices import MONTH_US
from phalanx.core.cost.totals import Totals, usd_of
from phalanx.core.gang.placement import Node
from phalanx.errors import ExecutorUnavailable
from phalanx.schemas.api.cost import AdviceView
from phalanx.services.ledger.accounts import dearest_jobs
from phalanx.services.platform import Platform
from phalanx.store.cost import measured, prices, rows
from phalanx.store.cost.rows import CostFilter
from phalanx.store.database import Tx
from phalanx.store.storage import objects

_JOBS = 1000
"""The most expensive jobs, and those with the most checkpoints, that are looked at."""
_MEASURED = 200
"""The most expensive jobs of which metrics are read."""
_BUSY, _WAIT = "gpu_utilization_percent", "data_wait_fraction"
_EVIDENCE_US = 10 * rules.LEAST_SLOT_US
"""Slot time in spot pools from which their preemptions count for other jobs."""
_PPM = 1_000_000


def cost_advice(
    platform: Platform, wanted: CostFilter, now: int, *, limit: int
) -> list[AdviceView]:
    """What could be saved, the largest savings first."""
    try:
        nodes = platform.cluster()
    except ExecutorUnavailable:
        nodes = ()

    def work(tx: Tx) -> list[Advice]:
        waiting, holding = platform.scheduler_cache.rows.jobs(tx)
        used = dearest_jobs(tx, wanted, [*waiting, *holding], now, _JOBS)
        dear = sorted(used.items(), key=lambda item: (-item[1].nano_usd, -item[1].held_us))
        by_job = {int(job): one for job, one in dear[:_JOBS]}
        found = [
            rule(job, one)
            for job, one in by_job.items()
            for rule in (rules.idle_advice, rules.wasted_advice)
        ]
        found += _utilisation(tx, by_job)
        found += _spot(tx, by_job, nodes, now)
        kept = rows.kept_checkpoints(tx, wanted, rules.MOST_CHECKPOINTS, _JOBS)
        month = _month_of_checkpoints(tx, [job for job, *_ in kept], now)
        found += [rules.checkpoint_advice(*one, month.get(one[0], 0)) for one in kept]
        return rules.ranked([one for one in found if one is not None])

    return [_view(one) for one in platform.store.view(work)[:limit]]


def _month_of_checkpoints(tx: Tx, jobs: list[int], now: int) -> dict[int, int]:
    """What the checkpoints of some jobs cost in 30 days at the prices of now, in nano US dollars."""
    table = prices.table(tx)
    return {
        job: sum(
            table.storage_nano(store, size * MONTH_US, now) for store, size in by_store.items()
        )
        for job, by_store in objects.checkpoints_kept(tx, jobs).items()
    }


def _utilisation(tx: Tx, used: Mapping[int, Totals]) -> Iterator[Advice | None]:
    """Advice from samples of the metrics of the most expensive jobs that report any."""
    large = [job for job, one in used.items() if one.held_us >= rules.LEAST_SLOT_US][:_MEASURED]
    for job, names in measured.jobs_with(tx, large, (_BUSY, _WAIT)).items():
        busy = measured.mean_of_samples(tx, job, _BUSY) if _BUSY in names else None
        wait = measured.mean_of_samples(tx, job, _WAIT) if busy is None else None
        yield rules.utilisation_advice(job, used[job], Utilisation(busy, wait))


def _spot(
    tx: Tx, used: Mapping[int, Totals], nodes: tuple[Node, ...], now: int
) -> Iterator[Advice | None]:
    """Advice for jobs that can resume, where the price table has a lower price of spot slots."""
    large = [job for job, one in used.items() if one.held_us >= rules.LEAST_SLOT_US]
    table = prices.table(tx)
    types: dict[str, set[str]] = {}
    for node in nodes:
        types.setdefault(node.pool, set()).add(node.slot_type)
    spot_pools = {node.pool for node in nodes if node.hazard_per_hour > 0}
    held, again = measured.interrupted_in(tx, spot_pools)
    for job, placed in measured.placed_jobs(tx, large).items():
        one = used[job]
        known = types.get(placed.pool, set())
        kind = placed.slot_type or (next(iter(known)) if len(known) == 1 else "")
        price, spot_price = (
            table.find(PriceKey(PriceKind.SLOT, placed.pool, kind, spot), now) or 0
            for spot in (False, True)
        )
        if held < _EVIDENCE_US:
            mine = one.slot_us.get(Account.LOST_TO_PREEMPTION, 0)
            mine += one.slot_us.get(Account.REDONE, 0)
            rework = _PPM * mine // one.held_us
        else:
            rework = _PPM * again // held
        if placed.resumes:
            yield rules.spot_advice(job, one, SpotOffer(price, spot_price, rework))


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
