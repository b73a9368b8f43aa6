"""The state that the planner keeps from pass to pass and that is stored: reservations and past usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_US = 1_000_000


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


@dataclass(frozen=True, slots=True)
class Usage:
    """A project's decayed average of slots up to `at`, microseconds UTC, and what it has held since."""

    project: str
    average_slots: float
    held_slots: int
    at: int


def decayed_average(average: float, held: float, elapsed_s: float, half_life_s: float) -> float:
    """Return the average of slots after `elapsed_s` seconds with `held` slots in use.

    What was used a half-life ago counts half.
    """
    kept: float = 0.5 ** (max(0.0, elapsed_s) / half_life_s)
    return average * kept + held * (1.0 - kept)


def past_slots(usage: Usage | None, half_life_s: float, now: int) -> float:
    """Return the decayed average of slots that a project held up to now."""
    if usage is None:
        return 0.0
    elapsed_s = (now - usage.at) / _US
    return decayed_average(usage.average_slots, usage.held_slots, elapsed_s, half_life_s)


def changed_usage(
    known: Mapping[str, Usage], held: Mapping[str, int], half_life_s: float, now: int
) -> dict[str, Usage]:
    """Return the usage of the projects that hold another number of slots than `known` says.

    `held` maps project names to the slots held now.
    """
    changed = {}
    for name in {*known, *held}:
        usage, slots = known.get(name), held.get(name, 0)
        if usage is None or usage.held_slots != slots:
            changed[name] = Usage(name, past_slots(usage, half_life_s, now), slots, now)
    return changed
