"""Fragmentation: free slots of a host that no typical job can use because CPUs or memory run short.

A `DemandProfile` counts what queued and running jobs request besides slots. From it follows how many free
slots of a host a typical job could not use. Placement puts a share where that number grows least (the idea
of "Beware of Fragmentation", ATC 2023, with the mix of jobs reduced to the CPUs and memory for each slot).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from phalanx.core.gang.placement import GangShape

_Key = TypeVar("_Key")
_State = tuple[tuple[int, ...], int, int]

_STEPS = 4
"""Steps to each doubling of CPUs for a slot: jobs that are nearly alike count as alike."""
_QUANTILES = 9
_PARTS = 16
_MOST_KNOWN = 200_000
_TIGHTER = 0.02
"""Weight of a leftover slot relative to a stranded one: breaks near ties."""


@dataclass(frozen=True, slots=True)
class TypicalDemand:
    """CPUs for each slot, by quantiles of the requested slots, and memory for each slot.

    `wider[n]` is the part of all requested slots in shares of more than n slots.
    """

    cpus: tuple[float, ...]
    memory: float
    wider: tuple[float, ...]

    known: dict[_State, float] = field(default_factory=dict, compare=False, repr=False)
    regrets: dict[tuple[_State, tuple[int, int], tuple[int, int]], float] = field(
        default_factory=dict, compare=False, repr=False
    )

    def stranded(self, frees: tuple[int, ...], cpus: int, memory_bytes: int) -> float:
        """Free slots, of those on the nodes of one host, that a typical job could not use."""
        state = (frees, cpus, memory_bytes)
        found = self.known.get(state)
        if found is None:
            free = sum(frees)
            floor = max(free - memory_bytes / self.memory if self.memory else 0.0, 0.0)
            lost = 0.0
            for each in self.cpus:
                short = free - cpus / each if each else 0.0
                lost += short if short > floor else floor
            wider, last = self.wider, len(self.wider)
            narrow = sum([n * wider[n] for n in frees if n < last])
            _forget(self.known)
            found = self.known[state] = lost / len(self.cpus) + narrow
        return found

    def regret(
        self,
        frees: tuple[int, ...],
        cpus: int,
        memory_bytes: int,
        taken: tuple[int, int],
        wants: tuple[int, int],
    ) -> float:
        """Return how many more slots are stranded by a placement on the host.

        `taken` is (shares, slots of each), `wants` (CPUs, bytes). Of equal hosts the fuller one costs less.
        """
        key = ((frees, cpus, memory_bytes), taken, wants)
        found = self.regrets.get(key)
        if found is None:
            before = self.stranded(frees, cpus, memory_bytes)
            shares, slots = taken
            after = sorted(frees)
            for at, n in enumerate(after):
                if shares and n >= slots:
                    after[at], shares = n - slots, shares - 1
            left = cpus - wants[0]
            mean = sum(self.cpus) / len(self.cpus)
            room = sum(after) + (left / mean if mean else 0.0)
            lost = self.stranded(tuple(after), left, memory_bytes - wants[1]) - before
            _forget(self.regrets)
            found = self.regrets[key] = lost + _TIGHTER * room
        return found


@dataclass(slots=True)
class DemandProfile:
    """Requested slots, by CPUs for each slot and by the width of a share."""

    slots: int = 0
    memory_bytes: int = 0
    by_cpus: dict[int | None, int] = field(default_factory=dict)
    by_width: dict[int, int] = field(default_factory=dict)
    _known: TypicalDemand | None = field(default=None, compare=False)
    _stale: bool = field(default=True, compare=False)

    def add(self, shapes: Sequence[GangShape], cpus: int, memory_bytes: int, sign: int = 1) -> None:
        """Add (+1) or remove (-1) a job of these shapes; CPUs and memory are for each share."""
        self._stale = True
        for shape in shapes:
            width = shape.slots_per_node
            if not width:
                continue
            slots = sign * shape.num_slots
            self.slots += slots
            self.memory_bytes += sign * shape.nodes * memory_bytes
            step = _step(cpus / width) if cpus else None
            _count(self.by_cpus, step, slots)
            _count(self.by_width, width, slots)

    def typical(self) -> TypicalDemand | None:
        """Return the profile in short; None while no job requests anything besides slots."""
        if not self.slots or not (self.memory_bytes or any(s is not None for s in self.by_cpus)):
            return None
        if self._stale:
            self._stale = False
            memory = self.memory_bytes / self.slots
            memory = 2.0 ** (_step(memory) / _STEPS) if memory else 0.0
            fresh = TypicalDemand(self._quantiles(), memory, self._wider())
            # Usually equal to the previous profile, which has many results cached.
            if fresh != self._known:
                self._known = fresh
        return self._known

    def _quantiles(self) -> tuple[float, ...]:
        ordered = sorted(self.by_cpus, key=lambda step: -math.inf if step is None else step)
        found: list[float] = []
        passed = 0
        for step in ordered:
            passed += self.by_cpus[step]
            while (len(found) + 0.5) * self.slots / _QUANTILES < passed and len(found) < _QUANTILES:
                found.append(0.0 if step is None else 2.0 ** (step / _STEPS))
        return tuple(found)

    def _wider(self) -> tuple[float, ...]:
        found: list[float] = []
        left = self.slots
        for width in range(max(self.by_width)):
            left -= self.by_width.get(width, 0)
            found.append(round(_PARTS * left / self.slots) / _PARTS)
        return tuple(found)


def _step(ratio: float) -> int:
    return round(_STEPS * math.log2(ratio))


def _forget(known: dict[_Key, float]) -> None:
    if len(known) >= _MOST_KNOWN:
        known.clear()


def _count(counts: dict[_Key, int], key: _Key, step: int) -> None:
    left = counts.get(key, 0) + step
    if left:
        counts[key] = left
    else:
        del counts[key]
