"""The step that delivers: tries what is due, and stores each result before the next look.

A message is delivered at least once: where the control plane ends between an answer and its record, the
same id is sent again. After a recorded success it never is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from phalanx.core.notify.signing import next_try
from phalanx.services.notify.config import NotifyConfig
from phalanx.services.notify.transports import MessageSender, SendOutcome, SendResult
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.notify import deliveries
from phalanx.store.notify.deliveries import Delivery, DeliveryState

_LOG = logging.getLogger(__name__)
BATCH = 8
"""Messages that are sent at a time."""
_S = 1_000_000


def deliver_step(
    platform: Platform,
    config: NotifyConfig,
    send: MessageSender,
    random: Callable[[], float],
    now: int,
) -> int | None:
    """Try the messages that are due; returns when the next one is."""

    def look(tx: Tx) -> tuple[list[Delivery], dict[str, tuple[int, str]]]:
        found = deliveries.due(tx, now, BATCH)
        return found, deliveries.gone(tx) if found else {}

    found, gone = platform.store.view(look)
    wanted: list[Delivery] = []
    for one in found:
        if one.receiver not in config.receivers:
            _give_up(platform, one, f"there is no receiver {one.receiver} any more", now)
        elif one.receiver in gone:
            _give_up(platform, one, gone[one.receiver][1], now)
        else:
            wanted.append(one)
    if wanted:
        _send_all(platform, config, wanted, send, random, now)
    return platform.store.view(deliveries.next_due)


def _give_up(platform: Platform, one: Delivery, message: str, now: int) -> None:
    dead = replace(one, state=DeliveryState.DEAD.value, done_at=now, error=message)
    platform.store.transact(lambda tx: deliveries.put(tx, dead))


def _send_all(
    platform: Platform,
    config: NotifyConfig,
    wanted: list[Delivery],
    send: MessageSender,
    random: Callable[[], float],
    now: int,
) -> None:
    with ThreadPoolExecutor(BATCH, thread_name_prefix="deliver") as pool:
        trying = {}
        for one in wanted:
            platform.may_act()
            trying[pool.submit(send, config.receivers[one.receiver], one, now // _S)] = one
        for done in as_completed(trying):
            _record(platform, trying[done], done.result(), random(), now)


def _record(platform: Platform, one: Delivery, result: SendResult, random: float, now: int) -> None:
    tried = replace(one, tries=one.tries + 1, error=result.message)
    again_at = next_try(tried.tries, now, random)
    if result.outcome is SendOutcome.SENT:
        after = replace(tried, state=DeliveryState.SENT.value, done_at=now)
    elif result.outcome is SendOutcome.GONE or again_at is None:
        after = replace(tried, state=DeliveryState.DEAD.value, done_at=now)
        _LOG.warning("message %s to %s is given up: %s", one.id, one.receiver, result.message)
    else:
        after = replace(tried, due_at=again_at)

    def write(tx: Tx) -> None:
        deliveries.put(tx, after)
        if result.outcome is SendOutcome.GONE:
            deliveries.set_gone(tx, one.receiver, now, result.message)

    platform.store.transact(write)
