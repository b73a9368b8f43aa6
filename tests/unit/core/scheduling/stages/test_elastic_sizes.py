"""Elastic jobs, stage by stage: the decided sizes, what is given back, and what is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import Node
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import (
    PlannerConfig,
    PlanningInput,
    Project,
    QueuedJob,
    Reservation,
    Resize,
    RunningJob,
)
from phalanx.core.scheduling.stages import elastic
from phalanx.core.scheduling.stages.scheduling_pass import Pass
from support import clusters
from support.clusters import head_of, kept_by, pass_on, placed, running

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
LINEAR = (1.0, 2.0, 3.0, 4.0)


def nodes(num: int, size: int = 1, *, rack: int = 100, **more: object) -> tuple[Node, ...]:
    return clusters.nodes(num, size, rack=rack, **more)


def job(
    num: int, least: int | None = 1, most: int = 4, per_node: int = 1, **more: object
) -> QueuedJob:
    return clusters.queued(num, most, per_node, **{"min_nodes": least, **more})  # type: ignore[arg-type]


def rigid(num: int, count: int, **more: object) -> QueuedJob:
    return clusters.queued(num, count, 1, **more)  # type: ignore[arg-type]


def held(num: int, *where: int, least: int = 1, most: int = 4, **more: object) -> RunningJob:
    """An elastic job with one slot on each of these nodes."""
    return running(num, dict.fromkeys(where, (0,)), min_nodes=least, max_nodes=most, **more)


class TestSize:
    @pytest.mark.parametrize(
        ("where", "waiting", "running_jobs", "sizes"),
        [
            pytest.param(
                nodes(5), (job(1), job(2)), (), {1: 3, 2: 2}, id="equal gains: the lower number"
            ),
            pytest.param(nodes(9), (job(1),), (), {1: 4}, id="no more than the full size"),
            pytest.param(
                nodes(3), (job(1, 2), job(2, 2)), (), {1: 3}, id="too little for two least sizes"
            ),
            pytest.param(
                nodes(3), (job(1, 2), job(2, 2), job(3)), (), {1: 2, 3: 1}, id="a later one fits"
            ),
            pytest.param(
                nodes(2),
                (job(1, 2, queued_at=50), job(2, 2, queued_at=10, kind="b")),
                (),
                {2: 2},
                id="the earliest first",
            ),
            pytest.param(
                nodes(2), (job(1, 2),), (held(8, 0, 1, least=2),), {8: 2}, id="running jobs first"
            ),
            pytest.param(
                nodes(4),
                (job(1),),
                (held(8, 0, 1, 2, 3),),
                {1: 2, 8: 2},
                id="held slots are shared",
            ),
            pytest.param(
                nodes(3),
                (job(1),),
                (held(8, 0, 1, stopping=True),),
                {1: 1},
                id="slots of a job that leaves are not",
            ),
            pytest.param(
                nodes(4), (job(1, speeds=(1.0, 1.0)),), (), {1: 1}, id="nothing is gained"
            ),
            pytest.param(
                nodes(4), (job(1, speeds=(1.0, 2.0)),), (), {1: 2}, id="no gain was measured"
            ),
            pytest.param(
                nodes(3, 2),
                (job(1, per_node=2, speeds=LINEAR), job(2, speeds=LINEAR)),
                (),
                {1: 1, 2: 4},
                id="gain per slot",
            ),
            pytest.param(
                nodes(2, 2),
                (job(1, per_node=2, speeds=LINEAR), job(2, speeds=(1.0, 1.1))),
                (),
                {1: 1, 2: 2},
                id="one slot is left for the smaller gain",
            ),
            pytest.param(
                (*nodes(1), *nodes(4, closed="drained")[1:]),
                (job(1),),
                (),
                {1: 1},
                id="closed nodes",
            ),
            pytest.param(nodes(4), (rigid(1, 2),), (), {}, id="rigid jobs have no say"),
        ],
    )
    def test_each_slot_goes_to_the_largest_gain_after_the_least_sizes(
        self,
        where: tuple[Node, ...],
        waiting: tuple[QueuedJob, ...],
        running_jobs: tuple[RunningJob, ...],
        sizes: dict[int, int],
    ) -> None:
        state = pass_on(PlanningInput(where, running_jobs, waiting), HOUR)
        elastic.size(state)
        assert state.sizes == sizes


def shrunk(
    waiting: QueuedJob,
    *running_jobs: RunningJob,
    where: tuple[Node, ...] = nodes(4),
    sizes: dict[int, int] | None = None,
) -> Pass:
    """A pass in which a blocked job has asked the elastic ones to give nodes back."""
    state = pass_on(PlanningInput(where, running_jobs, (waiting,)), HOUR)
    elastic.size(state)
    state.sizes = state.sizes if sizes is None else sizes
    free = list(state.index.num_free)
    done = elastic.shrink_for(state, head_of(state, waiting.num).eq_class, waiting.num)
    assert done is bool(state.decisions.resizes) is bool(state.decisions.reservations)
    assert done or state.index.num_free == free
    return state


def left(state: Pass) -> dict[int, int]:
    """The new number of nodes of each job that is resized."""
    return {one.job: len(one.placement.shares) for one in state.decisions.resizes}


class TestShrink:
    @pytest.mark.parametrize(
        ("facts", "gives"),
        [
            pytest.param({"priority": 49}, True, id="lower priority"),
            pytest.param({"priority": 50}, True, id="equal priority"),
            pytest.param({"priority": 51}, False, id="higher priority"),
            pytest.param({"started_at": None}, False, id="start unknown"),
            pytest.param({"stopping": True}, False, id="leaves already"),
            pytest.param({"least": 4}, False, id="at its least size"),
            pytest.param({"least": 3}, True, id="one above its least size"),
            pytest.param({"started_at": HOUR - 600 * US}, True, id="started long enough ago"),
            pytest.param({"started_at": HOUR - 600 * US + 1}, False, id="started just now"),
            pytest.param({"resized_at": HOUR - 600 * US}, True, id="resized long enough ago"),
            pytest.param({"resized_at": HOUR - 600 * US + 1}, False, id="resized just now"),
        ],
    )
    def test_an_elastic_job_of_at_most_its_priority_gives(
        self, facts: dict[str, object], gives: bool
    ) -> None:
        state = shrunk(rigid(1, 1), held(8, 0, 1, 2, 3, **facts))  # type: ignore[arg-type]
        assert left(state) == ({8: 3} if gives else {})

    def test_a_job_that_leaves_for_another_gang_gives_nothing(self) -> None:
        state = pass_on(PlanningInput(nodes(2), (held(8, 0, 1),), (rigid(1, 1),)), HOUR)
        state.decisions.leaving.add(8)
        assert not elastic.shrink_for(state, head_of(state, 1).eq_class, 1)

    @pytest.mark.parametrize(("wanted", "keeps"), [(1, {8: 3}), (2, {8: 2}), (3, {8: 1}), (4, {})])
    def test_it_gives_as_few_nodes_as_needed_and_none_in_vain(
        self, wanted: int, keeps: dict[int, int]
    ) -> None:
        assert left(shrunk(rigid(1, wanted), held(8, 0, 1, 2, 3))) == keeps

    @pytest.mark.parametrize(
        ("first", "second", "giver"),
        [
            ({}, {}, 8),
            ({"priority": 50}, {"priority": 49}, 9),
            ({"restart_s": 61.0}, {"restart_s": 60.0}, 9),
            ({"priority": 49, "restart_s": 61.0}, {"priority": 50, "restart_s": 60.0}, 8),
        ],
        ids=["the lower number", "lower priority", "cheaper restart", "priority before cost"],
    )
    def test_the_least_important_gives_first_and_then_the_cheapest(
        self, first: dict[str, object], second: dict[str, object], giver: int
    ) -> None:
        pair = held(8, 0, 1, **first), held(9, 2, 3, **second)  # type: ignore[arg-type]
        assert left(shrunk(rigid(1, 1), *pair)) == {giver: 1}

    def test_several_give_where_one_is_not_enough(self) -> None:
        state = shrunk(rigid(1, 2), held(8, 0, 1), held(9, 2, 3))
        assert left(state) == {8: 1, 9: 1}
        assert state.decisions.leaving == {8, 9}

    def test_a_job_whose_nodes_are_not_used_gives_none(self) -> None:
        """The first to be asked frees a node in a rack that cannot hold the gang."""
        waiting = rigid(1, 2, required="rack")
        busy = running(7, {5: (0,)}, priority=90)
        pair = held(8, 0, 1), held(9, 4, 3)
        state = shrunk(waiting, *pair, busy, where=nodes(6, rack=2))
        assert left(state) == {9: 1}
        assert state.decisions.reservations[0].nodes == ("n2", "n3")

    @pytest.mark.parametrize(("size", "keeps"), [(2, {8: 2}), (3, {8: 3}), (4, {})])
    def test_an_elastic_job_takes_others_down_to_their_decided_size_only(
        self, size: int, keeps: dict[int, int]
    ) -> None:
        state = shrunk(job(1), held(8, 0, 1, 2, 3), sizes={8: size, 1: 4 - size})
        assert left(state) == keeps

    def test_an_elastic_job_is_promised_its_decided_size(self) -> None:
        state = shrunk(job(1), held(8, 0, 1, 2, 3), sizes={8: 1, 1: 3})
        assert len(state.decisions.reservations[0].nodes) == 3
        state = shrunk(job(1, 2), held(8, 0, 1, 2, 3), sizes={8: 1})
        assert len(state.decisions.reservations[0].nodes) == 2

    def test_the_promise_names_the_nodes_the_time_and_the_givers(self) -> None:
        waiting = replace(rigid(1, 3), project="a")
        givers = held(8, 0, 1, save_s=45.0), held(9, 2, 3, save_s=None)
        state = shrunk(waiting, *givers, where=nodes(5))
        ready_at = HOUR + 45 * US
        kept = Reservation(1, ("n1", "n3", "n4"), ready_at, ready_at + 900 * US, (8, 9))
        assert state.decisions.reservations == [kept]
        assert kept_by(state) == {1: {"n4": 1}}
        assert state.ledger.used == {"": 2, "a": 3}
        reason = Reason(ReasonCode.PREEMPTED, "gives 1 nodes to j-1")
        assert state.decisions.resizes == [
            Resize(8, placed({0: (0,)}), reason),
            Resize(9, placed({2: (0,)}), reason),
        ]


def grown(
    *running_jobs: RunningJob,
    where: tuple[Node, ...] = nodes(4),
    sizes: dict[int, int] | None = None,
    projects: tuple[Project, ...] = (),
    config: PlannerConfig | None = None,
) -> Pass:
    snapshot = PlanningInput(where, running_jobs, (), projects, config=config or PlannerConfig())
    state = pass_on(snapshot, HOUR)
    state.sizes = {} if sizes is None else sizes
    elastic.grow(state)
    return state


class TestGrow:
    @pytest.mark.parametrize(
        ("facts", "sizes", "nodes_after"),
        [
            pytest.param({}, {}, 4, id="to the full size"),
            pytest.param({"most": 3}, {}, 3, id="no further"),
            pytest.param({"most": 9}, {}, 4, id="as far as there are nodes"),
            pytest.param({}, {8: 2}, 2, id="to the decided size"),
            pytest.param({}, {8: 1}, 0, id="decided as it is"),
            pytest.param({"most": 1}, {}, 0, id="full already"),
            pytest.param({"speeds": (1.0, 1.15)}, {8: 2}, 2, id="just worth a restart"),
            pytest.param({"speeds": (1.0, 1.14)}, {8: 2}, 0, id="not worth a restart"),
            pytest.param({"speeds": (1.0, 1.1, 1.2)}, {8: 3}, 3, id="worth it in all"),
            pytest.param({"resized_at": HOUR - 600 * US}, {}, 4, id="after the cool-down"),
            pytest.param({"resized_at": HOUR - 600 * US + 1}, {}, 0, id="in the cool-down"),
            pytest.param({"stopping": True}, {}, 0, id="leaves"),
            pytest.param({"started_at": None}, {}, 0, id="start unknown"),
        ],
    )
    def test_a_job_takes_free_nodes_up_to_its_size(
        self, facts: dict[str, object], sizes: dict[int, int], nodes_after: int
    ) -> None:
        state = grown(held(8, 0, **facts), sizes=sizes)  # type: ignore[arg-type]
        assert left(state) == ({8: nodes_after} if nodes_after else {})

    @pytest.mark.parametrize(
        ("first", "second", "grows"),
        [
            ({}, {}, 8),
            ({"priority": 50}, {"priority": 51}, 9),
            ({"speeds": (1.0, 1.5)}, {"speeds": (1.0, 1.6)}, 9),
            ({"speeds": (1.0, 1.5), "priority": 51}, {"speeds": (1.0, 1.6)}, 8),
        ],
        ids=["the lower number", "higher priority", "larger gain", "priority before gain"],
    )
    def test_the_last_free_node_goes_to(
        self, first: dict[str, object], second: dict[str, object], grows: int
    ) -> None:
        pair = held(8, 0, most=2, **first), held(9, 1, most=2, **second)  # type: ignore[arg-type]
        assert left(grown(*pair, where=nodes(3))) == {grows: 2}

    def test_it_stays_in_its_own_rack(self) -> None:
        state = grown(held(8, 0), where=nodes(4, rack=2))
        assert state.decisions.resizes[0].placement == placed({0: (0,), 1: (0,)})
        assert left(grown(held(8, 0), where=nodes(4, rack=1))) == {}

    @pytest.mark.parametrize(
        ("needs", "server"),
        [
            ({"cpus_per_node": 4}, {"cpus_per_node": 5}),
            ({"memory_per_node_bytes": 60}, {"memory_per_node_bytes": 41}),
        ],
        ids=["CPUs", "memory"],
    )
    def test_it_takes_no_node_without_room_for_more_than_slots(
        self, needs: dict[str, int], server: dict[str, int]
    ) -> None:
        grower = held(8, 0, **needs)  # type: ignore[arg-type]
        assert left(grown(grower, running(7, {1: ()}, **server), where=nodes(2))) == {}
        less = {name: amount - 1 for name, amount in server.items()}
        assert left(grown(grower, running(7, {1: ()}, **less), where=nodes(2))) == {8: 2}

    @pytest.mark.parametrize(("most", "nodes_after"), [(3, 0), (4, 2), (5, 2), (6, 3), (8, 4)])
    def test_the_limit_of_its_project_counts_in_whole_shares(
        self, most: int, nodes_after: int
    ) -> None:
        wide = running(8, {0: (0, 1)}, min_nodes=1, max_nodes=4, project="a")
        projects = (Project("lab", max_slots=most), Project("a", parent="lab"))
        state = grown(wide, where=nodes(4, 2), projects=projects)
        assert left(state) == ({8: nodes_after} if nodes_after else {})
        assert state.ledger.used == dict.fromkeys(("lab", "a"), 2 * max(nodes_after, 1))
        assert state.ledger.num_jobs == dict.fromkeys(("lab", "a") * bool(nodes_after), 0)

    def test_it_keeps_its_nodes_and_says_what_it_takes(self) -> None:
        state = grown(held(8, 2, 0), sizes={8: 3})
        text = "grows from 2 to 3 nodes that no other job can use"
        larger = placed({2: (0,), 0: (0,), 1: (0,)})
        assert state.decisions.resizes == [Resize(8, larger, Reason(ReasonCode.PLACED, text))]
        assert state.index.num_free == [0, 0, 0, 1]

    def test_kept_slots_are_not_taken(self) -> None:
        state = pass_on(PlanningInput(nodes(3), (held(8, 0),), (rigid(1, 2),)), HOUR)
        state.reserve(Reservation(1, ("n1",), None, HOUR), state.cluster.waiting[1])
        elastic.grow(state)
        assert state.decisions.resizes[0].placement == placed({0: (0,), 2: (0,)})

    def test_a_job_on_a_node_that_is_gone_stays_as_it_is(self) -> None:
        assert left(grown(held(8, 9))) == {}

    def test_a_splittable_node_of_its_own_goes_before_other_nodes(self) -> None:
        busy = running(7, {0: (0, 1)})
        state = grown(held(8, 1), busy, where=nodes(2, 3, splittable=True), sizes={8: 3})
        assert [share.node for share in state.decisions.resizes[0].placement.shares] == ["n1"] * 3
