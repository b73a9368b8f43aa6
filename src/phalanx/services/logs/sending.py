"""The step of a sender: read output that was not sent, send it, and store how far it is.

A line is sent at least once: where the control plane ends between an answer and its record, it is sent
again. What waits is in the log store; the step holds a few megabytes of it at most.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from phalanx.core.jobs.model import TERMINAL
from phalanx.core.logs.export import ExportedLine
from phalanx.core.logs.lines import assembled
from phalanx.errors import DataUnavailable, NotFound
from phalanx.kit.clock import backoff_s
from phalanx.schemas.api.body import at_or_none
from phalanx.schemas.api.telemetry import LogSenderView
from phalanx.services.logs.endpoints import LineSender, LogSenders, SenderConfig, SendFailed
from phalanx.services.logs.reading import LookedUp, PackDeleted, Wanted, look_up, read
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.logs import senders
from phalanx.store.logs.senders import LogPosition, StoredSender

_LOG = logging.getLogger(__name__)
BATCH_BYTES = 1 << 20
"""Output of several jobs that one batch has; a page of the last one may exceed it."""
_JOBS, _BATCHES, _LOOKS = 100, 16, 10
_FIRST_WAIT_S, _MAX_WAIT_S = 1.0, 300.0
_US = 1_000_000


@dataclass(slots=True)
class SendingProgress:
    """The segment up to which nothing waits, as far as this process has seen."""

    low: int = 0


@dataclass(slots=True)
class _Batch:
    """Lines, and the positions behind them."""

    lines: list[ExportedLine] = field(default_factory=list)
    places: list[LogPosition] = field(default_factory=list)
    num_bytes: int = 0


def sending_step(
    platform: Platform, config: SenderConfig, send: LineSender, progress: SendingProgress, now: int
) -> int | None:
    """Send what waits; returns when to go on, None: nothing waits any more."""
    sender = platform.store.view(partial(senders.known, name=config.name))
    if sender is None:
        sender = platform.store.transact(partial(senders.set_up, name=config.name))
    if sender.not_before > now:
        return sender.not_before
    for _ in range(_BATCHES):
        look = partial(
            senders.waiting,
            sender=sender,
            projects=config.projects,
            low=progress.low,
            limit=_JOBS,
        )
        places = platform.store.view(look)
        if not places:
            _nothing_waits(platform, config, sender, progress)
            return None
        platform.may_act()
        batch = _batch(platform, places)
        try:
            refused = send(config, batch.lines, now) if batch.lines else 0
        except SendFailed as error:
            return _failed(platform, sender, batch, str(error), now)
        sender = _sent(platform, sender, batch, refused, now)
    return now


def _nothing_waits(
    platform: Platform, config: SenderConfig, sender: StoredSender, progress: SendingProgress
) -> None:
    look = partial(senders.lowest, sender=sender, projects=config.projects, low=progress.low)
    progress.low = platform.store.view(look)
    if sender.oldest_at is not None:
        caught_up = replace(sender, oldest_at=None)
        platform.store.transact(lambda tx: senders.put(tx, caught_up))


def _batch(platform: Platform, places: Sequence[LogPosition]) -> _Batch:
    batch = _Batch()
    for place in places:
        if batch.num_bytes >= BATCH_BYTES:
            break
        _add_page(platform, place, batch)
    return batch


def _add_page(platform: Platform, place: LogPosition, batch: _Batch) -> None:
    """Add the next lines of a job; one that was deleted meanwhile is passed over."""

    def look(tx: Tx) -> tuple[StoredJob, LookedUp]:
        wanted = Wanted(after=place.sent_id, open_lines=place.opened)
        return jobs.load(tx, place.job), look_up(tx, place.job, wanted)

    for _ in range(_LOOKS):
        try:
            stored, found = platform.store.view(look)
            logs = read(platform, found)
            break
        except NotFound:
            return
        except PackDeleted:
            continue
    else:
        raise DataUnavailable(f"output of job {place.job} is deleted while it is read", "try again")
    over = stored.job.state in TERMINAL and not logs.more
    lines, opened = assembled(logs.segments, logs.marks, logs.begun, logs.bounds, flush=over)
    project = stored.facts.project
    batch.lines += [ExportedLine(place.job, project, one) for one in lines]
    batch.num_bytes += sum(len(one.data) for one in lines)
    batch.places.append(LogPosition(place.job, logs.last, opened))


def _oldest(batch: _Batch) -> int | None:
    return min((one.line.at for one in batch.lines), default=None)


def _failed(platform: Platform, sender: StoredSender, batch: _Batch, said: str, now: int) -> int:
    """Store a failed try; returns the time of the next one."""
    tries = sender.tries + 1
    wait_s = backoff_s(tries, first_s=_FIRST_WAIT_S, max_s=_MAX_WAIT_S)
    after = replace(
        sender,
        tries=tries,
        not_before=now + round(wait_s * _US),
        oldest_at=_oldest(batch),
        error=said[:400],
    )
    if tries == 1:
        _LOG.warning("output is not sent to %s: %s", sender.name, said)
    platform.store.transact(lambda tx: senders.put(tx, after))
    return after.not_before


def _sent(
    platform: Platform, sender: StoredSender, batch: _Batch, refused: int, now: int
) -> StoredSender:
    """Store that lines were sent, in one transaction with how far the sender is."""
    if refused:
        _LOG.warning("%s does not take %d lines of output", sender.name, refused)
    after = replace(
        sender,
        sent_lines=sender.sent_lines + len(batch.lines) - refused,
        sent_bytes=sender.sent_bytes + batch.num_bytes,
        refused_lines=sender.refused_lines + refused,
        tries=0,
        not_before=0,
        oldest_at=_oldest(batch),
        sent_at=now,
        error="",
    )

    def store(tx: Tx) -> None:
        senders.move(tx, sender.name, batch.places)
        senders.put(tx, after)

    platform.store.transact(store)
    return after


def list_senders(platform: Platform, configs: LogSenders, now: int) -> list[LogSenderView]:
    """The senders of the settings, and how far each is."""
    found = platform.store.view(senders.every)
    return [
        _view(one, found.get(one.name) or StoredSender(one.name, 0), now) for one in configs.senders
    ]


def _view(config: SenderConfig, one: StoredSender, now: int) -> LogSenderView:
    return LogSenderView(
        name=config.name,
        kind=config.kind.value,
        projects=list(config.projects),
        lag_s=lag_s(one, now),
        sent_lines=one.sent_lines,
        sent_bytes=one.sent_bytes,
        refused_lines=one.refused_lines,
        sent_at=at_or_none(one.sent_at),
        tries=one.tries,
        next_try_at=at_or_none(one.not_before if one.tries else None),
        error=one.error,
    )


def lag_s(one: StoredSender, now: int) -> float:
    """The age of the oldest line that waits, in seconds; 0: none does."""
    return 0.0 if one.oldest_at is None else max(0.0, (now - one.oldest_at) / _US)
