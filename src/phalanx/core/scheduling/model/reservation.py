"""The reservation of nodes for one job, a module of its own because it is stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for one job: another job starts there only if it ends by `ready_at`.

    The reservation of a preemption is kept from plan to plan until its owner starts or
    `expires_at`; `ready_at` None means that it is unknown when the nodes will be free.
    """

    job: int
    nodes: tuple[str, ...]
    ready_at: int | None
    expires_at: int
    victims: tuple[int, ...] = ()
