"""Announce a tunnel to the supervisor of a rank: a command or a connection that a user asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.gang.roles import Part
from phalanx.core.jobs.events import TunnelRequested
from phalanx.core.jobs.model import NodePhase
from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.errors import Conflict, UserError
from phalanx.kit.text import job_label
from phalanx.services.lifecycle.commit import commit_events
from phalanx.services.platform import Platform
from phalanx.store import jobs
from phalanx.store.database import Tx
from phalanx.store.tenancy import audit


@dataclass(frozen=True, slots=True)
class TunnelPlace:
    """The node of the live attempt that a rank runs on."""

    job: int
    attempt: int
    generation: int
    node_rank: int


def place_of(platform: Platform, num: int, rank: int) -> TunnelPlace:
    """Where a rank of the gang runs. Raises NotFound, UserError, and Conflict where it does not run."""

    def work(tx: Tx) -> TunnelPlace:
        job = jobs.load(tx, num).job
        attempt, label = job.attempt, job_label(num)
        if attempt is None:
            raise Conflict(f"no rank of {label} runs: the job is {job.state}")
        node_rank = _node_of(job.policy.parts(len(attempt.placement.shares)), rank)
        if node_rank is None:
            raise UserError(f"{label} has no rank {rank}", f"see `phalanx show {label}`")
        if attempt.nodes[node_rank].phase is not NodePhase.UP:
            raise Conflict(f"rank {rank} of {label} does not run", "try again when it does")
        return TunnelPlace(num, attempt.num, attempt.generation, node_rank)

    return platform.store.view(work)


def _node_of(parts: Sequence[Part], rank: int) -> int | None:
    """The node rank in the gang that runs a rank of it."""
    nodes = ((node, part) for part in parts for node in part.nodes)
    return next((node for node, part in nodes if rank in part.node_ranks(node)), None)


def is_live(platform: Platform, num: int, attempt: int) -> bool:
    """Whether an attempt of a job is the one that runs now."""

    def work(tx: Tx) -> bool:
        found = platform.scheduler_cache.rows.one(tx, num).job.attempt
        return found is not None and found.num == attempt

    return platform.store.view(work)


def announce(
    platform: Platform, place: TunnelPlace, purpose: TunnelPurpose, now: int, actor: str
) -> None:
    """Tell the supervisor of the rank that a tunnel waits.

    The request is in the history of the job, its command in the audit log. Raises NotFound, and Conflict
    where the attempt is over.
    """
    label = job_label(place.job)
    what = f"{purpose.kind} in rank {purpose.rank} of {label}"
    asked = list(purpose.command) if purpose.kind == "exec" else {"port": purpose.port}
    event = TunnelRequested(purpose.kind, purpose.rank, place.node_rank)

    def work(tx: Tx) -> None:
        audit.describe(tx, what, None, asked)
        before = jobs.load(tx, place.job).job.attempt
        now_is = commit_events(tx, place.job, [event], now, actor).job.attempt
        known = before is not None and (before.num, before.generation)
        if known != (place.attempt, place.generation):
            raise Conflict("the ranks were restarted a moment ago", "try again")
        if now_is is None or before is None or now_is.tunnels == before.tunnels:
            raise Conflict(f"rank {purpose.rank} of {label} does not run", "try again when it does")

    platform.store.transact(work)
