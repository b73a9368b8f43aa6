"""The step that evaluates: take samples, let alerts live, and make the messages that are due.

Everything of one evaluation is stored in one transaction: no message without the state that it tells of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.core.jobs.model import TERMINAL
from phalanx.core.notify.alert_life import evaluated
from phalanx.core.notify.grouping import due_messages
from phalanx.core.notify.samples import BUILT_IN, Sampled, Series, kept
from phalanx.kit.text import random_hex
from phalanx.services.notify.config import NotifyConfig, ReceiverConfig
from phalanx.services.notify.messages import (
    ALERTS,
    DIGEST,
    JOB,
    WAITING,
    alert_body,
    job_body,
    wait_body,
)
from phalanx.services.platform import Platform
from phalanx.store import events, jobs
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.notify import alerts, deliveries

Sample = Callable[[int], Mapping[Series, float]]
"""Takes a sample of everything that conditions read."""
_KEPT_US = 7 * 86_400_000_000
_EVENTS_AT_A_TIME = 2000
_ID_CHARS = 64
_ENDED = frozenset(one.value for one in TERMINAL)


@dataclass(slots=True)
class AlertHistory:
    """The samples in memory. Those that another leader took are read when this one leads."""

    samples: list[Sampled] = field(default_factory=list)

    def read(self, tx: Tx) -> None:
        """Add what is stored behind the newest one."""
        after = self.samples[-1].at if self.samples else -1
        self.samples += alerts.samples(tx, after)


def evaluate_step(
    platform: Platform, config: NotifyConfig, history: AlertHistory, sample: Sample, now: int
) -> None:
    """One evaluation. Without receivers nothing happens."""
    if not config.receivers:
        return
    platform.store.view(history.read)
    if history.samples and history.samples[-1].at >= now:
        return  # the clock was set back: no second sample at a time
    taken = Sampled(now, sample(now))
    times = [one.at for one in history.samples]
    keeping = kept([*times, now], now)
    window = [*(one for one in history.samples if one.at in keeping), taken]

    def work(tx: Tx) -> None:
        alerts.put_sample(tx, taken)
        alerts.drop_samples(tx, (at for at in times if at not in keeping))
        known = {one.fingerprint: one for one in alerts.alerts(tx)}
        after = evaluated(known.values(), BUILT_IN, window)
        alerts.put_alerts(tx, known, after)
        told = alerts.told(tx)
        receivers = [one.wants for one in config.receivers.values()]
        messages, told_now = due_messages(
            after.values(), receivers, alerts.silences(tx, now), told, now
        )
        alerts.put_told(tx, told, told_now)
        fresh = [
            _message(one.receiver, DIGEST if one.digest else ALERTS, alert_body(one, links, now))
            for one in messages
        ]
        fresh += _of_jobs(platform, config, tx, now)
        fresh += _of_waits(platform, config, tx, now)
        deliveries.add(tx, fresh, now)
        deliveries.drop_old(tx, now - _KEPT_US)
        alerts.drop_old_silences(tx, now)

    links = config.links
    platform.store.transact(work)
    history.samples = window


def _message(receiver: str, kind: str, body: str, id: str = "") -> Mapping[str, str]:
    return {"id": id or f"msg_{random_hex(24)}", "receiver": receiver, "kind": kind, "body": body}


def _id(*parts: object) -> str:
    """An id of these parts that fits into its column, however long the name of the receiver is."""
    whole = "-".join(map(str, parts))
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return whole if len(whole) <= _ID_CHARS else f"{whole[: _ID_CHARS - 25]}-{digest[:24]}"


def _of_jobs(
    platform: Platform, config: NotifyConfig, tx: Tx, now: int
) -> Iterator[Mapping[str, str]]:
    """Messages about jobs that have ended since the last evaluation."""
    wanted = [one for one in config.receivers.values() if one.jobs]
    place, last = deliveries.feed_place(tx), events.last_feed(tx)
    deliveries.set_feed_place(tx, max(1, last))
    if not place:
        return  # jobs that ended before anything wanted to know are not told
    done: set[int] = set()  # the events of one end may be in two pieces
    while wanted:
        found = events.feed(tx, after=place, limit=_EVENTS_AT_A_TIME)
        # Later events of an ended job have its state as well.
        times = {(one.job, one.at) for one in found if one.state in _ENDED}
        for stored in jobs.load_many(tx, sorted({job for job, _ in times})):
            num = stored.job.num
            if num not in done and (num, stored.job.ended_at) in times:
                done.add(num)
                yield from _told_of(platform, wanted, stored, now)
        if len(found) < _EVENTS_AT_A_TIME:
            return
        place = found[-1].feed


def _told_of(
    platform: Platform, wanted: Sequence[ReceiverConfig], stored: StoredJob, now: int
) -> Iterator[Mapping[str, str]]:
    """The messages about one job that has ended."""
    job = stored.job
    for one in wanted:
        if job.state.value in one.jobs and _is_of(one, stored):
            body = job_body(stored, platform.job_url(job.num), now)
            id = _id("job", job.num, one.name)
            yield _message(one.name, JOB + job.state.value, body, id)


def _of_waits(
    platform: Platform, config: NotifyConfig, tx: Tx, now: int
) -> Iterator[Mapping[str, str]]:
    """Messages about jobs that wait for longer than receivers want, while the last one is not stored."""
    wanted = [one for one in config.receivers.values() if one.waits_s is not None]
    if not wanted:
        return
    queued, _ = platform.scheduler_cache.rows.jobs(tx)
    fresh = {
        id: (receiver, stored)
        for stored in queued
        if not (stored.job.waits_for or stored.job.waits_turn)
        for receiver in wanted
        if _is_of(receiver, stored) and _waited_s(stored, now) > (receiver.waits_s or 0.0)
        for id in (_id("wait", stored.job.num, _queued_at(stored), receiver.name),)
    }
    for id in sorted(fresh.keys() - deliveries.ids_of(tx, WAITING)):
        receiver, stored = fresh[id]
        url = platform.job_url(stored.job.num)
        body = wait_body(stored, _waited_s(stored, now), url, now)
        yield _message(receiver.name, WAITING, body, id)


def _queued_at(stored: StoredJob) -> int:
    return stored.job.queued_at or stored.job.submitted_at


def _waited_s(stored: StoredJob, now: int) -> float:
    return max(0, now - _queued_at(stored)) / 1_000_000


def _is_of(receiver: ReceiverConfig, stored: StoredJob) -> bool:
    """Whether a receiver wants to know of jobs of this project."""
    return not receiver.wants.projects or stored.facts.project in receiver.wants.projects
