"""The life of an alert for one combination of labels: pending, firing, resolved."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.alerts.table import BY_NAME, Alert
from phalanx.core.notify.samples import Labels, Sampled, condition_values

MAX_GAP_US = 10 * 60_000_000
"""A pending alert begins anew when the time since the last evaluation was longer than this."""
KEPT_US = 24 * 3_600_000_000
"""How long resolved alerts are shown."""


class AlertPhase(StrEnum):
    """What an alert is at present."""

    PENDING = "pending"  # the condition holds, not for long enough
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class LiveAlert:
    """An alert of the table for one combination of labels. Times are in microseconds UTC."""

    alert: str  # name in the table
    labels: Labels  # those of its condition
    phase: AlertPhase
    since: int  # when the condition began to hold
    held_at: int  # when it was last seen to hold
    value: float  # of the condition, when it was last seen to hold
    fired_at: int | None = None
    resolved_at: int | None = None

    @property
    def fingerprint(self) -> str:
        """The same for the same alert and labels, always."""
        return fingerprint(self.alert, self.labels)


def fingerprint(alert: str, labels: Labels) -> str:
    """A short name for an alert with its labels."""
    text = json.dumps([alert, labels], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def advanced(
    known: LiveAlert | None, alert: Alert, labels: Labels, value: float | None, now: int
) -> LiveAlert | None:
    """The alert after an evaluation; `value` is None where the condition does not hold.

    None: there is no alert, or it was pending and is over.
    """
    if value is None or math.isnan(value):
        return None if known is None else _not_held(known, alert, now)
    if known is None or known.phase is AlertPhase.RESOLVED:
        known = LiveAlert(alert.name, labels, AlertPhase.PENDING, now, now, value)
    elif known.phase is AlertPhase.PENDING and now - known.held_at > MAX_GAP_US:
        known = replace(known, since=now)
    known = replace(known, held_at=now, value=value)
    if known.phase is AlertPhase.PENDING and now - known.since >= alert.hold_s * 1_000_000:
        known = replace(known, phase=AlertPhase.FIRING, fired_at=now)
    return known


def _not_held(known: LiveAlert, alert: Alert, now: int) -> LiveAlert | None:
    if known.phase is AlertPhase.PENDING:
        return None
    if known.phase is AlertPhase.RESOLVED:
        over = now - (known.resolved_at or 0) > KEPT_US
        return None if over else known
    if now - known.held_at < alert.keep_s * 1_000_000:
        return known
    return replace(known, phase=AlertPhase.RESOLVED, resolved_at=now)


def evaluated(
    known: Iterable[LiveAlert], alerts: Sequence[Alert], history: Sequence[Sampled]
) -> dict[str, LiveAlert]:
    """All alerts after an evaluation at the time of the newest sample, by fingerprint.

    Those that the table has no more are resolved.
    """
    now, before = history[-1].at, {one.fingerprint: one for one in known}
    values = {
        fingerprint(alert.name, labels): (alert, labels, value)
        for alert in alerts
        for labels, value in condition_values(alert.condition, history).items()
    }
    found: dict[str, LiveAlert] = {}
    for key in {**before, **values}:
        there = before.get(key)
        alert, labels, value = values.get(key) or _gone(there, alerts)
        after = advanced(there, alert, labels, value, now)
        if after is not None:
            found[key] = after
    return found


def _gone(there: LiveAlert | None, alerts: Sequence[Alert]) -> tuple[Alert, Labels, None]:
    assert there is not None
    by_name: Mapping[str, Alert] = {one.name: one for one in alerts}
    return by_name.get(there.alert) or _dropped(there.alert), there.labels, None


def _dropped(name: str) -> Alert:
    """An alert that an earlier release had: nothing keeps it firing."""
    any_alert = next(iter(BY_NAME.values()))
    return replace(any_alert, name=name, hold_s=0, keep_s=0)
