"""Which messages are due: groups of alerts, cool-down, inhibition, silences, repetition and digests.

A group is what belongs to one job of a project, or to no job. A receiver gets one message for a group at a
time, and no second one within the cool-down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from phalanx.core.alerts.alertmanager import EXPLAINED, GROUP_BY
from phalanx.core.alerts.table import BY_NAME, Severity
from phalanx.core.notify.alert_life import AlertPhase, LiveAlert

_S = 1_000_000
GROUP_WAIT_US = 30 * _S
"""A first message waits for so long: alerts of one cause come together."""
COOL_DOWN_US = 300 * _S
"""The least time between two messages about a group."""
REPEAT_US: Mapping[Severity, int] = {
    Severity.PAGE: 4 * 3600 * _S,
    Severity.TICKET: 24 * 3600 * _S,
    Severity.NONE: 300 * _S,
}
"""What lasts is told again after so long."""
STORM_GROUPS = 10
"""More groups than this at once become one message."""
MOST_ALERTS = 50
"""The most alerts in one message; the others are counted."""

Group = tuple[tuple[str, str], ...]
"""The labels that a group has in common."""
_ALERT_NAME, _SEVERITY = "alertname", "severity"


@dataclass(frozen=True, slots=True)
class AlertReceiver:
    """What a receiver wants to be told of. Without projects: of all of them, and of the platform."""

    name: str
    severities: tuple[str, ...]
    projects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertSilence:
    """Alerts that are not told until some time. All matchers must match; `*` stands for any text."""

    num: int
    matchers: tuple[tuple[str, str], ...]  # label, or `alertname` or `severity`, and its value
    until: int  # microseconds UTC
    comment: str = ""
    by: str = ""  # the principal that made it
    made_at: int = 0

    def covers(self, one: LiveAlert, now: int) -> bool:
        """Whether it silences an alert now."""
        labels = {**dict(one.labels), _ALERT_NAME: one.alert, _SEVERITY: severity_of(one).value}
        return now < self.until and all(
            name in labels and fnmatchcase(labels[name], value) for name, value in self.matchers
        )


@dataclass(frozen=True, slots=True)
class ToldGroup:
    """What a receiver was last told of a group."""

    receiver: str
    group: Group
    told_at: int  # microseconds UTC
    told: tuple[str, ...] = ()  # fingerprints of alerts that were told to fire

    @property
    def key(self) -> tuple[str, Group]:
        """The receiver and the group."""
        return self.receiver, self.group


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """One message for a receiver. A digest is of many groups."""

    receiver: str
    group: Group
    firing: tuple[LiveAlert, ...]
    resolved: tuple[LiveAlert, ...]
    digest: bool = False


def severity_of(one: LiveAlert) -> Severity:
    """The severity in the table; that of tickets for an alert that is not in it any more."""
    alert = BY_NAME.get(one.alert)
    return Severity.TICKET if alert is None else alert.severity


def group_of(one: LiveAlert) -> Group:
    """The group that an alert belongs to."""
    return tuple(pair for pair in one.labels if pair[0] in GROUP_BY)


def inhibited(one: LiveAlert, firing: Iterable[str]) -> bool:
    """Whether an alert that fires explains this one."""
    names = set(firing)
    return any(one.alert in others for cause, others in EXPLAINED if cause in names)


def due_messages(
    live: Iterable[LiveAlert],
    receivers: Sequence[AlertReceiver],
    silences: Sequence[AlertSilence],
    told: Iterable[ToldGroup],
    now: int,
) -> tuple[list[AlertMessage], list[ToldGroup]]:
    """The messages that are due now, and what every group was told after them."""
    by_print = {one.fingerprint: one for one in live}
    firing = [one for one in by_print.values() if one.phase is AlertPhase.FIRING]
    names = {one.alert for one in firing}
    muted = {
        one.fingerprint
        for one in firing
        if inhibited(one, names) or any(silence.covers(one, now) for silence in silences)
    }
    before = {one.key: one for one in told}
    messages, after = list[AlertMessage](), list[ToldGroup]()
    for receiver in receivers:
        wanted = [one for one in firing if _wants(receiver, one)]
        found = _of_receiver(receiver.name, wanted, muted, before, by_print, now)
        mine = [message for message, _ in found if message is not None]
        after += [state for _, state in found if state is not None]
        messages += mine if len(mine) <= STORM_GROUPS else [_digest(receiver.name, mine)]
    return messages, after


def _wants(receiver: AlertReceiver, one: LiveAlert) -> bool:
    if severity_of(one).value not in receiver.severities:
        return False
    return not receiver.projects or dict(one.labels).get("project") in receiver.projects


def _of_receiver(
    name: str,
    firing: Sequence[LiveAlert],
    muted: set[str],
    before: Mapping[tuple[str, Group], ToldGroup],
    by_print: Mapping[str, LiveAlert],
    now: int,
) -> list[tuple[AlertMessage | None, ToldGroup | None]]:
    """For each group of a receiver the message that is due, and its state afterwards."""
    groups: defaultdict[Group, list[LiveAlert]] = defaultdict(list)
    for one in firing:
        groups[group_of(one)].append(one)
    for receiver, group in before:
        if receiver == name:
            groups.setdefault(group, [])
    return [
        _of_group(name, group, mine, muted, before.get((name, group)), by_print, now)
        for group, mine in sorted(groups.items())
    ]


def _of_group(
    name: str,
    group: Group,
    firing: Sequence[LiveAlert],
    muted: set[str],
    state: ToldGroup | None,
    by_print: Mapping[str, LiveAlert],
    now: int,
) -> tuple[AlertMessage | None, ToldGroup | None]:
    told = set() if state is None else set(state.told)
    here = {one.fingerprint for one in firing}
    active = [one for one in firing if one.fingerprint not in muted]
    fresh = [one for one in active if one.fingerprint not in told]
    gone = told - here
    if not _is_due(state, active, fresh, gone, now):
        # Without anything told, the state is only kept for the cool-down.
        cold = state is not None and (state.told or now - state.told_at < COOL_DOWN_US)
        return None, state if cold else None
    over = [by_print[one] for one in sorted(gone) if one in by_print]
    ended = tuple(one for one in over if one.phase is AlertPhase.RESOLVED)
    left = {one.fingerprint for one in active} | (told & here)
    after = ToldGroup(name, group, now, tuple(sorted(left)))
    if not active and not ended:
        return None, after  # what was told is not known any more
    ordered = tuple(sorted(active, key=lambda one: (one.alert, one.labels)))
    return AlertMessage(name, group, ordered, ended), after


def _is_due(
    state: ToldGroup | None,
    active: Sequence[LiveAlert],
    fresh: Sequence[LiveAlert],
    gone: set[str],
    now: int,
) -> bool:
    if state is None:
        first = min((one.fired_at or 0 for one in fresh), default=now)
        return bool(fresh) and now - first >= GROUP_WAIT_US
    since = now - state.told_at
    if fresh or gone:
        return since >= COOL_DOWN_US
    repeat = min((REPEAT_US[severity_of(one)] for one in active), default=None)
    return repeat is not None and since >= repeat


def _digest(name: str, messages: Sequence[AlertMessage]) -> AlertMessage:
    firing = tuple(one for message in messages for one in message.firing)
    resolved = tuple(one for message in messages for one in message.resolved)
    return AlertMessage(name, (), firing, resolved, digest=True)
