"""Roles as callers name them: from a role and ranks in it to the ranks of the gang, and back."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.gang.roles import Part, part_of_rank
from phalanx.errors import UserError
from phalanx.kit.text import job_label
from phalanx.services.queries.views import parts_of
from phalanx.store.jobs import StoredJob


def ranks_of(stored: StoredJob, role: str | None, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks of the gang that are meant: all of a role, or these of it. Empty: every rank.

    Raises UserError for a role that the job does not have, and for ranks that the role does not have.
    """
    if role is None:
        return tuple(ranks)
    parts = parts_of(stored)
    label = job_label(stored.job.num)
    part = next((one for one in parts if one.name == role), None)
    if part is None:
        there = ", ".join(one.name for one in parts)
        raise UserError(f"{label} has no role {role}", f"it has {there}")
    beyond = [rank for rank in ranks if not 0 <= rank < part.world_size]
    if beyond:
        raise UserError(
            f"role {role} of {label} has no rank {beyond[0]}",
            f"it has {part.world_size}, counted from 0",
        )
    return tuple(part.first_rank + rank for rank in ranks) if ranks else tuple(part.ranks)


def role_of(parts: Sequence[Part], rank: int) -> tuple[str, int | None]:
    """The role of a rank of the gang, and its rank in it; empty for a gang with one."""
    part = part_of_rank(parts, rank) if len(parts) > 1 else None
    return ("", None) if part is None else (part.name, rank - part.first_rank)
