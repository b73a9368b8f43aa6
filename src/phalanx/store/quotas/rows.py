"""Rows of user quotas and of quota alerts, and counts of live jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select

from phalanx.core.jobs.model import JobState
from phalanx.core.quotas.alerts import QuotaAlert, QuotaWait
from phalanx.core.quotas.usage import QuotaKey, QuotaUnit
from phalanx.core.reasons import ReasonCode
from phalanx.store import tables
from phalanx.store.database import Tx
from phalanx.store.resources import AppliedTable
from phalanx.store.tables import jobs, quota_alerts

users = AppliedTable(tables.user_quotas)
"""Quotas of users on the whole platform, by the user; `default` is for every user."""
FOR_A_QUOTA = (
    ReasonCode.WAITING_FOR_QUOTA,
    ReasonCode.WAITING_FOR_USER_QUOTA,
    ReasonCode.WAITING_FOR_TYPE_QUOTA,
)
_LIVE = jobs.c.ended_at.is_(None)


def num_live(tx: Tx, user: str, projects: Iterable[str] | None) -> int:
    """How many jobs of a user have not ended; `projects`: of these alone."""
    query = select(func.count()).select_from(jobs).where(_LIVE, jobs.c.owner == user)
    if projects is not None:
        query = query.where(jobs.c.project.in_(list(projects)))
    return int(tx.conn.execute(query).scalar_one())


def live_by_user(tx: Tx) -> dict[tuple[str, str], int]:
    """How many jobs have not ended, by project and user."""
    here = jobs.c
    query = select(here.project, here.owner, func.count()).where(_LIVE)
    rows = tx.conn.execute(query.group_by(here.project, here.owner))
    return {(project, owner): int(num) for project, owner, num in rows}


def waits(tx: Tx) -> list[QuotaWait]:
    """The queued jobs that a quota keeps from starting, by number; `since` is their submission."""
    here = jobs.c
    query = select(here.num, here.project, here.owner, here.submitted_at, here.pending_message)
    query = query.where(
        here.state == JobState.QUEUED.value,
        here.pending_code.in_([one.value for one in FOR_A_QUOTA]),
    )
    rows = tx.conn.execute(query.order_by(here.num))
    return [QuotaWait(num, project, user, at, said or "") for num, project, user, at, said in rows]


def alerts(tx: Tx) -> list[QuotaAlert]:
    """All alerts, those that have not been told among them."""
    here = quota_alerts.c
    query = select(quota_alerts).order_by(
        here.project, here.user, here.slot_type, here.unit, here.percent, here.job
    )
    return [_alert(row) for row in tx.conn.execute(query).mappings()]


def _alert(row: Any) -> QuotaAlert:
    key = QuotaKey(row["project"], row["user"], row["slot_type"], QuotaUnit(row["unit"]))
    return QuotaAlert(
        key, row["percent"], row["job"], row["reached_at"], row["told_at"], row["message"]
    )


def put_alerts(tx: Tx, gone: Iterable[QuotaAlert], new: Iterable[QuotaAlert]) -> None:
    """Remove and add alerts."""
    here = quota_alerts.c
    for one in gone:
        tx.conn.execute(
            quota_alerts.delete().where(
                here.project == one.key.project,
                here.user == one.key.user,
                here.slot_type == one.key.slot_type,
                here.unit == one.key.unit.value,
                here.percent == one.percent,
                here.job == one.job,
            )
        )
    rows = [
        {
            "project": one.key.project,
            "user": one.key.user,
            "slot_type": one.key.slot_type,
            "unit": one.key.unit.value,
            "percent": one.percent,
            "job": one.job,
            "reached_at": one.reached_at,
            "told_at": one.told_at,
            "message": one.message,
        }
        for one in new
    ]
    if rows:
        tx.conn.execute(quota_alerts.insert(), rows)
