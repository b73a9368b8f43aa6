"""Which level a gang prefers when nobody said so, and how long it insists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scheduling import ClusterIndex, QueuedJob, Reservation
from phalanx.core.scheduling.index.cluster_index import class_key
from phalanx.core.scheduling.index.empty_cluster import narrowest_levels
from phalanx.core.scheduling.model.durations import History
from phalanx.core.scheduling.model.urgency import kind_key
from phalanx.core.scheduling.stages.preference import Preferences, patience_s, preferred_level

pytestmark = pytest.mark.unit

US = 1_000_000
GANG = QueuedJob(1, GangShape(4, 8, 8), 50, 0)
LEVELS: dict[str, str | None] = {"a": "rack", "b": "rack", "c": "leaf", "d": None}


def node(name: str, pool: str, *levels: str) -> Node:
    return Node(name, pool, name, 8, 8, 0, domains=tuple((level, "x") for level in levels))


def test_the_narrowest_level_of_a_pool_is_that_of_all_its_nodes() -> None:
    nodes = [node("1", "a", "block", "rack"), node("2", "a", "block", "rack"), node("3", "b")]
    mixed = [node("4", "c", "rack"), node("5", "c", "zone")]
    assert narrowest_levels(nodes + mixed) == {"a": "rack", "b": None, "c": None}


def test_a_gang_prefers_the_narrowest_level_that_its_pools_agree_on() -> None:
    assert preferred_level(None, replace(GANG, pools=("a", "b")), LEVELS) == "rack"
    assert preferred_level(None, replace(GANG, pools=("a", "c")), LEVELS) is None
    assert preferred_level(None, replace(GANG, pools=("d",)), LEVELS) is None
    assert preferred_level(None, GANG, LEVELS) is None
    assert preferred_level(None, GANG, {"a": "rack"}) == "rack"
    assert preferred_level(None, GANG, {}) is None


def test_what_its_owner_says_comes_first() -> None:
    assert preferred_level("zone", GANG, {"a": "rack"}) == "zone"
    assert preferred_level("none", GANG, {"a": "rack"}) is None
    assert preferred_level(None, replace(GANG, required="block"), {"a": "rack"}) is None


def test_one_node_needs_no_level_and_several_roles_do() -> None:
    alone = QueuedJob(1, GangShape(1, 8, 8), 50, 0)
    assert preferred_level(None, alone, {"a": "rack"}) is None
    assert preferred_level(None, replace(alone, roles=(GangShape(1, 1, 1),)), {"a": "rack"}) == (
        "rack"
    )


def test_patience_is_two_fifths_of_the_expected_run_and_four_hours_at_most() -> None:
    history = History()
    assert patience_s(GANG, history) == 600.0
    assert patience_s(replace(GANG, remaining_s=7200.0), history) == 2880.0
    assert patience_s(replace(GANG, remaining_s=1e6), history) == 4 * 3600.0
    for _ in range(100):
        history.observe(kind_key(GANG), 32 * 1000.0)
    assert 320.0 < patience_s(GANG, history) < 600.0


NODES = [replace(node(str(i), "a"), domains=(("rack", f"r{i // 2}"),)) for i in range(8)]
PAIR = QueuedJob(1, GangShape(2, 8, 8), 50, 0, queued_at=5 * US)


class TestPreferences:
    def test_a_gang_requires_its_level_until_its_patience_is_over(self) -> None:
        asked = Preferences(NODES).apply(PAIR, None, 60.0, History())
        assert (asked.required, asked.required_until) == ("rack", 65 * US)
        assert asked.as_of(65 * US - 1) is asked
        assert asked.as_of(65 * US) == PAIR

    @pytest.mark.parametrize(
        "job",
        [
            replace(PAIR, required="block"),
            replace(PAIR, shape=GangShape(3, 8, 8)),
            replace(PAIR, shape=GangShape(1, 8, 8)),
        ],
        ids=["required", "no rack could hold it", "one node"],
    )
    def test_a_gang_without_a_level_to_prefer_is_unchanged(self, job: QueuedJob) -> None:
        assert Preferences(NODES).apply(job, None, 60.0, History()) is job

    @pytest.mark.parametrize(
        ("facts", "wished", "level"),
        [
            pytest.param({}, "zone", None, id="no such level"),
            pytest.param({}, "none", None, id="no level wished"),
            pytest.param({"shape": GangShape(3, 8, 8), "min_nodes": 2}, None, "rack", id="elastic"),
            pytest.param({"shape": GangShape(3, 8, 8), "min_nodes": 3}, None, None, id="too wide"),
            pytest.param({"shape": GangShape(1, 8, 8)}, "rack", "rack", id="one node that wishes"),
            pytest.param({"roles": (GangShape(1, 4, 4),)}, None, None, id="a role too much"),
            pytest.param(
                {"shape": GangShape(1, 8, 8), "roles": (GangShape(1, 8, 8),)},
                None,
                "rack",
                id="roles that fill a rack",
            ),
            pytest.param({"pools": ("b",)}, None, None, id="another pool"),
        ],
    )
    def test_a_level_is_required_only_where_it_could_hold_the_least_size(
        self, facts: dict[str, object], wished: str | None, level: str | None
    ) -> None:
        job = replace(PAIR, **facts)  # type: ignore[arg-type]
        asked = Preferences(NODES).apply(job, wished, 60.0, History())
        assert asked.required == level
        assert asked.required_until == (None if level is None else 65 * US)

    @pytest.mark.parametrize(
        ("wished_s", "facts", "until_s"),
        [
            (0.0, {}, 5.0),
            (1.5, {"remaining_s": 1e6}, 6.5),
            (None, {}, 605.0),
            (None, {"remaining_s": 100.0}, 45.0),
            (None, {"remaining_s": 36_000.0}, 14_405.0),
            (None, {"remaining_s": 36_001.0}, 14_405.0),
            (None, {"remaining_s": 100.0, "max_duration_s": 50.0}, 25.0),
            (None, {"queued_at": None, "submitted_at": 7 * US}, 607.0),
        ],
    )
    def test_patience_counts_from_the_entry_into_the_queue(
        self, wished_s: float | None, facts: dict[str, object], until_s: float
    ) -> None:
        job = replace(PAIR, **facts)  # type: ignore[arg-type]
        asked = Preferences(NODES).apply(job, None, wished_s, History())
        assert asked.required_until == until_s * US

    def test_closed_nodes_count_for_what_a_level_could_hold(self) -> None:
        closed = [replace(one, closed="drained") for one in NODES]
        assert Preferences(closed).apply(PAIR, None, 60.0, History()).required == "rack"

    def test_an_index_ends_the_wait_for_a_level_in_time_and_keeps_the_reservation(self) -> None:
        cluster = ClusterIndex(NODES)
        asked = replace(PAIR, required="rack", required_until=65 * US)
        cluster.submit(asked)
        kept = Reservation(1, ("0", "1"), None, 900 * US)
        cluster.reservations[1] = kept
        cluster.advance(64 * US)
        assert cluster.waiting[1] is asked
        cluster.advance(65 * US)
        assert cluster.waiting[1] == PAIR
        assert cluster.submitted(1) is asked
        assert cluster.reservations == {1: kept}
        fresh = ClusterIndex.of(cluster.snapshot())
        fresh.advance(65 * US)
        assert fresh.state() == cluster.state()

    def test_jobs_that_differ_in_the_end_of_their_patience_are_of_one_class(self) -> None:
        asked = replace(PAIR, required="rack", required_until=65 * US)
        assert class_key(asked) == class_key(replace(asked, num=2, required_until=70 * US))
