"""Alerts of quotas: sustained use of 80 % and 100 %, and jobs that wait long for a quota.

An alert is told once while its cause lasts. A use that goes below the share and comes back within a day
is the same cause, so that a quota at its border does not alert all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from phalanx.core.quotas.usage import QuotaKey, QuotaUnit, QuotaUse

SHARES = (80, 100)
"""Percents of a quota that are told."""
SUSTAINED_US = 600 * 1_000_000
"""A use is told once it has lasted so long."""
WAIT_US = 24 * 3600 * 1_000_000
"""A job that has waited so long, and for a quota now, is told."""
_DAY_US = 24 * 3600 * 1_000_000
_HOUR_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class QuotaAlert:
    """One cause of an alert: a share of a quota that is reached, or a job that waits for a quota."""

    key: QuotaKey  # of a job: its project and user
    percent: int  # of the quota; 0: a job that waits
    job: int  # 0: a share of a quota
    reached_at: int | None  # since when it lasts, microseconds UTC; None: it is over
    told_at: int | None = None  # when it was told; None: it has not lasted long enough
    message: str = ""  # what was told


@dataclass(frozen=True, slots=True)
class QuotaWait:
    """A queued job that a quota keeps from starting."""

    job: int
    project: str
    user: str
    since: int  # when it entered the queue, microseconds UTC
    reason: str

    @property
    def key(self) -> QuotaKey:
        """The project and the user of the job."""
        return QuotaKey(self.project, self.user, "", QuotaUnit.SLOTS)


def judged_alerts(
    before: Iterable[QuotaAlert],
    uses: Iterable[QuotaUse],
    waits: Iterable[QuotaWait],
    now: int,
) -> list[QuotaAlert]:
    """Return the alerts as they are now; those with `told_at` equal to `now` are new."""
    known = {(one.key, one.percent, one.job): one for one in before}
    found: list[QuotaAlert] = []
    for use in uses:
        for share in SHARES:
            old = known.pop((use.key, share, 0), None)
            if use.percent >= share:
                found.append(_lasting(old or QuotaAlert(use.key, share, 0, now), use, now))
            elif old is not None and _is_kept(old, now):
                found.append(replace(old, reached_at=None))
    for wait in waits:
        old = known.pop((wait.key, 0, wait.job), None)
        if old is not None:
            found.append(old)
        elif now - wait.since >= WAIT_US:
            hours = (now - wait.since) // _HOUR_US
            said = f"j-{wait.job} has waited {hours} h and waits for a quota: {wait.reason}"
            found.append(QuotaAlert(wait.key, 0, wait.job, wait.since, now, said))
    return found


def _lasting(alert: QuotaAlert, use: QuotaUse, now: int) -> QuotaAlert:
    since = now if alert.reached_at is None else alert.reached_at
    if alert.told_at is None and now - since >= SUSTAINED_US:
        said = f"{use.used} of {use.most} {use.key.label} are used"
        return replace(alert, reached_at=since, told_at=now, message=said)
    return replace(alert, reached_at=since)


def _is_kept(alert: QuotaAlert, now: int) -> bool:
    return alert.told_at is not None and now - alert.told_at < _DAY_US
