"""The supervisors' sync call: reports go up, orders come down. Repeating a call changes nothing."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.jobs.desired import desired
from phalanx.core.jobs.events import CheckpointCommitted, CheckpointQuarantined, JobEvent
from phalanx.core.jobs.model import Job
from phalanx.errors import PermissionDenied, StoreUnavailable, Unauthenticated, UserError
from phalanx.schemas.wire import PROTOCOL
from phalanx.schemas.wire.supervision import Orders, SyncRequest, SyncResponse
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.assignments import secret_values
from phalanx.services.lifecycle.commit import Note, commit_many
from phalanx.services.lifecycle.reports import Inbox, flush_all, read_heartbeat, read_report
from phalanx.services.platform import Platform, token_hash
from phalanx.store import jobs, lineage, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.lineage import GenerationRow
from phalanx.store.supervisors import Key, SupervisorRow

_US = 1_000_000
_MAX_DRIFT = 100e-6  # seconds per second: tolerance of a quartz clock
_ACCOUNT = (CheckpointCommitted, CheckpointQuarantined, Note)
_CLOCK_STEP_US = 10_000_000
_PROTOCOLS = range(max(1, PROTOCOL - 1), PROTOCOL + 1)
TOKEN_ENDS_US = 24 * 3600 * _US
"""So long after the end of its job the token of an attempt still brings reports that were late."""
# A call without news is recorded at most this often: every write costs an fsync.
_SEEN_EVERY_US = 5 * _US


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The response, and whether it carries anything new for the supervisor."""

    response: SyncResponse
    news: bool


@dataclass(frozen=True, slots=True)
class SyncCall:
    """One call of a supervisor, with the token that it shows."""

    request: SyncRequest
    token: str

    @property
    def key(self) -> Key:
        """The supervisor that calls."""
        request = self.request
        return request.job, request.attempt, request.node_rank, request.incarnation


def supervisor_sync(platform: Platform, request: SyncRequest, token: str, now: int) -> SyncAnswer:
    """Store new reports and return the current orders.

    Reports are numbered; numbers up to the last stored one are skipped. A supervisor sends unacknowledged
    reports from the lowest number on, so a gap means that it dropped reports itself.
    Raises Unauthenticated for a wrong token, and UserError for an invalid report or protocol.
    """
    answer = supervisor_sync_many(platform, [SyncCall(request, token)], now)[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


def supervisor_sync_many(
    platform: Platform, calls: Sequence[SyncCall], now: int
) -> list[SyncAnswer | Exception]:
    """`supervisor_sync` for supervisors of different jobs, in one transaction.

    Returns an answer or an error for each call: one that cannot be stored does not keep the others from
    being stored, each in a transaction of its own.
    """
    try:
        return list(_sync_all(platform, calls, now))
    except StoreUnavailable as error:
        return [error for _ in calls]
    except Exception as error:
        if len(calls) == 1:
            return [error]
        return [supervisor_sync_many(platform, [call], now)[0] for call in calls]


def _sync_all(platform: Platform, calls: Sequence[SyncCall], now: int) -> list[SyncAnswer]:
    for call in calls:
        if call.request.protocol not in _PROTOCOLS:
            raise UserError(
                f"the supervisor speaks protocol {call.request.protocol}, "
                f"this control plane {_PROTOCOLS.start} to {PROTOCOL}"
            )
    rows = platform.scheduler_cache.rows

    def look(tx: Tx) -> dict[Key, SyncAnswer]:
        """Answers for the calls without news; all tokens are checked before a write begins."""
        known = _known(tx, calls)
        quiet = [call for call in calls if not _brings_news(call.request, known[call.key], now)]
        stored = rows.many(tx, [call.request.job for call in quiet], lock=False)
        return {
            call.key: _answer(tx, call, known[call.key].last_seq, stored, now) for call in quiet
        }

    found = platform.store.view(look)
    left = [call for call in calls if call.key not in found]
    if left:
        # One transaction for reports and orders: a short trial makes as many calls as a long one.
        found |= platform.store.transact(lambda tx: _receive_all(platform, tx, left, now))
    return [found[call.key] for call in calls]


def _receive_all(
    platform: Platform, tx: Tx, calls: Sequence[SyncCall], now: int
) -> dict[Key, SyncAnswer]:
    """Store what calls of different jobs bring."""
    known, rows = _known(tx, calls), platform.scheduler_cache.rows
    attempts = [call.key[:2] for call in calls]
    # A single call reads no more generations than it reports about.
    begun = lineage.generations_of_attempts(tx, attempts) if len(calls) > 1 else {}
    inboxes: dict[Key, Inbox] = {}
    for call in calls:
        inboxes[call.key] = _receive(
            tx, call.request, known[call.key], now, platform.log_limit, begun.get(call.key[:2])
        )
    supervisors.update_many(tx, [(key, inbox.row) for key, inbox in inboxes.items()])
    flush_all(list(inboxes.values()))
    # Supervisors of one job report at the same time: those that do not change it need no lock.
    events = {key: inbox.events for key, inbox in inboxes.items() if inbox.events}
    stored = rows.many(tx, sorted(key[0] for key in events))
    stored |= rows.many(tx, [key[0] for key in inboxes if key not in events], lock=False)
    events = {key: _of_account(stored[key[0]].job, key, some) for key, some in events.items()}
    for rank in sorted({key[2] for key in events}):
        batch = [(key[0], some) for key, some in sorted(events.items()) if key[2] == rank]
        commit_many(tx, batch, now, f"supervisor:n{rank}", known=stored)
    fresh = {num: one for num, one in tx.touched.rows.items() if isinstance(one, StoredJob)}
    return {
        call.key: _answer(tx, call, inboxes[call.key].row["last_seq"], stored | fresh, now)
        for call in calls
    }


def _of_account(job: Job, key: Key, events: list[JobEvent | Note]) -> list[JobEvent | Note]:
    """What a supervisor may still say that was replaced: which checkpoints there are, and notes."""
    attempt = job.attempt
    if attempt is None or attempt.num != key[1]:
        return events
    if attempt.nodes[key[2]].incarnation == key[3]:
        return events
    return [one for one in events if isinstance(one, _ACCOUNT)]


def _answer(
    tx: Tx, call: SyncCall, acked: int, stored: Mapping[int, StoredJob], now: int
) -> SyncAnswer:
    request, job = call.request, stored[call.request.job].job
    if job.is_terminal and job.ended_at is not None and now - job.ended_at > TOKEN_ENDS_US:
        raise Unauthenticated("the token of this attempt has ended with its job")
    orders = _orders(tx, request, job, now)
    response = SyncResponse(acked=acked, orders=orders, server_now=now)
    return SyncAnswer(response, bool(request.reports) or orders.version != request.seen)


def orders_for(platform: Platform, request: SyncRequest, now: int) -> Orders:
    """The orders of one supervisor at `now`."""

    rows = platform.scheduler_cache.rows
    return platform.store.view(lambda tx: _orders(tx, request, rows.one(tx, request.job).job, now))


def _orders(tx: Tx, request: SyncRequest, job: Job, now: int) -> Orders:
    # In its first generation a job has made no step.
    resumes = job.attempts > 1 or (job.attempt is not None and job.attempt.generation > 0)
    last_step = lineage.last_step(tx, request.job) if resumes else 0
    wanted = desired(job, request.attempt, request.node_rank, request.incarnation)
    return Orders.from_core(wanted, now, last_step)


def supervisor_code(platform: Platform, asked: Key, digest: str, token: str) -> Path:
    """The path of the code archive for one supervisor (job, attempt, node rank, incarnation).

    Raises Unauthenticated for a wrong token, PermissionDenied for the code of another job and for an
    attempt that is over.
    """
    _, stored = _of_live_attempt(platform, asked, token)
    if stored.facts.code_digest != digest:
        raise PermissionDenied("this is not the code of that job")
    return code.local_archive(platform, digest)


def supervisor_secrets(platform: Platform, asked: Key, token: str) -> dict[str, str]:
    """The values of a job's secrets for one supervisor that is starting; `asked` is its key.

    They are sent until its first sync call and not after it: a token that is stolen later reads nothing.
    Raises Unauthenticated for a wrong token, PermissionDenied for a late call and for an attempt that is
    over, NotFound for a secret that was removed.
    """
    known, stored = _of_live_attempt(platform, asked, token)
    if known.first_seen_at is not None:
        raise PermissionDenied("secrets are sent only to a supervisor that is starting")
    return secret_values(platform, stored, asked[2])


def check_live(platform: Platform, asked: Key, token: str) -> None:
    """Check the token of a supervisor (job, attempt, node rank, incarnation) of a live attempt.

    Raises Unauthenticated, and PermissionDenied for an attempt that is over.
    """
    _of_live_attempt(platform, asked, token)


def _of_live_attempt(platform: Platform, asked: Key, token: str) -> tuple[SupervisorRow, StoredJob]:
    """The supervisor (job, attempt, node rank, incarnation) with a token, and its job.

    Raises Unauthenticated, and PermissionDenied for an attempt that is over: what it needed to start is
    not sent to it any more.
    """

    def look(tx: Tx) -> tuple[SupervisorRow | None, StoredJob | None]:
        return supervisors.find(tx, asked), jobs.find(tx, asked[0])

    known, stored = platform.store.view(look)
    _authenticate(known, token)
    assert known is not None
    attempt = None if stored is None or stored.job.is_terminal else stored.job.attempt
    is_live = (
        attempt is not None
        and attempt.num == asked[1]
        and attempt.nodes[asked[2]].incarnation == asked[3]
        and known.released_at is None
    )
    if stored is None or not is_live:
        raise PermissionDenied("this attempt is over")
    return known, stored


def _known(tx: Tx, calls: Sequence[SyncCall]) -> dict[Key, SupervisorRow]:
    """The rows of the supervisors that call. Raises Unauthenticated."""
    known = supervisors.find_many(tx, [call.key for call in calls])
    for call in calls:
        _authenticate(known.get(call.key), call.token)
    return known


def _authenticate(known: SupervisorRow | None, token: str) -> None:
    """Raise Unauthenticated, with one message for unknown attempts and wrong tokens."""
    stored = "" if known is None else known.token_hash
    if not hmac.compare_digest(stored, token_hash(token)):
        raise Unauthenticated("this is not the token of that supervisor")


def _brings_news(request: SyncRequest, known: SupervisorRow, now: int) -> bool:
    beat = request.heartbeat
    step = known.step if beat.step is None else beat.step
    return (
        bool(request.reports)
        or known.last_seen_at is None
        or now - known.last_seen_at >= _SEEN_EVERY_US
        or (beat.generation, step, beat.phase) != (known.generation, known.step, known.phase)
    )


def _receive(
    tx: Tx,
    request: SyncRequest,
    known: SupervisorRow,
    now: int,
    log_limit: int | None,
    begun: Mapping[int, GenerationRow] | None,
) -> Inbox:
    """Read what a call brings: the events of its job, and changes of rows that the caller stores."""
    seen_at = now if known.last_seen_at is None else known.last_seen_at
    offset = estimate_offset(
        known.clock_offset_us,
        sent_at=request.sent_at,
        received_at=now,
        since_last_us=now - seen_at,
    )
    inbox = Inbox(tx, request.job, request.attempt, request.node_rank, now, offset, log_limit)
    inbox.known = begun
    inbox.known_step = (known.generation, known.step)
    inbox.row |= {"last_seen_at": now, "clock_offset_us": offset}
    if known.first_seen_at is None:
        inbox.row["first_seen_at"] = now
    # That it leaves is its last report: more are acknowledged, so that none is repeated, and dropped.
    has_left = known.released_at is not None
    if not has_left:
        read_heartbeat(inbox, request.heartbeat, known)
    last_seq = known.last_seq
    for report in sorted(request.reports, key=lambda one: one.seq):
        if report.seq > last_seq:
            if not has_left:
                read_report(inbox, report)
            last_seq = report.seq
    inbox.row["last_seq"] = last_seq
    return inbox


def estimate_offset(
    known: int | None, *, sent_at: int, received_at: int, since_last_us: int
) -> int:
    """Microseconds to add to the sender's clock to get the receiver's.

    A sample is the offset plus the delay of one message, so the smallest sample is the best. An old
    minimum ages by the drift of clocks; a sample more than 10 s above it means that a clock was set.
    """
    sample = received_at - sent_at
    if known is None or sample - known > _CLOCK_STEP_US:
        return sample
    return min(sample, known + round(max(0, since_last_us) * _MAX_DRIFT))
