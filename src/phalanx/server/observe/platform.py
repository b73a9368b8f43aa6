"""The families of the platform: jobs and queue, pools, quotas, scaling, cost, retention."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from phalanx.core.cost.anomaly_life import LIVE, CostAnomaly
from phalanx.core.cost.ledger import Account
from phalanx.core.cost.prices import HOUR_US, NANO
from phalanx.core.cost.totals import Totals
from phalanx.core.jobs.model import JobState
from phalanx.core.metrics import platform as limits
from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.core.quotas.usage import QuotaUse
from phalanx.core.retention.holds import RemovalCause
from phalanx.core.retention.policy import DataKind
from phalanx.core.scaling.model import PoolScaling, ScalingPolicy
from phalanx.schemas.api.cost import BudgetView
from phalanx.schemas.api.pools import NodeView, PoolView
from phalanx.server.observe.sheet import Sheet
from phalanx.services.logs.sending import lag_s
from phalanx.services.platform import Platform
from phalanx.services.probes.pool_probes import first_step_at, newest_probes
from phalanx.services.queries.feed import Present
from phalanx.store.engines.totals import TotalKey, bucket_key
from phalanx.store.logs.senders import StoredSender

_US = 1e-6
_BY_CLASS = frozenset(
    one.name for one in CATALOGUE.values() if one.total and one.label_names[:1] == ("class",)
)
_NODE_STATES = ("closed", "drained", "open", "quarantined")


def with_classes(
    totals: Mapping[TotalKey, float], classes: Collection[str]
) -> dict[TotalKey, float]:
    """The totals with 0 for each job class that has none yet, and without classes that were dropped."""
    born: dict[TotalKey, float] = {}
    for name in _BY_CLASS:
        family = CATALOGUE[name]
        # A histogram is there with the first of its buckets.
        key = bucket_key(name, 0) if family.bounds else name
        others = list(itertools.product(*(label.values for label in family.labels[1:])))
        born |= {(key, (one, *rest)): 0.0 for one in classes for rest in others}
    kept = {
        key: value
        for key, value in totals.items()
        if key[0].partition("|")[0] not in _BY_CLASS or key[1][0] in classes
    }
    return born | kept


def put_jobs(sheet: Sheet, there: Present, now: int) -> None:
    """Add the jobs by state and the queue."""
    for state in JobState:
        sheet.put("phalanx_jobs", there.by_state.get(state.value, 0), state.value)
    sheet.put("phalanx_queue_length", len(there.queued))
    sheet.put("phalanx_guaranteed_waiting_jobs", there.guaranteed_waiting)
    asked = sum(one.job.policy.num_slots for one in there.queued)
    sheet.put("phalanx_queue_slots", asked)
    oldest = min((one.job.submitted_at for one in there.queued), default=now)
    sheet.put("phalanx_queue_oldest_seconds", max(0, now - oldest) * _US)
    attempts = (one.stored.job.attempt for one in there.live)
    sheet.put("phalanx_held_slots", sum(one.num_slots for one in attempts if one is not None))


def put_pools(sheet: Sheet, pools: Sequence[PoolView], nodes: Sequence[NodeView]) -> None:
    """Add the pools and their nodes; those with the first names, where there are many."""
    of_pool: dict[str, list[NodeView]] = {}
    for node in nodes:
        of_pool.setdefault(node.pool, []).append(node)
    shown = sorted(pools, key=lambda one: one.name)[: limits.MAX_POOLS]
    for one in shown:
        here = of_pool.get(one.name, [])
        free = [node.num_free for node in here if node.state == "open"]
        sheet.put("phalanx_pool_slots", one.num_slots, one.name)
        sheet.put("phalanx_pool_slots_free", one.num_free, one.name)
        sheet.put("phalanx_pool_largest_free_slots", max(free, default=0), one.name)
        for state in _NODE_STATES:
            count = sum(node.state == state for node in here)
            sheet.put("phalanx_pool_nodes", count, one.name, state)
        sheet.put("phalanx_pool_waiting_jobs", one.num_waiting, one.name)
        broken = sum(node.num_closed_slots + node.num_unhealthy for node in here)
        sheet.put("phalanx_pool_unhealthy_devices", broken, one.name)
        memory = sum(node.memory_bytes for node in here)
        sheet.put("phalanx_pool_memory_bytes", memory, one.name)
    sheet.put("phalanx_pools_not_shown", len(pools) - len(shown))


def put_scaling(sheet: Sheet, found: Mapping[str, tuple[ScalingPolicy, PoolScaling]]) -> None:
    """Add nodes, open requests, cost and decisions of the pools that their clusters grow."""
    for name, (policy, state) in sorted(found.items())[: limits.MAX_POOLS]:
        requested = sum(one.gang.num_new for one in state.claims)
        counts = {"present": len(state.nodes), "requested": requested}
        counts |= {"released": len(state.released), "draining": len(state.leaving)}
        for kind, count in counts.items():
            sheet.put("phalanx_scaling_nodes", count, name, kind)
        sheet.put("phalanx_scaling_max_nodes", policy.max_nodes, name)
        sheet.put("phalanx_scaling_gangs_without_nodes", len(state.failed), name)
        sheet.put("phalanx_scaling_spent_today_usd", state.spent_nano / NANO, name)
        decided = dict.fromkeys(limits.DECISIONS, 0) | dict(state.counts)
        for kind, count in sorted(decided.items()):
            sheet.put("phalanx_scaling_decisions", count, name, kind)


def put_probes(sheet: Sheet, platform: Platform, now: int) -> None:
    """Add the probes of the pools, those with the first names where there are many."""
    for pool, (newest, ended) in sorted(newest_probes(platform).items())[: limits.MAX_POOLS]:
        open_s = max(0, now - newest.submitted_at) * _US if newest.ended_at is None else 0.0
        sheet.put("phalanx_probe_open_seconds", open_s, pool)
        if ended is None:
            continue
        sheet.put("phalanx_probe_success", float(bool(ended.ok)), pool)
        until = {
            "start": ended.started_at,
            "first_step": first_step_at(platform, ended),
            "end": ended.ended_at,
        }
        for name, at in until.items():
            if (seconds := ended.seconds_until(at)) is not None:
                sheet.put("phalanx_probe_seconds", seconds, pool, name)


def put_quotas(sheet: Sheet, uses: Sequence[QuotaUse]) -> None:
    """Add use and limit of the quotas, those that are used most where there are many."""
    for one in sorted(uses, key=lambda one: (-one.percent, one.key))[: limits.MAX_QUOTAS]:
        place = [one.key.project, one.key.user, one.key.slot_type, one.key.unit.value]
        sheet.put("phalanx_quota_used", one.used, *place)
        sheet.put("phalanx_quota_limit", one.most, *place)
    sheet.put("phalanx_quotas_not_shown", max(0, len(uses) - limits.MAX_QUOTAS))


def put_budgets(sheet: Sheet, found: Sequence[BudgetView]) -> None:
    """Add the used share of the budgets, those that are used most where there are many."""
    ordered = sorted(found, key=lambda one: (-one.used_percent, one.scope, one.name))
    for one in ordered[: limits.MAX_BUDGETS]:
        sheet.put("phalanx_budget_used_ratio", one.used_percent / 100, one.scope, one.name)
    sheet.put("phalanx_budgets_not_shown", max(0, len(found) - limits.MAX_BUDGETS))


def put_cost(sheet: Sheet, by_project: Mapping[str, Totals], found: Sequence[CostAnomaly]) -> None:
    """Add slot time and money by project, and the anomalies that are not closed, the largest first."""
    # Projects stay in the order of their names: a series that comes and goes has no rate.
    shown = sorted(by_project)[: limits.MAX_PROJECTS]
    for project in shown:
        for account in sorted(Account):
            seconds = by_project[project].slot_us.get(account, 0) * _US
            sheet.put("phalanx_slot_seconds", seconds, project, account.value)
        sheet.put("phalanx_cost_usd", by_project[project].nano_usd / NANO, project)
    sheet.put("phalanx_cost_projects_not_shown", len(by_project) - len(shown))
    for state in LIVE:
        count = sum(one.state is state for one in found)
        sheet.put("phalanx_cost_anomalies", count, state.value)
    for one in sorted(found, key=lambda one: -one.extra)[: limits.MAX_ANOMALIES]:
        place = [one.key.scope.value, one.key.name, one.state.value]
        if one.in_money:
            sheet.put("phalanx_cost_anomaly_extra_usd", one.extra / NANO, *place)
        else:
            sheet.put("phalanx_cost_anomaly_extra_slot_hours", one.extra / HOUR_US, *place)


def put_removals(
    sheet: Sheet, totals: Mapping[tuple[str, str], tuple[int, int]], num_open: int
) -> None:
    """Add what requests and retention have deleted, since the database was made."""
    known = {(kind.value, cause.value) for kind in DataKind for cause in RemovalCause}
    for place in sorted({*known, *totals}):
        count, num_bytes = totals.get(place, (0, 0))
        sheet.put("phalanx_removed_items", count, *place)
        sheet.put("phalanx_removed_bytes", num_bytes, *place)
    sheet.put("phalanx_deletions_open", num_open)


def put_output(sheet: Sheet, num_bytes: int, quota: int | None) -> None:
    """Add how much output is stored, and how much may be."""
    sheet.put("phalanx_log_stored_bytes", num_bytes)
    if quota is not None:
        sheet.put("phalanx_log_quota_bytes", quota)


def put_senders(sheet: Sheet, found: Mapping[str, StoredSender | None], now: int) -> None:
    """Add how far the senders of output are; None: one has not begun."""
    for name, stored in sorted(found.items()):
        one = stored or StoredSender(name, 0)
        sheet.put("phalanx_log_sender_lines", one.sent_lines, name)
        sheet.put("phalanx_log_sender_refused_lines", one.refused_lines, name)
        sheet.put("phalanx_log_sender_lag_seconds", lag_s(one, now), name)
        sheet.put("phalanx_log_sender_failures", one.tries, name)
