"""What a gang with several roles is to the job machine: its size, and whose end counts."""

from __future__ import annotations

from phalanx.core.gang.placement import Placement
from phalanx.core.gang.roles import Part, part_at
from phalanx.core.jobs.model import Attempt, Job, NodeOutcome, NodePhase
from phalanx.errors import InvariantBroken


def check_shape(job: Job, placement: Placement) -> None:
    """Raises InvariantBroken for a placement that does not hold the whole gang."""
    terms = job.policy
    sizes = [len(share.slots) for share in placement.shares]
    parts = terms.parts(len(sizes))
    least = terms.shape.nodes if terms.min_nodes is None else terms.min_nodes
    wanted = [part.slots_per_node for part in parts for _ in part.nodes]
    if sizes != wanted or not least <= parts[0].num_nodes <= terms.shape.nodes:
        raise InvariantBroken(f"job {job.num}: placement {sizes} does not hold the gang {terms}")


def parts_now(job: Job, attempt: Attempt) -> tuple[Part, ...]:
    """Where each role of the live attempt lies."""
    return job.policy.parts(len(attempt.nodes))


def is_spared(job: Job, attempt: Attempt, node_rank: int) -> bool:
    """Whether the job goes on when the ranks of this node fail."""
    return bool(job.policy.roles) and not part_at(parts_now(job, attempt), node_rank).required


def has_failed(attempt: Attempt, part: Part) -> bool:
    """Whether ranks of this part have failed in the current generation."""
    return any(attempt.nodes[rank].outcome is NodeOutcome.FAILED for rank in part.nodes)


def is_done(job: Job, attempt: Attempt) -> bool:
    """Whether every rank that the job needs has finished."""
    parts = parts_now(job, attempt)
    needed = [attempt.nodes[rank] for part in parts if part.required for rank in part.nodes]
    return all(
        node.phase is NodePhase.ENDED and node.outcome is NodeOutcome.SUCCEEDED for node in needed
    )
