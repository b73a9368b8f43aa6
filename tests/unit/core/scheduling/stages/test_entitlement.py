"""The entitlement stage: use with parts, jobs that hold slots, and the demand that counts."""

from __future__ import annotations

import pytest

from phalanx.core.gang.placement import Node
from phalanx.core.scheduling import PlanningInput, Project, QueuedJob, RunningJob
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support.clusters import nodes, pass_on, queued, running

pytestmark = pytest.mark.unit

FULL = (0, 1, 2, 3)


def entitled(
    *projects: Project,
    waiting: tuple[QueuedJob, ...] = (),
    held: tuple[RunningJob, ...] = (),
    where: tuple[Node, ...] = nodes(10),
) -> Pass:
    return pass_on(PlanningInput(where, held, waiting, projects), 1000)


def shares(state: Pass) -> dict[str, float]:
    return {name: share.entitled for name, share in state.ledger.shares.items()}


def one(num: int, slots: int, priority: int = 50, project: str = "a") -> QueuedJob:
    return queued(num, 1, slots, priority, project=project)


class TestUse:
    HELD = (
        running(7, {0: FULL}, project="a"),
        running(8, {1: (0, 1)}, project="b"),
        running(9, {2: (0,)}, project="lab"),
        running(10, {3: (0,)}, project="stranger"),
    )
    TREE = (Project("a", parent="lab"), Project("b", parent="lab"))

    def test_a_project_uses_what_its_parts_use(self) -> None:
        state = entitled(Project("lab"), *self.TREE, held=self.HELD)
        assert state.ledger.used == {"lab": 7, "a": 4, "b": 2, "stranger": 1}
        assert state.ledger.num_jobs == {}

    def test_jobs_are_counted_where_a_limit_counts_them(self) -> None:
        state = entitled(Project("lab", max_running=9), *self.TREE, held=self.HELD)
        assert state.ledger.num_jobs == {"lab": 3, "a": 1, "b": 1, "stranger": 1}

    def test_without_projects_there_are_no_shares(self) -> None:
        state = entitled(held=self.HELD)
        assert shares(state) == {}
        assert state.ledger.used["a"] == 4

    def test_what_a_project_holds_counts_as_demand(self) -> None:
        state = entitled(Project("lab"), *self.TREE, held=self.HELD, waiting=(one(1, 3),))
        assert shares(state) == {"lab": 10.0, "a": 7.0, "b": 2.0}


class TestCapacity:
    WAITING = (one(1, 40), one(2, 40, project="b"))

    def test_closed_nodes_are_no_capacity(self) -> None:
        pair = Project("a"), Project("b")
        assert shares(entitled(*pair, waiting=self.WAITING)) == {"a": 20.0, "b": 20.0}
        half = (*nodes(5), *nodes(10, closed="drained")[5:])
        found = shares(entitled(*pair, waiting=self.WAITING, where=half))
        assert found == {"a": 10.0, "b": 10.0}

    def test_weights_share_what_is_left_beside_guarantees(self) -> None:
        pair = Project("a", 10, weight=1.0), Project("b", weight=2.0)
        assert shares(entitled(*pair, waiting=self.WAITING)) == {"a": 20.0, "b": 20.0}

    def test_a_limit_leaves_the_rest_to_others(self) -> None:
        pair = Project("a", max_slots=6), Project("b")
        assert shares(entitled(*pair, waiting=self.WAITING)) == {"a": 6.0, "b": 34.0}


class TestDemandWithinLimits:
    """With a limit on running jobs only the jobs that it lets start are a demand."""

    @pytest.mark.parametrize(
        ("most", "num_running", "jobs", "slots"),
        [
            pytest.param(2, 0, (one(1, 3), one(2, 2), one(3, 1)), 5, id="the largest of equals"),
            pytest.param(2, 0, (one(1, 4, 10), one(2, 1), one(3, 2)), 3, id="priority before size"),
            pytest.param(2, 1, (one(1, 3), one(2, 2)), 4 + 3, id="one runs"),
            pytest.param(2, 2, (one(1, 3),), 8, id="as many run as may"),
            pytest.param(1, 2, (one(1, 3),), 8, id="more run than may"),
            pytest.param(9, 0, (one(1, 3), one(2, 3), one(3, 2)), 8, id="all may run"),
            pytest.param(2, 0, (one(1, 3), one(2, 3), one(3, 3)), 6, id="some of one size"),
            pytest.param(0, 0, (one(1, 3),), 0, id="none may run"),
        ],
    )
    def test_jobs_beyond_the_limit_are_no_demand(
        self, most: int, num_running: int, jobs: tuple[QueuedJob, ...], slots: int
    ) -> None:
        held = tuple(running(50 + at, {at: FULL}, project="a") for at in range(num_running))
        state = entitled(Project("a", max_running=most), waiting=jobs, held=held)
        assert shares(state) == {"a": slots}

    def test_a_limit_above_is_shared_by_all_parts(self) -> None:
        parts = Project("a", parent="lab"), Project("b", parent="lab")
        jobs = (one(1, 2), one(2, 2), one(3, 2, project="b"))
        for most, demand in ((1, 2.0), (2, 4.0), (3, 6.0), (4, 6.0)):
            state = entitled(Project("lab", max_running=most), *parts, waiting=jobs)
            found = shares(state)
            assert found["lab"] == found["a"] + found["b"] == demand

    def test_a_narrow_limit_of_its_own_leaves_the_rest_of_the_one_above(self) -> None:
        parts = Project("a", parent="lab", max_running=1), Project("b", parent="lab")
        jobs = (one(1, 2), one(2, 2), one(3, 3, project="b"))
        state = entitled(Project("lab", max_running=2), *parts, waiting=jobs)
        assert shares(state) == {"lab": 5.0, "a": 2.0, "b": 3.0}

    def test_other_projects_keep_their_whole_demand(self) -> None:
        jobs = (one(1, 2), one(2, 2), one(3, 3, project="b"), one(4, 3, project="b"))
        state = entitled(Project("a", max_running=1), Project("b"), waiting=jobs)
        assert shares(state) == {"a": 2.0, "b": 6.0}
