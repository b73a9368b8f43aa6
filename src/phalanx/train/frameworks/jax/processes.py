"""What the processes of a run tell one another, in collectives of their own: all make the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jax.experimental import multihost_utils


class Processes(Protocol):
    """Small collectives."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Everybody's bytes, in the order of ranks."""
        ...

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Everybody's numbers, as many from each, in the order of ranks."""
        ...


class SingleProcess:
    """A run of one process."""

    def gather(self, mine: bytes) -> list[bytes]:
        """One's own."""
        return [mine]

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """One's own."""
        return [list(mine)]


class JaxProcesses:
    """Over JAX's own collectives: on the thread that trains, so that their order is the same everywhere."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Everybody's bytes, in the order of ranks."""
        sizes = [row[0] for row in self.numbers([len(mine)])]
        room = np.zeros(max(1, *sizes), dtype=np.uint8)
        room[: len(mine)] = np.frombuffer(mine, dtype=np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(room))
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Everybody's numbers, as many from each, in the order of ranks; each below 2^31."""
        row = np.asarray(mine, dtype=np.int32)
        return [
            [int(one) for one in found]
            for found in np.asarray(multihost_utils.process_allgather(row))
        ]
