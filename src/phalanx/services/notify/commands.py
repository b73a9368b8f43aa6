"""What users see of the notifier, and what they tell it: silences, receivers, messages to send again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from phalanx.core.notify.alert_life import AlertPhase, LiveAlert
from phalanx.core.notify.grouping import AlertSilence, inhibited, severity_of
from phalanx.errors import NotFound, UserError
from phalanx.kit.text import random_hex
from phalanx.schemas.api.body import at_of, at_or_none
from phalanx.schemas.api.health.alerts import (
    AlertsView,
    DeliveryView,
    LiveAlertView,
    ReceiverView,
    SilenceRequest,
    SilenceView,
)
from phalanx.services.notify.config import NotifyConfig
from phalanx.services.notify.messages import TEST, summary_of, test_body, title_and_text
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.notify import alerts, deliveries
from phalanx.store.notify.deliveries import Delivery, DeliveryState
from phalanx.store.tenancy import audit

_ORDER = (AlertPhase.FIRING, AlertPhase.PENDING, AlertPhase.RESOLVED)
_MOST_SILENCES = 1000


def list_alerts(platform: Platform, config: NotifyConfig, now: int) -> AlertsView:
    """All alerts, firing ones first, and the receivers."""

    def look(
        tx: Tx,
    ) -> tuple[list[LiveAlert], list[AlertSilence], dict[str, tuple[int, str]]]:
        return alerts.alerts(tx), alerts.silences(tx, now), deliveries.gone(tx)

    live, silences, gone = platform.store.view(look)
    firing = {one.alert for one in live if one.phase is AlertPhase.FIRING}

    def view(one: LiveAlert) -> LiveAlertView:
        muted = inhibited(one, firing) or any(other.covers(one, now) for other in silences)
        return LiveAlertView(
            fingerprint=one.fingerprint,
            alert=one.alert,
            severity=severity_of(one).value,
            phase=one.phase.value,
            labels=dict(one.labels),
            summary=summary_of(one),
            value=one.value,
            since=at_of(one.since),
            fired_at=at_or_none(one.fired_at),
            resolved_at=at_or_none(one.resolved_at),
            muted=muted,
        )

    ordered = sorted(live, key=lambda one: (_ORDER.index(one.phase), one.alert, one.labels))
    return AlertsView(
        alerts=[view(one) for one in ordered],
        receivers=[_receiver(config, name, gone.get(name)) for name in sorted(config.receivers)],
    )


def _receiver(config: NotifyConfig, name: str, gone: tuple[int, str] | None) -> ReceiverView:
    one = config.receivers[name]
    return ReceiverView(
        name=name,
        kind=one.kind.value,
        severities=list(one.wants.severities),
        projects=list(one.wants.projects),
        jobs=list(one.jobs),
        gone_at=None if gone is None else at_of(gone[0]),
        message="" if gone is None else gone[1],
    )


def list_silences(platform: Platform, now: int) -> list[SilenceView]:
    """The silences that are not over."""
    return [_silence(one) for one in platform.store.view(lambda tx: alerts.silences(tx, now))]


def add_silence(
    platform: Platform, request: SilenceRequest, now: int, *, actor: str
) -> SilenceView:
    """Silence alerts for a while. Raises UserError where there are too many silences."""
    matchers = tuple(sorted(request.matchers.items()))
    until = now + round(request.duration_s * 1_000_000)
    fresh = AlertSilence(0, matchers, until, request.comment, actor, now)

    def work(tx: Tx) -> AlertSilence:
        if len(alerts.silences(tx, now)) >= _MOST_SILENCES:
            raise UserError(f"there are {_MOST_SILENCES} silences", "remove one of them first")
        made = alerts.add_silence(tx, fresh)
        audit.describe(tx, f"silence {made.num}", None, _silence(made).model_dump(mode="json"))
        return made

    return _silence(platform.store.transact(work))


def remove_silence(platform: Platform, num: int, now: int) -> None:
    """Remove a silence. Raises NotFound."""

    def work(tx: Tx) -> None:
        gone = alerts.remove_silence(tx, num, now)
        audit.describe(tx, f"silence {num}", _silence(gone).model_dump(mode="json"), None)

    platform.store.transact(work)


def _silence(one: AlertSilence) -> SilenceView:
    return SilenceView(
        num=one.num,
        matchers=dict(one.matchers),
        until=at_of(one.until),
        comment=one.comment,
        by=one.by,
        made_at=at_of(one.made_at),
    )


def list_deliveries(
    platform: Platform, states: Collection[DeliveryState], limit: int
) -> list[DeliveryView]:
    """The newest messages in some states."""
    found = platform.store.view(lambda tx: deliveries.newest(tx, states, limit))
    return [_delivery(one) for one in found]


def resend(platform: Platform, num: int, now: int) -> DeliveryView:
    """Send a dead message again, with the id that it had. Raises NotFound, UserError."""

    def work(tx: Tx) -> Delivery:
        one = deliveries.load(tx, num)
        if one.state == DeliveryState.SENT.value:
            raise UserError(f"the receiver has taken message {num}", "it is not sent again")
        state = DeliveryState.OPEN.value
        after = replace(one, state=state, due_at=now, tries=0, done_at=None)
        deliveries.put(tx, after)
        audit.describe(tx, f"message {num}", one.state, after.state)
        tx.touched.topics.add(deliveries.DELIVERIES)
        return after

    return _delivery(platform.store.transact(work))


def enable_receiver(platform: Platform, config: NotifyConfig, name: str) -> ReceiverView:
    """Send to a receiver again that said that it is gone. Raises NotFound."""
    _known(config, name)

    def work(tx: Tx) -> None:
        before = deliveries.gone(tx).get(name)
        deliveries.set_back(tx, name)
        audit.describe(tx, f"receiver {name}", None if before is None else "gone", "enabled")

    platform.store.transact(work)
    return _receiver(config, name, None)


def try_receiver(platform: Platform, config: NotifyConfig, name: str, now: int) -> DeliveryView:
    """Make a message that only shows that messages arrive. Raises NotFound."""
    _known(config, name)
    fresh = {
        "id": f"msg_{random_hex(24)}",
        "receiver": name,
        "kind": TEST,
        "body": test_body(name, now),
    }

    def work(tx: Tx) -> Delivery:
        deliveries.add(tx, [fresh], now)
        (made,) = deliveries.newest(tx, [DeliveryState.OPEN], 1)
        audit.describe(tx, f"message {made.num}", None, made.receiver)
        return made

    return _delivery(platform.store.transact(work))


def _known(config: NotifyConfig, name: str) -> None:
    if name not in config.receivers:
        known = ", ".join(sorted(config.receivers)) or "none"
        raise NotFound(f"there is no receiver {name}", f"the settings have {known}")


def _delivery(one: Delivery) -> DeliveryView:
    is_open = one.state == DeliveryState.OPEN.value
    return DeliveryView(
        num=one.num,
        id=one.id,
        receiver=one.receiver,
        kind=one.kind,
        state=DeliveryState(one.state).value,
        title=title_and_text(one.body)[0],
        tries=one.tries,
        made_at=at_of(one.made_at),
        due_at=at_of(one.due_at) if is_open else None,
        done_at=at_or_none(one.done_at),
        error=one.error,
    )
