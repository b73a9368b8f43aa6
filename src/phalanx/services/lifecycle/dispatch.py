"""One step of the dispatcher: lease commands, execute them outside any transaction, store the results.

Every command is idempotent and fenced by its attempt number, so a command that a crash interrupted is
simply executed again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.core.contract.job import JobContract
from phalanx.core.gang.placement import Node
from phalanx.core.jobs.events import JobEvent, LaunchFailed
from phalanx.core.jobs.model import Attempt, JobState
from phalanx.core.reasons import Cause
from phalanx.errors import ExecutorUnavailable, LaunchError, LeaseLost, SpecInvalid
from phalanx.executors.protocol import SupervisorRef
from phalanx.kit.clock import backoff_s
from phalanx.kit.text import job_label, replace_unencodable, shorten
from phalanx.schemas.wire.assignments import Assignment, ExpectedFacts
from phalanx.services.lifecycle import code
from phalanx.services.lifecycle.assignments import assignments, code_dir, contract_of
from phalanx.services.lifecycle.commit import LEAVING, commit_events
from phalanx.services.lifecycle.provenance.attempt_facts import expected_of
from phalanx.services.lifecycle.provenance.digest import provenance_digest
from phalanx.services.platform import Platform, token_hash
from phalanx.services.secrets.values import unreadable
from phalanx.store import outbox, supervisors
from phalanx.store.database import Tx
from phalanx.store.jobs import StoredJob
from phalanx.store.outbox import LeasedCommand

_LOG = logging.getLogger(__name__)
LEASE_S = 60.0
# After this many tries that an internal error ended, a launch counts as failed.
_LAUNCH_TRIES = 5
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """The process that leases commands: `owner` is its name, `token` is new in each of its lives."""

    owner: str
    token: str


def dispatch_step(platform: Platform, owner: LeaseOwner, now: int, limit: int = 16) -> int | None:
    """Execute due commands; returns when the next one is due, or None when none is open."""

    def take(tx: Tx) -> tuple[list[LeasedCommand], dict[int, StoredJob]]:
        commands = outbox.lease(
            tx,
            owner=owner.owner,
            token=owner.token,
            now=now,
            expires_at=now + round(LEASE_S * _US),
            limit=limit,
        )
        nums = list(dict.fromkeys(command.job for command in commands))
        stored = platform.scheduler_cache.rows.some(tx, nums)
        _expect(tx, platform, [c for c in commands if _is_launch(c, stored[c.job])], stored)
        return commands, stored

    if platform.store.view(lambda tx: _is_due(tx, now)):
        _execute(platform, *platform.store.transact(take), now)
    return platform.store.view(outbox.next_at)


def _is_due(tx: Tx, now: int) -> bool:
    at = outbox.next_at(tx)
    return at is not None and at <= now


def _execute(
    platform: Platform, commands: list[LeasedCommand], stored: dict[int, StoredJob], now: int
) -> None:
    """Execute leased commands between two transactions: the lease and the result."""
    done: list[tuple[LeasedCommand, list[JobEvent]]] = []
    started = all(_is_launch(command, stored[command.job]) for command in commands)
    nodes: dict[str, Node] = {}
    for command in commands:
        platform.may_act()
        try:
            if command.kind == "launch_attempt":
                nodes = nodes or {node.id: node for node in platform.cluster()}
                events = _launch(platform, command, stored[command.job], nodes)
            else:
                events = _kill(platform, command, stored[command.job])
        except ExecutorUnavailable as error:
            _try_later(platform, command, error.message, now)
            continue
        except Exception as error:
            # An error of one job must not keep the commands of other jobs from being executed.
            _LOG.exception(
                "%s of job %d cannot be executed",
                command.kind,
                command.job,
                extra={"event": "command_failed", "job": command.job},
            )
            said = replace_unencodable(shorten(f"{type(error).__name__}: {error}", 500))
            given_up = _given_up(platform, command, stored[command.job], said)
            if not given_up:
                _try_later(platform, command, said, now)
                continue
            events = given_up
        done.append((command, events))
    _finish(platform, done, now, () if started else (LEAVING,))


def _given_up(
    platform: Platform, command: LeasedCommand, stored: StoredJob, error: str
) -> list[JobEvent]:
    """The end of a launch that an internal error has stopped `_LAUNCH_TRIES` times; else nothing.

    What may have been started is killed, and the launch ends only once the executor confirms that nothing
    of it is left.
    """
    attempt = _live_attempt(stored, command)
    if command.kind != "launch_attempt" or attempt is None or command.tries < _LAUNCH_TRIES:
        return []
    refs = [_ref(command, attempt, rank) for rank in attempt.to_launch]
    try:
        for ref in refs:
            platform.executor.stop(ref)
        if any(status.alive for status in platform.executor.poll(refs)):
            return []
    except Exception:
        _LOG.exception(
            "the supervisors of job %d cannot be stopped",
            command.job,
            extra={"event": "supervisors_not_stopped", "job": command.job},
        )
        return []
    said = f"an internal error of the platform: {error}"
    return _not_launched(attempt, attempt.to_launch, said)


def _ref(command: LeasedCommand, attempt: Attempt, node_rank: int) -> SupervisorRef:
    incarnation = attempt.nodes[node_rank].incarnation
    pool = attempt.placement.pool
    return SupervisorRef(command.job, command.attempt, node_rank, pool, incarnation)


def _is_launch(command: LeasedCommand, stored: StoredJob) -> bool:
    """Whether the command still has something to start.

    A job that was stopped before its launch starts nothing: polling then finds no supervisor.
    """
    live = _live_attempt(stored, command) is not None
    return command.kind == "launch_attempt" and live and stored.job.state is not JobState.STOPPING


def _expect(
    tx: Tx, platform: Platform, commands: list[LeasedCommand], stored: dict[int, StoredJob]
) -> None:
    fresh: dict[supervisors.Key, str] = {}
    for command in commands:
        attempt = _live_attempt(stored[command.job], command)
        assert attempt is not None
        hashed = functools.cache(functools.partial(_token_hash, platform, command))
        for rank in attempt.to_launch:
            incarnation = attempt.nodes[rank].incarnation
            fresh[command.job, attempt.num, rank, incarnation] = hashed(incarnation)
    supervisors.expect(tx, fresh)


def _token_hash(platform: Platform, command: LeasedCommand, incarnation: int) -> str:
    return token_hash(platform.supervisor_token(command.job, command.attempt, incarnation))


def _finish(
    platform: Platform,
    done: list[tuple[LeasedCommand, list[JobEvent]]],
    now: int,
    topics: tuple[str, ...],
) -> None:
    """Store the results and notify `topics`: supervisors that are gone are polled at once."""

    def work(tx: Tx) -> None:
        outbox.finish(tx, [command for command, _ in done], now)
        for command, events in done:
            if events:
                commit_events(tx, command.job, events, now, "dispatcher")
        tx.touched.topics.update(topics)

    if not done:
        return
    try:
        platform.store.transact(work)
    except LeaseLost as error:
        if len(done) > 1:
            for one in done:
                _finish(platform, [one], now, topics)
        else:
            _LOG.warning("%s; the new owner stores the result", error)


def _try_later(platform: Platform, command: LeasedCommand, error: str, now: int) -> None:
    """Retry without limit: only the executor can confirm that nothing was started."""
    wait_s = backoff_s(command.tries, first_s=0.5, max_s=30.0)
    later = now + round(wait_s * _US)
    try:
        platform.store.transact(lambda tx: outbox.retry(tx, command, not_before=later, error=error))
    except LeaseLost as lost:
        _LOG.warning("%s; the new owner retries", lost)


def _live_attempt(stored: StoredJob, command: LeasedCommand) -> Attempt | None:
    """The live attempt that a command belongs to, or None when that attempt has ended (the fence)."""
    attempt = stored.job.attempt
    return attempt if attempt is not None and attempt.num == command.attempt else None


# -- launch --------------------------------------------------------------------------------------


def _launch(
    platform: Platform, command: LeasedCommand, stored: StoredJob, nodes: dict[str, Node]
) -> list[JobEvent]:
    """Start the supervisors of a launch; a LaunchFailed event for each node rank that did not start."""
    attempt = _live_attempt(stored, command)
    if attempt is None or not _is_launch(command, stored):
        return []
    left = list(attempt.to_launch)
    try:
        digest = stored.facts.code_digest
        # Without code the executor creates an empty folder on the nodes.
        if digest is not None:
            code.unpack(platform, digest, code_dir(platform.home, command.job, attempt.num))
        contract = contract_of(stored.facts)
        why = unreadable(platform, stored.facts.project, contract.secrets)
        if why is not None:
            return _not_launched(attempt, left, why.message, why.cause)
        placed = assignments(platform, stored, attempt, nodes, contract)
        placed = _with_provenance(platform, stored, contract, placed)
        # Not isinstance: it looks at every member of the protocol for each launch.
        if hasattr(platform.executor, "reserve") and not attempt.ranks_may_start:
            platform.executor.reserve(attempt.placement, [assignment for _, assignment in placed])
        for node, assignment in placed:
            platform.executor.start(node, assignment)
            left.remove(assignment.node_rank)
    except LaunchError as error:
        return _not_launched(attempt, left, error.message, Cause(error.cause))
    except SpecInvalid as error:
        return _not_launched(attempt, left, error.message)
    except KeyError as error:
        return _not_launched(attempt, left, f"node {error.args[0]} has left the pool")
    return []


def _with_provenance(
    platform: Platform,
    stored: StoredJob,
    contract: JobContract,
    placed: list[tuple[Node, Assignment]],
) -> list[tuple[Node, Assignment]]:
    """The assignments with the digest of the job's provenance, and with what a clone has to find.

    Only nodes of the first role compare: other roles may run other interpreters.
    """
    digest, repeats = provenance_digest(stored.facts, contract), contract.repeats
    expects = None
    if repeats is not None and repeats.require_same:
        facts = platform.store.view(lambda tx: expected_of(tx, repeats.job))
        expects = ExpectedFacts(job=job_label(repeats.job), facts=dict(facts))
    found = []
    for node, one in placed:
        own = {"gang": replace(one.gang, provenance=digest)}
        found.append(
            (node, one.model_copy(update=own | {"expects": expects if one.leads else None}))
        )
    return found


def _not_launched(
    attempt: Attempt, left: Sequence[int], message: str, cause: Cause = Cause.START_FAILED
) -> list[JobEvent]:
    return [LaunchFailed(attempt.num, rank, message, cause) for rank in left]


# -- kill ----------------------------------------------------------------------------------------


def _kill(platform: Platform, command: LeasedCommand, stored: StoredJob) -> list[JobEvent]:
    """Kill the attempt's supervisors; polling confirms that they are gone."""
    attempt = _live_attempt(stored, command)
    if attempt is not None:
        for node_rank in range(len(attempt.nodes)):
            platform.executor.stop(_ref(command, attempt, node_rank))
    return []
