"""One step of the dispatcher: lease commands, execute them outside any transaction, store what followed.

Every command is idempotent and fenced by its attempt, so that one that was cut off half-way by a crash
is simply executed again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from phalanx.core.jobs.events import JobEvent, LaunchFailed
from phalanx.core.jobs.model import Attempt, JobState
from phalanx.errors import ExecutorUnavailable, LeaseLost, PlatformError
from phalanx.errors import LaunchFailed as CouldNotLaunch
from phalanx.executors.protocol import SupervisorRef
from phalanx.kit.backoff import backoff_s
from phalanx.services import code
from phalanx.services.assignments import assignments, code_dir
from phalanx.services.commit import LEAVING, commit_events
from phalanx.services.platform import Platform, token_hash
from phalanx.store import jobs, outbox, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.outbox import LeasedCommand

_LOG = logging.getLogger(__name__)
LEASE_S = 60.0
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Who executes: `owner` names this process, `token` is fresh for each of its lives."""

    owner: str
    token: str


def dispatch_step(platform: Platform, who: Dispatcher, now: int, limit: int = 16) -> int | None:
    """Execute what is open; returns when to look again, or None when nothing is."""

    def take(tx: Tx) -> list[LeasedCommand]:
        return outbox.lease(
            tx,
            owner=who.owner,
            token=who.token,
            now=now,
            expires_at=now + round(LEASE_S * _US),
            limit=limit,
        )

    if platform.store.view(lambda tx: _is_due(tx, now)):
        for command in platform.store.transact(take):
            _execute(platform, command, now)
    return platform.store.view(outbox.next_at)


def _is_due(tx: Tx, now: int) -> bool:
    at = outbox.next_at(tx)
    return at is not None and at <= now


def _execute(platform: Platform, command: LeasedCommand, now: int) -> None:
    try:
        if command.kind == "launch_attempt":
            events = _launch(platform, command)
        else:
            events = _kill(platform, command)
    except ExecutorUnavailable as error:
        _try_later(platform, command, error, now)
        return
    _finish(platform, command, events, now)


def _finish(platform: Platform, command: LeasedCommand, events: list[JobEvent], now: int) -> None:
    def work(tx: Tx) -> None:
        outbox.finish(tx, command, now)
        commit_events(tx, command.job, events, now, "dispatcher")
        tx.touched.topics.add(LEAVING)

    try:
        platform.store.transact(work)
    except LeaseLost as error:
        _LOG.warning("%s; its new owner stores the result", error)


def _try_later(platform: Platform, command: LeasedCommand, error: PlatformError, now: int) -> None:
    """For as long as it takes: only the executor may say that nothing was started."""
    wait_s = backoff_s(command.tries, first_s=0.5, max_s=30.0)
    later = now + round(wait_s * _US)
    platform.store.transact(
        lambda tx: outbox.retry(tx, command, not_before=later, error=error.message)
    )


def _live_attempt(stored: StoredJob, command: LeasedCommand) -> Attempt | None:
    """The attempt that a command is for, or None when it is over: the fence."""
    attempt = stored.job.attempt
    return attempt if attempt is not None and attempt.num == command.attempt else None


# -- launch --------------------------------------------------------------------------------------


def _launch(platform: Platform, command: LeasedCommand) -> list[JobEvent]:
    """Start one supervisor per node rank; LaunchFailed for those that could not be."""
    stored = platform.store.view(lambda tx: jobs.load(tx, command.job))
    attempt = _live_attempt(stored, command)
    # A job that was stopped before its launch starts nothing: polling then finds every node gone.
    if attempt is None or stored.job.state is JobState.STOPPING:
        return []
    hashed = token_hash(platform.supervisor_token(command.job, attempt.num))
    platform.store.transact(
        lambda tx: supervisors.expect(tx, command.job, attempt.num, len(attempt.nodes), hashed)
    )
    started = 0
    try:
        target = code_dir(platform.home, command.job, attempt.num)
        code.unpack(platform.home, stored.facts.code_digest, target)
        nodes = {node.id: node for node in platform.executor.inventory()}
        for node, assignment in assignments(platform, stored, attempt, nodes):
            platform.executor.start(node, assignment)
            started += 1
    except CouldNotLaunch as error:
        return _not_launched(attempt, started, error.message)
    except KeyError as error:
        return _not_launched(attempt, started, f"node {error.args[0]} is no longer there")
    return []


def _not_launched(attempt: Attempt, started: int, message: str) -> list[JobEvent]:
    return [LaunchFailed(attempt.num, rank, message) for rank in range(started, len(attempt.nodes))]


# -- kill ----------------------------------------------------------------------------------------


def _kill(platform: Platform, command: LeasedCommand) -> list[JobEvent]:
    """Kill the attempt's supervisors; polling confirms that they are gone."""
    stored = platform.store.view(lambda tx: jobs.load(tx, command.job))
    attempt = _live_attempt(stored, command)
    for node_rank in range(0 if attempt is None else len(attempt.nodes)):
        platform.executor.stop(SupervisorRef(command.job, command.attempt, node_rank))
    return []
