"""Nodes kept for one job; apart from the rest, because holes are stored and read again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes kept for one job: nobody else starts there unless gone again by `ready_at`.

    A hole cut by a preemption is kept from plan to plan until its owner starts or `expires_at`;
    `ready_at` None means that nobody knows when the nodes will be free.
    """

    job: int
    nodes: tuple[str, ...]
    ready_at: int | None
    expires_at: int
    victims: tuple[int, ...] = ()
