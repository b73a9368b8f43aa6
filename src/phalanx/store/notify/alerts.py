"""Samples, live alerts, silences, and what groups were told."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping

from sqlalchemy import Table, delete, select

from phalanx.core.codec import decode, encode
from phalanx.core.notify.alert_life import LiveAlert
from phalanx.core.notify.grouping import AlertSilence, ToldGroup
from phalanx.core.notify.samples import Sampled
from phalanx.errors import NotFound
from phalanx.store.database import Tx, take_numbers
from phalanx.store.schema.notify import alert_samples, alert_silences, live_alerts, told_groups

_SILENCE = "alert_silence"


def samples(tx: Tx, after: int = -1) -> list[Sampled]:
    """The samples behind a time, the oldest first."""
    here = alert_samples.c
    query = select(here.at, here.data).where(here.at > after).order_by(here.at)
    return [Sampled(at, _unpacked(data)) for at, data in tx.conn.execute(query)]


def put_sample(tx: Tx, one: Sampled) -> None:
    """Store a sample."""
    rows = [[name, labels, value] for (name, labels), value in one.values.items()]
    data = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)
    tx.conn.execute(alert_samples.insert(), {"at": one.at, "data": data})


def _unpacked(data: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    rows = json.loads(zlib.decompress(data))
    return {
        (name, tuple((key, text) for key, text in labels)): value for name, labels, value in rows
    }


def drop_samples(tx: Tx, times: Iterable[int]) -> None:
    """Delete the samples of these times."""
    gone = list(times)
    if gone:
        tx.conn.execute(delete(alert_samples).where(alert_samples.c.at.in_(gone)))


def alerts(tx: Tx) -> list[LiveAlert]:
    """All alerts."""
    return [
        decode(LiveAlert, data) for data in tx.conn.execute(select(live_alerts.c.data)).scalars()
    ]


def put_alerts(tx: Tx, before: Mapping[str, LiveAlert], after: Mapping[str, LiveAlert]) -> None:
    """Write what differs."""
    rows = {
        key: {"fingerprint": key, "data": encode(one)}
        for key, one in after.items()
        if before.get(key) != one
    }
    _replace(tx, live_alerts, "fingerprint", [*rows, *(key for key in before if key not in after)])
    if rows:
        tx.conn.execute(live_alerts.insert(), list(rows.values()))


def _replace(tx: Tx, table: Table, column: str, keys: list[str]) -> None:
    if keys:
        tx.conn.execute(delete(table).where(table.c[column].in_(keys)))


def told(tx: Tx) -> list[ToldGroup]:
    """What every group was told."""
    return [
        decode(ToldGroup, data) for data in tx.conn.execute(select(told_groups.c.data)).scalars()
    ]


def put_told(tx: Tx, before: Iterable[ToldGroup], after: Iterable[ToldGroup]) -> None:
    """Write what differs."""
    known = {_key_of(one): one for one in before}
    now = {_key_of(one): one for one in after}
    changed = [key for key, one in now.items() if known.get(key) != one]
    _replace(tx, told_groups, "key", [*changed, *(key for key in known if key not in now)])
    if changed:
        rows = [{"key": key, "data": encode(now[key])} for key in changed]
        tx.conn.execute(told_groups.insert(), rows)


def _key_of(one: ToldGroup) -> str:
    text = json.dumps([one.receiver, one.group], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def silences(tx: Tx, now: int) -> list[AlertSilence]:
    """The silences that are not over, in the order of their numbers."""
    here = alert_silences.c
    query = select(here.data).where(here.until > now).order_by(here.num)
    return [decode(AlertSilence, data) for data in tx.conn.execute(query).scalars()]


def add_silence(tx: Tx, given: AlertSilence) -> AlertSilence:
    """Store a new silence; returns it with its number."""
    num = take_numbers(tx, _SILENCE)
    one = AlertSilence(num, given.matchers, given.until, given.comment, given.by, given.made_at)
    values = {"num": num, "until": one.until, "data": encode(one)}
    tx.conn.execute(alert_silences.insert(), values)
    return one


def remove_silence(tx: Tx, num: int, now: int) -> AlertSilence:
    """Remove a silence that is not over; returns it. Raises NotFound."""
    for one in silences(tx, now):
        if one.num == num:
            tx.conn.execute(delete(alert_silences).where(alert_silences.c.num == num))
            return one
    raise NotFound(f"there is no silence {num}", "`phalanx alerts silences` lists them")


def drop_old_silences(tx: Tx, now: int) -> None:
    """Delete the silences that are over."""
    tx.conn.execute(delete(alert_silences).where(alert_silences.c.until <= now))
