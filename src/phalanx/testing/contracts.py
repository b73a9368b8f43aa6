"""Contracts of small gangs, for tests that start supervisors and ranks without a spec."""

from __future__ import annotations

from typing import Any

from phalanx.core.contract.gang import GangContract, WorldShape
from phalanx.core.contract.job import JobIdentity, RankCommand, RoleContract
from phalanx.core.gang.roles import WORKER


def gang_contract(
    job: int,
    *,
    attempt: int = 1,
    num_nodes: int = 1,
    ranks_per_node: int = 1,
    checkpoint_dir: str = "/nowhere",
    job_started_at: int | None = None,
    **role: Any,
) -> GangContract:
    """The contract of a gang with one role; `role` are fields of its `RoleContract`."""
    world = WorldShape(num_nodes, ranks_per_node)
    fields: dict[str, Any] = {
        "name": WORKER,
        "command": RankCommand(("true",)),
        "reference_world": world.size,
        **role,
    }
    return GangContract(
        job=JobIdentity(job, "probe", "tests"),
        attempt=attempt,
        world=world,
        role=RoleContract(**fields),
        checkpoint_dir=checkpoint_dir,
        job_started_at=job_started_at,
    )
