"""Small collectives between the processes of a JAX run. All processes make the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jax.experimental import multihost_utils


class Processes(Protocol):
    """The collectives of a run's processes."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of every process, in the order of ranks."""
        ...

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Return the numbers of every process, equally many from each, in the order of ranks."""
        ...


class SingleProcess:
    """A run of one process."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Return the argument as the only row."""
        return [mine]

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Return the argument as the only row."""
        return [list(mine)]


class JaxProcesses:
    """JAX's own collectives, called on the training thread to have the same order everywhere."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of every process, in the order of ranks."""
        sizes = [row[0] for row in self.numbers([len(mine)])]
        room = np.zeros(max(1, *sizes), dtype=np.uint8)
        room[: len(mine)] = np.frombuffer(mine, dtype=np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(room))
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Return the numbers of every process, each below 2^31, in the order of ranks."""
        row = np.asarray(mine, dtype=np.int32)
        return [
            [int(one) for one in found]
            for found in np.asarray(multihost_utils.process_allgather(row))
        ]


class ProcessChannel:
    """The collectives of savers and agreements, made of those of the processes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of every process, in the order of ranks."""
        return self._processes.gather(mine)

    def broadcast(self, text: str) -> str:
        """Return the text of process 0."""
        return self._processes.gather(text.encode())[0].decode()
