"""The events of a simulation in time order, and the time of the next planning pass."""

from __future__ import annotations

import heapq

Event = tuple[str, int, int]
"""What happens (`submit`, `finish`, …), the number of the job or fault, and the run's version."""


class EventQueue:
    """Events in time order on a virtual clock. Planning passes run on a grid of `grid_s` seconds."""

    def __init__(self, grid_s: float) -> None:
        self.now_s = 0.0
        self.num_submissions = 0  # submissions that are still to come
        self._grid_s = grid_s
        self._heap: list[tuple[float, int, str, int, int]] = []
        self._seq = 0
        self._next_pass: float | None = None

    def at(self, at_s: float, kind: str, num: int, version: int = 0) -> None:
        """Add an event. Events of one moment happen in the order in which they were added."""
        self._seq += 1
        self.num_submissions += kind == "submit"
        heapq.heappush(self._heap, (at_s, self._seq, kind, num, version))

    def pass_at(self, at_s: float) -> None:
        """Request a planning pass at this time at the latest."""
        self._next_pass = at_s if self._next_pass is None else min(self._next_pass, at_s)

    def pass_on_grid(self) -> None:
        """Request a planning pass at the next point of the grid."""
        grid = self._grid_s
        self.pass_at(-(-self.now_s // grid) * grid if grid else self.now_s)

    def next(self, until_s: float | None) -> Event | None:
        """Advance the clock to the next event and return it; None at the end.

        A planning pass is an event of kind `pass`; it follows the events of its moment.
        """
        event_s = self._heap[0][0] if self._heap else float("inf")
        pass_s = self._next_pass if self._next_pass is not None else float("inf")
        at_s = min(event_s, pass_s)
        if at_s == float("inf"):
            return None
        if until_s is not None and at_s > until_s:
            self.now_s = until_s
            return None
        self.now_s = at_s
        if event_s > pass_s:
            self._next_pass = None
            return "pass", 0, 0
        _, _, kind, num, version = heapq.heappop(self._heap)
        self.num_submissions -= kind == "submit"
        return kind, num, version
