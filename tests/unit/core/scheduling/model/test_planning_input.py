"""The values that the planner reads: sizes, waits and patience of queued jobs, and reasons of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import Plan, PlanningInput
from phalanx.core.scheduling.model.outcome import PendingReasons
from support.clusters import queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
ROLES = (GangShape(2, 3, 3), RoleShape(1, 0, 1, "head"))


class TestSizes:
    @pytest.mark.parametrize(
        ("facts", "slots", "least"),
        [
            ({}, 16, 16),
            ({"min_nodes": 1}, 16, 4),
            ({"min_nodes": 4}, 16, 16),
            ({"roles": ROLES}, 22, 22),
            ({"roles": ROLES, "min_nodes": 3}, 22, 18),
        ],
    )
    def test_all_roles_count_and_only_the_first_is_elastic(
        self, facts: dict[str, object], slots: int, least: int
    ) -> None:
        job = queued(1, 4, 4, **facts)
        assert (job.num_slots, job.least_slots) == (slots, least)

    def test_a_changed_job_is_counted_anew(self) -> None:
        assert replace(queued(1, 4, 4), shape=GangShape(1, 2, 2)).num_slots == 2

    def test_running_jobs_hold_what_their_shares_hold(self) -> None:
        assert running(1, {0: (0, 1), 2: (3,), 5: ()}).num_slots == 3

    @pytest.mark.parametrize(
        ("shares", "widths"), [(7, [4, 4, 4, 4, 3, 3, 0]), (4, [4, 3, 3, 0]), (3, [3, 3, 0])]
    )
    def test_the_last_shares_are_those_of_the_roles(self, shares: int, widths: list[int]) -> None:
        assert queued(1, 4, 4, roles=ROLES).widths(shares) == widths


class TestWaits:
    @pytest.mark.parametrize(
        ("facts", "since_s", "owed_s"),
        [
            ({}, 100, 100),
            ({"queued_at": 300 * US}, 300, 300),
            ({"queued_at": 300 * US, "delayed_s": 80.0}, 300, 220),
            ({"delayed_s": 80.0}, 100, 20),
        ],
    )
    def test_earlier_waits_count_as_if_they_were_one(
        self, facts: dict[str, object], since_s: int, owed_s: int
    ) -> None:
        job = replace(queued(1, 1, 1), submitted_at=100 * US, **facts)
        assert (job.since, job.owed_since) == (since_s * US, owed_s * US)

    def test_a_preferred_level_is_required_until_patience_is_over(self) -> None:
        job = queued(1, 2, 4, required="rack", required_until=10)
        assert job.as_of(9) is job
        over = job.as_of(10)
        assert (over.required, over.required_until) == (None, None)
        assert over.as_of(11) is over
        always = queued(1, 2, 4, required="rack")
        assert always.as_of(1 << 60) is always

    def test_an_input_is_the_same_with_every_job_as_it_asks_then(self) -> None:
        first, second = queued(1, 1, 1), queued(2, 1, 1, required="rack", required_until=5)
        snapshot = PlanningInput((), (running(3, {}),), (first, second))
        assert snapshot.as_of(4) == snapshot
        assert snapshot.as_of(5) == replace(snapshot, waiting=(first, second.as_of(5)))


class TestPendingReasons:
    SLOTS = Reason(ReasonCode.WAITING_FOR_SLOTS, "needs room")
    QUOTA = Reason(ReasonCode.WAITING_FOR_QUOTA, "needs quota")
    OWN = Reason(ReasonCode.WAITING_FOR_VICTIMS, "starts soon")

    def reasons(self) -> PendingReasons:
        lines = [(self.SLOTS, ((50, 9), (60, 4), (70, 7))), (self.QUOTA, ((10, 4), (20, 2)))]
        return PendingReasons({7: self.OWN}, lines, {2})

    def test_every_queued_job_has_one_reason_by_number(self) -> None:
        # Its own goes first, then that of the first class; what starts has none.
        written = ((4, self.SLOTS), (7, self.OWN), (9, self.SLOTS))
        found = self.reasons()
        assert tuple(found) == written
        assert (len(found), found[1], found[-1], found[1:]) == (
            3,
            written[1],
            written[2],
            written[1:],
        )
        assert (repr(found), hash(found)) == (repr(written), hash(written))

    def test_they_equal_what_says_the_same(self) -> None:
        found = self.reasons()
        assert found == self.reasons()
        assert found == tuple(self.reasons())
        assert found != PendingReasons({}, (), set())
        assert Plan((), found) == Plan((), tuple(found))
