"""Detection of hung ranks in one generation, and their stacks: at a stall and on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.core.gang.activities import Activity, activity_of
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.stalls import RankUsage, StallWatch, Suspicion, with_culprit
from phalanx.core.reasons import Cause
from phalanx.kit.clock import Clock
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
from phalanx.supervise.ranks.usage import UsageMeter


class StallMonitor:
    """Feeds the stall detection of one generation, and reports the stalls that it finds.

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
        self._meter = UsageMeter()
        self._answered = 0
        self._collecting = False

    def check(self) -> None:
        """Check for a stall; called regularly, after the ranks' records were read."""
        if any(one.report_file.exists() for one in self._ranks):
            self._watch.began()
        now_s = self._clock.monotonic()
        if self._meter.is_due(now_s):
            self._measure(now_s)
        suspicion = self._watch.look(now_s)
        if suspicion is not None and not self._ending() and not self._collecting:
            self._collecting = True
            StackCollection(self._ranks, self._loop, lambda found: self._judge(suspicion, found))

    def _measure(self, now_s: float) -> None:
        """Sample what the ranks use; only ranks that run count."""
        running = {one.rank: one for one in self._ranks if one.running}
        roots = {rank: one.pid for rank, one in running.items() if one.pid is not None}
        printed = {
            rank: sum(stream.capture.num_written for stream in running[rank].streams)
            for rank in roots
        }
        active, stopped = self._meter.sample(now_s, roots, printed)
        self._watch.used(RankUsage(active, stopped, len(roots)))

    def request_stacks(self, request: int) -> None:
        """Report the stacks of all ranks, once for each request number."""
        if request > self._answered:
            self._answered = request
            StackCollection(
                self._ranks, self._loop, lambda found: self._report_stacks(request, found)
            )

    def _report_stacks(self, request: int, found: list[RankStacks]) -> None:
        excuse = self._watch.excuse(_activities(found))
        at = self._clock.now()
        fields: dict[str, Any] = {"request": request, "at": at, "ranks": found, "excuse": excuse}
        self._put(lambda seq: StacksReport(seq=seq, generation=self._generation, **fields))

    def _judge(self, suspicion: Suspicion, found: list[RankStacks]) -> None:
        self._collecting = False
        if self._ending() or self._watch.judge(suspicion, _activities(found)):
            return  # they go on, do something that may take longer, or have come to an end
        self._report_stacks(0, found)
        node_rank = self._node_rank
        failure = Failure(Cause.STALLED, None, node_rank, self._clock.now(), suspicion.said)
        stacks = {one.rank: one.to_core(node_rank) for one in found}
        reported = FailureReport.from_core(with_culprit(failure, stacks))
        number = self._generation
        self._put(lambda seq: RanksStalledReport(seq=seq, generation=number, failure=reported))


def _activities(found: list[RankStacks]) -> frozenset[Activity]:
    return frozenset(activity_of(one.text, one.why) for one in found)
