"""Detection of hung ranks in one generation, and their stacks: at a stall and on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.core.gang.failures import Failure
from phalanx.core.gang.stalls import CapturedStack, StallWatch, with_culprit
from phalanx.core.reasons import Cause
from phalanx.kit.clock import Clock
from phalanx.kit.units import format_duration
from phalanx.schemas.wire.supervision import (
    FailureReport,
    RanksStalledReport,
    RankStacks,
    StacksReport,
)
from phalanx.supervise.eventloop import EventLoop
from phalanx.supervise.ranks.rank import LocalRank
from phalanx.supervise.ranks.records import Put
from phalanx.supervise.ranks.stacks import StackCollection


class StallMonitor:
    """Compares the time since the last step with the stall limit of the job.

    `ending` returns whether the ranks are being ended already.
    """

    def __init__(
        self,
        place: tuple[int, int],
        ranks: list[LocalRank],
        watch: StallWatch,
        *,
        loop: EventLoop,
        clock: Clock,
        put: Put,
        ending: Callable[[], bool],
    ) -> None:
        """`place` is (node rank, generation)."""
        self._node_rank, self._generation = place
        self._ranks, self._watch = ranks, watch
        self._loop, self._clock, self._put, self._ending = loop, clock, put, ending
        self._answered = 0

    def check(self) -> None:
        """Check for a stall; called regularly, after the ranks' records were read."""
        if any(one.report_file.exists() for one in self._ranks):
            self._watch.began()
        limit_s = self._watch.limit_s
        quiet_s = self._watch.look(self._clock.monotonic())
        if quiet_s is not None and not self._ending():
            said = (
                f"no step for {format_duration(quiet_s)}, the limit is {format_duration(limit_s)}"
            )
            StackCollection(self._ranks, self._loop, lambda found: self._stalled(said, found))

    def request_stacks(self, request: int) -> None:
        """Report the stacks of all ranks, once for each request number."""
        if request > self._answered:
            self._answered = request
            StackCollection(
                self._ranks, self._loop, lambda found: self._report_stacks(request, found)
            )

    def _report_stacks(self, request: int, found: list[RankStacks]) -> None:
        fields: dict[str, Any] = {"request": request, "at": self._clock.now(), "ranks": found}
        self._put(lambda seq: StacksReport(seq=seq, generation=self._generation, **fields))

    def _stalled(self, said: str, found: list[RankStacks]) -> None:
        if self._ending() or self._watch.is_on:
            return  # a step was made in the meantime, or the ranks have come to an end
        self._report_stacks(0, found)
        node_rank = self._node_rank
        failure = Failure(Cause.STALLED, None, node_rank, self._clock.now(), said)
        stacks = {one.rank: CapturedStack(node_rank, one.text, one.why) for one in found}
        reported = FailureReport.from_core(with_culprit(failure, stacks))
        number = self._generation
        self._put(lambda seq: RanksStalledReport(seq=seq, generation=number, failure=reported))
