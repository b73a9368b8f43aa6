"""Anomalies of cost: the step that judges days, the listing, and their acknowledgement."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from phalanx.core.cost.anomalies import (
    WINDOW_DAYS,
    AnomalyKey,
    AnomalyLimits,
    AnomalyScope,
    Finding,
    Use,
    find_anomalies,
)
from phalanx.core.cost.anomaly_life import (
    LIVE,
    AnomalyCause,
    AnomalyState,
    CostAnomaly,
    acknowledged,
    cause_of,
    judged_day,
)
from phalanx.core.cost.ledger import DAY_US
from phalanx.core.cost.prices import HOUR_US
from phalanx.core.cost.totals import usd_of
from phalanx.errors import UserError
from phalanx.kit.text import job_label
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.money.anomalies import AnomalyCauseView, AnomalyView
from phalanx.services.ledger.settle import live_rows
from phalanx.services.lifecycle.commit import Note, commit_events
from phalanx.services.platform import Platform
from phalanx.store.cost import anomalies
from phalanx.store.cost.rows import CostRow
from phalanx.store.database import Tx
from phalanx.store.tenancy import audit

_LOG = logging.getLogger(__name__)
_ACTOR = "cost anomalies"
_CATCH_UP_DAYS = 7
"""Whole days that are judged after a stop of the control plane, at most."""
_MOST_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class AnomalyConfig:
    """What is judged, and from which extra amounts on."""

    limits: AnomalyLimits
    labels: tuple[str, ...] = ()  # names of labels of which each value is a group


@dataclass(frozen=True, slots=True)
class _JudgedDay:
    """The findings of a day with their causes."""

    day: int
    is_whole: bool
    found: list[tuple[Finding, AnomalyCause]]


def anomalies_step(platform: Platform, config: AnomalyConfig, now: int) -> None:
    """Judge the whole days since the last step, and the present one as far as it has gone."""

    def look(tx: Tx) -> list[_JudgedDay]:
        today = now // DAY_US
        first = min(max(anomalies.judged_to(tx) + 1, today - _CATCH_UP_DAYS), today)
        live = _live(platform, tx, now)
        uses = _uses(tx, config.labels, live, first)
        return [
            _JudgedDay(day, day < today, list(_with_causes(tx, uses, config, live, day)))
            for day in range(first, today + 1)
        ]

    judged = platform.store.view(look)
    if platform.store.view(lambda tx: _changes(tx, judged, now)):
        platform.store.transact(lambda tx: _apply(platform, tx, judged, now))


def _live(platform: Platform, tx: Tx, now: int) -> list[tuple[CostRow, Mapping[str, str]]]:
    """What live jobs have used since their last rows, with the labels of the job."""
    holding = platform.scheduler_cache.rows.holding(tx)
    labels = {one.job.num: one.facts.labels for one in holding}
    found = live_rows(tx, holding, now)
    return [(row, labels[num]) for num, rows in found.items() for row in rows]


def _uses(
    tx: Tx,
    labels: Sequence[str],
    live: Sequence[tuple[CostRow, Mapping[str, str]]],
    first: int,
) -> Mapping[AnomalyKey, Mapping[int, Use]]:
    since = first - WINDOW_DAYS
    found = anomalies.uses_by_day(tx, labels, since)
    for row, mine in live:
        day = row.row.from_at // DAY_US
        if day >= since:
            held = row.row.total if row.row.generation is not None else 0
            for key in _keys(row, mine, labels):
                anomalies.add_use(found, key, day, Use(row.nano_usd, held))
    return found


def _keys(row: CostRow, mine: Mapping[str, str], labels: Sequence[str]) -> Iterator[AnomalyKey]:
    yield AnomalyKey(AnomalyScope.PROJECT, row.owner.project)
    yield AnomalyKey(AnomalyScope.USER, row.owner.owner)
    yield AnomalyKey(AnomalyScope.POOL, row.pool)
    for name in labels:
        if name in mine:
            yield anomalies.label_key(name, mine[name])


def _with_causes(
    tx: Tx,
    uses: Mapping[AnomalyKey, Mapping[int, Use]],
    config: AnomalyConfig,
    live: Sequence[tuple[CostRow, Mapping[str, str]]],
    day: int,
) -> Iterator[tuple[Finding, AnomalyCause]]:
    found = find_anomalies(uses, day, config.limits)
    for finding in sorted(found, key=lambda one: -one.extra)[:_MOST_FINDINGS]:
        present = anomalies.breakdown(tx, finding.key, day, day)
        week = anomalies.breakdown(tx, finding.key, day - 7, day - 1)
        for row, mine in live:
            at = row.row.from_at // DAY_US
            if finding.key not in _keys(row, mine, config.labels):
                continue
            amounts = dict(row.row.amounts)
            if at == day:
                present = anomalies.broken_down(
                    present, row.owner.job, row.pool, amounts, row.nano_usd
                )
            elif day - 7 <= at < day:
                week = anomalies.broken_down(week, row.owner.job, row.pool, amounts, row.nano_usd)
        yield finding, cause_of(present, week, in_money=finding.in_money)


def _judged(tx: Tx, judged: Sequence[_JudgedDay], now: int) -> list[CostAnomaly]:
    """The anomalies after some days; those that they have closed are among them."""
    after, closed = anomalies.live_anomalies(tx), list[CostAnomaly]()
    for one in judged:
        found = sorted(one.found, key=lambda pair: pair[0].key.rank)
        after = judged_day(after, found, one.day, now, is_whole=one.is_whole)
        closed += [other for other in after if other.state not in LIVE]
        after = [other for other in after if other.state in LIVE]
    return [*closed, *after]


def _changes(tx: Tx, judged: Sequence[_JudgedDay], now: int) -> bool:
    """Whether the judged days change anything that is stored."""
    whole = max((one.day for one in judged if one.is_whole), default=0)
    known = set(anomalies.live_anomalies(tx))
    return whole > anomalies.judged_to(tx) or set(_judged(tx, judged, now)) != known


def _apply(platform: Platform, tx: Tx, judged: Sequence[_JudgedDay], now: int) -> None:
    known = set(anomalies.live_anomalies(tx))
    for one in _judged(tx, judged, now):
        if one in known:
            continue
        stored = anomalies.put_anomaly(tx, one)
        if one.num == 0:
            _LOG.warning("%s", message_of(stored))
            _tell_job(platform, tx, stored, now)
    whole = max((one.day for one in judged if one.is_whole), default=0)
    anomalies.set_judged(tx, whole)


def _tell_job(platform: Platform, tx: Tx, one: CostAnomaly, now: int) -> None:
    """Append a warning to the events of the job that has grown most, while it holds slots."""
    for stored in platform.scheduler_cache.rows.holding(tx):
        attempt = stored.job.attempt
        if stored.job.num == one.cause.job and attempt is not None:
            data = {"message": message_of(one), "anomaly": one.num}
            note = Note("warned", attempt.num, attempt.generation, data)
            commit_events(tx, stored.job.num, [note], now, _ACTOR)


def message_of(one: CostAnomaly) -> str:
    """An anomaly in a sentence, with what has changed most."""
    extra, actual, expected = (
        _amount(amount, in_money=one.in_money) for amount in (one.extra, one.actual, one.expected)
    )
    cause = one.cause
    parts = []
    if cause.job is not None:
        parts.append(f"{job_label(cause.job)} +{_amount(cause.job_extra, in_money=one.in_money)}")
    if cause.pool:
        parts.append(f"pool {cause.pool} +{_amount(cause.pool_extra, in_money=one.in_money)}")
    if cause.account is not None:
        words = cause.account.value.replace("_", " ")
        parts.append(f"{words} +{_amount(cause.account_extra_us, in_money=False)}")
    most = f"; most: {', '.join(parts)}" if parts else ""
    return f"{one.key.text} used {actual}, {extra} more than the expected {expected}{most}"


def _amount(amount: int, *, in_money: bool) -> str:
    if in_money:
        return f"{usd_of(amount):.2f} USD"
    return f"{amount / HOUR_US:.1f} slot-hours"


def list_anomalies(
    platform: Platform,
    projects: Sequence[str] | None,
    *,
    states: Sequence[AnomalyState],
    limit: int,
) -> list[AnomalyView]:
    """The newest anomalies; a caller of some projects sees those of its projects."""
    found = platform.store.view(
        lambda tx: anomalies.newest(tx, projects=projects, states=states, limit=limit)
    )
    return [_view(one) for one in found]


def acknowledge(platform: Platform, num: int, now: int, *, actor: str) -> AnomalyView:
    """Acknowledge an open anomaly; may be repeated. Raises NotFound, and UserError for a closed one."""

    def work(tx: Tx) -> CostAnomaly:
        before = anomalies.load_anomaly(tx, num)
        if before.state is AnomalyState.CLOSED:
            raise UserError(f"anomaly {num} is closed", "`phalanx cost anomalies` lists the others")
        after = acknowledged(before, actor, now)
        audit.describe(tx, f"anomaly {num}", before.state.value, after.state.value)
        return anomalies.put_anomaly(tx, after)

    return _view(platform.store.transact(work))


def live_anomalies(platform: Platform) -> list[CostAnomaly]:
    """The anomalies that are not closed."""
    return platform.store.view(anomalies.live_anomalies)


def _view(one: CostAnomaly) -> AnomalyView:
    cause, money = one.cause, one.in_money

    def usd(amount: int) -> Decimal | None:
        return usd_of(amount) if money else None

    def hours(amount: int) -> float | None:
        return None if money else amount / HOUR_US

    return AnomalyView(
        id=one.num,
        scope=one.key.scope.value,
        name=one.key.name,
        state=one.state.value,
        first_day=at_of(one.days[0].day * DAY_US).date(),
        last_day=at_of(one.days[-1].day * DAY_US).date(),
        usd=usd(one.actual),
        expected_usd=usd(one.expected),
        extra_usd=usd(one.extra),
        slot_hours=hours(one.actual),
        expected_slot_hours=hours(one.expected),
        extra_slot_hours=hours(one.extra),
        cause=AnomalyCauseView(
            job=cause.job,
            job_extra_usd=usd(cause.job_extra),
            pool=cause.pool or None,
            pool_extra_usd=usd(cause.pool_extra),
            account=None if cause.account is None else cause.account.value,
            account_extra_slot_hours=cause.account_extra_us / HOUR_US,
        ),
        also=[key.text for key in one.also],
        message=message_of(one),
        found_at=at_of(one.found_at),
        acknowledged_at=at_or_none(one.acknowledged_at),
        acknowledged_by=one.acknowledged_by,
        closed_at=at_or_none(one.closed_at),
    )
