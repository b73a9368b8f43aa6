"""Bounded staleness of workers, and requests that all workers see at the same tick."""

from __future__ import annotations


class Clocks:
    """How many exchanges each worker has made since the job began.

    A worker may go on only while it is at most `bound` exchanges ahead of the slowest.
    """

    def __init__(self, num_workers: int, bound: int) -> None:
        self._at = dict.fromkeys(range(num_workers), 0)
        self._bound = bound

    def start(self, clock: int) -> None:
        """Set the number of exchanges of all workers to `clock`."""
        self._at = dict.fromkeys(self._at, clock)

    def advance(self, worker: int, clock: int) -> None:
        """Record exchange number `clock` of a worker. Raises ValueError out of turn."""
        expected = self._at[worker] + 1
        if clock != expected:
            raise ValueError(f"worker {worker} made exchange {clock}, {expected} was its next")
        if not self.may_go_on(worker):
            raise ValueError(
                f"worker {worker} made exchange {clock} without waiting for the slowest"
            )
        self._at[worker] = clock

    def leave(self, worker: int) -> None:
        """Remove a worker that is done, so that others no longer wait for it."""
        self._at.pop(worker, None)

    def may_go_on(self, worker: int) -> bool:
        """Whether this worker is within the bound of the slowest."""
        return worker not in self._at or self._at[worker] - self.slowest <= self._bound

    @property
    def slowest(self) -> int:
        """The least number of exchanges of any worker that is left."""
        return min(self._at.values(), default=0)


class SharedRequests:
    """Requests that all workers see at the same tick, though they reach it at different times.

    A request is due at the first tick that no worker has asked about yet.
    """

    def __init__(self, num_workers: int) -> None:
        self._asked = dict.fromkeys(range(num_workers), 0)
        self._wanted = 0
        self._due: int | None = None
        self._bits = 0
        self._told: set[int] = set()

    def request(self, bits: int) -> None:
        """Add a request that belongs to no tick."""
        self._wanted |= bits

    def ask(self, worker: int, tick: int, requests: int) -> int:
        """Record that a worker has reached `tick`, with its requests; ticks come in order.

        Returns the requests that are due there, the same for every worker.
        """
        self._wanted |= requests
        self._asked[worker] = tick
        if self._due is None and self._wanted:
            self._due = max(self._asked.values()) + 1
            self._bits, self._wanted, self._told = self._wanted, 0, set()
        if tick != self._due:
            return 0
        self._told.add(worker)
        answer = self._bits
        if self._told >= set(self._asked):
            self._due = None
            # Workers that asked for the same meanwhile have been answered by it.
            self._wanted &= ~answer
        return answer
