"""What a job will probably use, from the durations that the scheduler has learned, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from phalanx.core.cost.budgets import BudgetScope, CostBudget, limit_text, percent_of
from phalanx.core.cost.price_table import Held, PriceTable
from phalanx.core.cost.prices import offer_of, priced
from phalanx.core.cost.totals import usd_of
from phalanx.core.gang.placement import Node
from phalanx.core.jobs.model import JobPolicy
from phalanx.core.scheduling.model.durations import KindKey, size_class
from phalanx.errors import ExecutorUnavailable
from phalanx.schemas.api.cost import EstimatePointView, EstimateView
from phalanx.schemas.spec.job import JobSpec
from phalanx.services.caches.planner_input import kind_of
from phalanx.services.ledger.budgets import spent_of
from phalanx.services.lifecycle.admission import facts_of
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.cost import budgets, prices
from phalanx.store.database import Tx
from phalanx.store.jobs import JobFacts, StoredJob

_US = 1_000_000
_QUANTILES = (0.5, 0.9)


def estimate_of_spec(platform: Platform, spec: JobSpec, owner: str, now: int) -> EstimateView:
    """The slot time and the money of a job before it is submitted."""
    own = None if spec.budget is None else spec.budget.to_core(0)
    return estimate(platform, spec.to_policy(), replace(facts_of(spec), owner=owner), own, now)


def estimate_of_job(platform: Platform, num: int, now: int) -> EstimateView:
    """The same for a job that was submitted just now. Raises NotFound."""

    def work(tx: Tx) -> tuple[StoredJob, CostBudget | None]:
        return jobs.load(tx, num), budgets.find(tx, BudgetScope.JOB, str(num))

    stored, own = platform.store.view(work)
    return estimate(platform, stored.job.policy, stored.facts, own, now)


def estimate(
    platform: Platform, policy: JobPolicy, facts: JobFacts, own: CostBudget | None, now: int
) -> EstimateView:
    """The slot time and the money of a job; without money while the nodes are not known."""
    slots, limit_s = policy.num_slots, policy.max_duration_s
    cache = platform.scheduler_cache
    platform.store.view(lambda tx: cache.host.note_finished(cache.rows.newly_finished(tx)))
    history = cache.host.history
    key = KindKey(facts.project, kind_of(facts.owner, facts.name), size_class(slots))
    table = platform.store.view(prices.table)
    try:
        price = _dearest(policy, facts, platform.cluster(), table, now)
    except ExecutorUnavailable:
        price = 0
    found = [history.quantile_slot_s(key, quantile) for quantile in _QUANTILES]
    if limit_s is not None:
        found = [limit_s * slots if one is None else min(one, limit_s * slots) for one in found]
    points = [None if one is None else _point(one, slots, price) for one in found]
    ended = sum(history.counts.get(key, ()))
    basis = "nothing is known of such jobs yet"
    if found[0] is not None:
        basis = (
            f"{ended:.0f} ended jobs of this owner and name" if ended else "ended jobs of any name"
        )
        if limit_s is not None and found[0] == limit_s * slots:
            basis = "max_duration"
    return EstimateView(
        p50=points[0],
        p90=points[1],
        basis=basis,
        usd_per_slot_hour=usd_of(price) if price else None,
        warnings=[*_own_warning(own, points[1]), *_warnings(platform, facts, points[1], now)],
    )


def _point(slot_s: float, slots: int, price: int) -> EstimatePointView:
    nano = priced(round(slot_s * _US), price)
    return EstimatePointView(
        slot_hours=slot_s / 3600,
        duration_s=slot_s / max(slots, 1),
        usd=usd_of(nano) if price else None,
    )


def _dearest(
    policy: JobPolicy, facts: JobFacts, nodes: Iterable[Node], table: PriceTable, now: int
) -> int:
    """The highest price of a slot that the job may get, with its CPU cores; 0 where none has a price."""
    pools, wanted = set(facts.pools), facts.demand.slot_type
    cpus, slots = facts.cpus_per_node * policy.shape.nodes, max(policy.shape.num_slots, 1)
    kinds = {
        Held(one.pool, (offer_of(one, slots),), cpus)
        for one in nodes
        if (not pools or one.pool in pools) and (not wanted or one.slot_type == wanted)
    }
    return max((table.nano_per_hour(one, now) // slots for one in kinds), default=0)


def _own_warning(own: CostBudget | None, p90: EstimatePointView | None) -> list[str]:
    """What the budget in the job's spec says to its p90."""
    if own is None or not _exceeded(own, 0, p90):
        return []
    limit = limit_text(own)
    return [f"the job may exceed its own budget of {limit}, and pause at {own.pause_percent} %"]


def _warnings(
    platform: Platform, facts: JobFacts, p90: EstimatePointView | None, now: int
) -> list[str]:
    """What budgets of the project and the user say to a job that uses its p90."""

    def work(tx: Tx) -> list[str]:
        known = budgets.budgets_now(tx)
        if not known:
            return []
        _, holding = platform.scheduler_cache.rows.jobs(tx)
        table = prices.table(tx)
        mine = [one for one in known if budgets.hold_reason([one], 0, facts.project, facts.owner)]
        return [
            said
            for one in mine
            if (
                said := _exceeded(one, percent_of(one, spent_of(tx, one, holding, table, now)), p90)
            )
        ]

    return platform.store.view(work)


def _exceeded(one: CostBudget, used: int, p90: EstimatePointView | None) -> str:
    """What to say of a budget; empty where the job fits in."""
    if used >= 100:
        return f"{one.label} has used {used} % of {limit_text(one)}: the job will not start"
    more = 0.0
    if p90 is not None and one.slot_us:
        more = 100 * p90.slot_hours * 3600 * _US / one.slot_us
    if p90 is not None and p90.usd is not None and one.nano_usd:
        more = max(more, 100 * float(p90.usd) * 1e9 / one.nano_usd)
    if used + more <= 100:
        return ""
    return f"the job may exceed the budget of {one.label}: {used} % of {limit_text(one)} are used"
