"""The cluster index: queue, classes, running jobs and nodes, event by event, and equal to a rebuilt one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.core.gang.placement import GangShape, RoleShape
from phalanx.core.scheduling import ClusterIndex, Project, QueuedJob, Reservation, RunningJob
from phalanx.core.scheduling.index.cluster_index import QueueCount, class_key
from phalanx.core.scheduling.index.topology import place, request_of
from phalanx.core.scheduling.model.durations import EDGES
from phalanx.errors import InvariantBroken
from support.clusters import nodes, placed, queued, running

pytestmark = pytest.mark.unit

US = 1_000_000
FULL = (0, 1, 2, 3)


def cluster_of(*jobs: QueuedJob, num_nodes: int = 2, now: int = 0) -> ClusterIndex:
    cluster = ClusterIndex(nodes(num_nodes))
    cluster.advance(now)
    for job in jobs:
        cluster.submit(job)
    return cluster


def same_as_rebuilt(cluster: ClusterIndex) -> bool:
    anew = ClusterIndex.of(cluster.snapshot())
    anew.advance(cluster.now)
    return (
        cluster.state() == anew.state()
        and cluster.nodes_of == anew.nodes_of
        and cluster.elastic == anew.elastic
        and cluster.preemptible(cluster.now) == anew.preemptible(cluster.now)
        and cluster.running.ends(cluster.now) == anew.running.ends(cluster.now)
    )


class TestClasses:
    @pytest.mark.parametrize(
        ("facts", "apart"),
        [
            ({"num": 2, "submitted_at": 99}, False),
            ({"queued_at": 99, "delayed_s": 5.0}, False),
            ({"attained_slot_s": 59.0}, False),
            ({"attained_slot_s": 60.0}, True),
            ({"remaining_s": 100.0}, True),
            ({"max_duration_s": 100.0}, True),
            ({"project": "q"}, True),
            ({"priority": 51}, True),
            ({"kind": "k"}, True),
            ({"shape": GangShape(1, 2, 2)}, True),
            ({"min_nodes": 1}, True),
            ({"pools": ("p",)}, True),
            ({"cpus_per_node": 1}, True),
            ({"memory_per_node_bytes": 1}, True),
            ({"required": "rack"}, True),
            ({"slot_type": "L4"}, True),
            ({"device_memory_bytes": 1}, True),
            ({"tolerates": ("spot",)}, True),
            ({"selector": (("a", "b"),)}, True),
            ({"roles": (GangShape(1, 1, 1),)}, True),
            ({"speeds": (1.0, 2.0)}, False),
        ],
    )
    def test_jobs_of_a_class_differ_only_in_when_they_came(
        self, facts: dict[str, object], apart: bool
    ) -> None:
        job = queued(1, 1, 1)
        assert (class_key(job) != class_key(replace(job, **facts))) is apart

    @pytest.mark.parametrize("field", ["attained_slot_s", "remaining_s", "max_duration_s"])
    def test_a_class_has_the_properties_of_its_bin_whichever_job_came_first(
        self, field: str
    ) -> None:
        low, high = EDGES[4], EDGES[5] * (1 - 1e-9)
        jobs = [queued(num, 1, 1, **{field: at}) for num, at in ((1, low), (2, high))]
        (one,), (other,) = (cluster_of(*order).classes.values() for order in (jobs, reversed(jobs)))
        assert one.sample == other.sample
        # Service counts from the start of the bin, what is left and what is allowed to its end.
        bound = EDGES[4] if field == "attained_slot_s" else EDGES[5]
        assert getattr(one.sample, field) == bound
        assert (one.attained_bin == 4) is (field == "attained_slot_s")

    def test_jobs_of_a_class_stand_in_the_order_of_their_waits(self) -> None:
        first = queued(1, 1, 1, queued_at=90 * US)
        cluster = cluster_of(first, queued(2, 1, 1, queued_at=50 * US))
        cluster.submit(queued(3, 1, 1, queued_at=100 * US, delayed_s=70.0))
        (eq_class,) = cluster.classes.values()
        assert eq_class.jobs == [(30 * US, 3), (50 * US, 2), (90 * US, 1)]
        cluster.withdraw(2)
        assert eq_class.jobs == [(30 * US, 3), (90 * US, 1)]
        cluster.withdraw(1)
        cluster.withdraw(3)
        assert (cluster.classes, cluster.class_of) == ({}, {})

    def test_classes_of_one_request_share_its_number_and_its_nodes(self) -> None:
        cluster = cluster_of(queued(1, 1, 1), queued(2, 1, 1, 60), queued(3, 1, 2))
        one, same, other = (cluster.class_of[num] for num in (1, 2, 3))
        assert one is not same
        assert one.request_num == same.request_num != other.request_num
        assert one.groups is same.groups


class TestQueue:
    def test_demand_is_counted_by_project_and_by_size(self) -> None:
        jobs = (
            queued(1, 1, 2, project="a", queued_at=5),
            queued(2, 2, 1, project="a", queued_at=7),
            queued(3, 1, 4, project="a"),
            queued(4, 1, 4, 60),
        )
        cluster = cluster_of(*jobs)
        assert cluster.demand == {"a": 8, "": 4}
        assert cluster.queued == {
            ("a", 50, 2): QueueCount(2, 12),
            ("a", 50, 4): QueueCount(1, 3),
            ("", 60, 4): QueueCount(1, 4),
        }
        cluster.withdraw(1)
        cluster.withdraw(4)
        assert cluster.demand == {"a": 6}
        assert cluster.queued == {("a", 50, 2): QueueCount(1, 7), ("a", 50, 4): QueueCount(1, 3)}

    def test_repeated_calls_change_nothing(self) -> None:
        cluster = cluster_of(queued(1, 1, 2))
        before = cluster.snapshot()
        cluster.submit(queued(1, 2, 4))
        cluster.withdraw(99)
        assert cluster.release(99) is None
        cluster.update(running(99, {0: (0,)}))
        cluster.saved(99, 5)
        assert cluster.snapshot() == before and same_as_rebuilt(cluster)

    def test_a_running_job_is_not_queued(self) -> None:
        cluster = cluster_of()
        cluster.hold(running(1, {0: (0,)}))
        cluster.submit(queued(1, 1, 1))
        assert cluster.waiting == {}

    def test_a_back_off_ends_at_its_time(self) -> None:
        cluster = cluster_of(
            queued(1, 1, 1, not_before=10 * US), queued(2, 1, 1, not_before=30 * US)
        )
        assert (cluster.deferred, cluster.classes) == ({1: 10 * US, 2: 30 * US}, {})
        assert cluster.demand == {"": 2}
        cluster.advance(10 * US - 1)
        assert cluster.class_of == {}
        cluster.advance(10 * US)
        assert (cluster.deferred, list(cluster.class_of)) == ({2: 30 * US}, [1])
        cluster.withdraw(2)
        assert cluster.deferred == {}
        assert cluster.now == 10 * US


class TestPatience:
    JOB = queued(1, 2, 4, required="rack", required_until=10 * US)

    def test_a_wait_for_a_preferred_level_ends_and_its_reservation_stays(self) -> None:
        cluster = cluster_of(self.JOB)
        reservation = Reservation(1, ("n0", "n1"), None, 99)
        cluster.reservations[1] = reservation
        cluster.advance(10 * US - 1)
        assert cluster.waiting[1] is self.JOB
        cluster.advance(10 * US)
        assert cluster.waiting[1] == replace(self.JOB, required=None, required_until=None)
        assert cluster.class_of[1].request.required is None
        assert cluster.reservations == {1: reservation}
        assert same_as_rebuilt(cluster)

    def test_a_job_that_comes_after_its_patience_is_kept_as_submitted_too(self) -> None:
        cluster = cluster_of(self.JOB, now=20 * US)
        assert cluster.waiting[1].required is None
        assert cluster.submitted(1) is self.JOB
        assert cluster.snapshot().waiting == (self.JOB,)
        cluster.withdraw(1)
        assert cluster.submitted(1) is None

    def test_a_back_off_outlasts_patience(self) -> None:
        cluster = cluster_of(replace(self.JOB, not_before=15 * US))
        cluster.advance(12 * US)
        assert cluster.waiting[1].required is None
        assert cluster.deferred == {1: 15 * US}
        cluster.advance(15 * US)
        assert list(cluster.class_of) == [1]

    def test_patience_of_a_job_that_is_gone_ends_quietly(self) -> None:
        cluster = cluster_of(self.JOB)
        cluster.withdraw(1)
        cluster.advance(10 * US)
        assert cluster.waiting == {}


class TestRunning:
    def test_a_start_takes_slots_and_leaves_the_queue(self) -> None:
        cluster = cluster_of(queued(7, 2, 2, project="a"))
        cluster.reservations[7] = Reservation(7, ("n0", "n1"), None, 9)
        where = placed({0: (0, 1), 1: (2, 3)})
        cluster.start(7, where, running(0, {}, project="a", cpus_per_node=3))
        held = cluster.held[7]
        assert (held.placement, held.num_slots) == (where, 4)
        assert (cluster.waiting, cluster.demand, cluster.reservations) == ({}, {}, {})
        assert cluster.on_node == [{7: 2}, {7: 2}]
        assert (cluster.index.free, cluster.index.cpus) == ([0b1100, 0b0011], [5, 5])
        assert (cluster.used, cluster.nodes_of) == ({"a": 4}, {7: (0, 1)})
        assert cluster.index.mark() == 0

    def test_only_a_queued_job_starts(self) -> None:
        with pytest.raises(InvariantBroken, match="j-7 starts but does not wait"):
            cluster_of().start(7, placed({0: (0,)}), running(7, {}))

    def test_a_release_gives_back_everything(self) -> None:
        cluster = cluster_of(num_nodes=3)
        empty = cluster.state()
        held = running(1, {0: FULL, 2: (1,)}, project="a", cpus_per_node=2)
        cluster.hold(held)
        cluster.hold(held)  # once
        assert cluster.used == {"a": 5}
        profile = cluster.index.demand_profile
        assert (profile.slots, profile.by_width) == (5, {4: 4, 1: 1})
        assert cluster.release(1) is held
        assert cluster.release(1) is None
        assert cluster.state() == empty
        assert (cluster.nodes_of, cluster.preemptible(9)) == ({}, {})

    def test_use_of_a_project_is_that_of_all_its_jobs(self) -> None:
        cluster = cluster_of()
        cluster.hold(running(1, {0: (0, 1)}, project="a"))
        cluster.hold(running(2, {0: (2,)}, project="a"))
        cluster.release(1)
        assert cluster.used == {"a": 1}

    def test_a_share_without_slots_is_on_no_node(self) -> None:
        cluster = cluster_of()
        role = RoleShape(1, 0, 1, "head", 5)
        cluster.hold(running(1, {0: (0,), 1: ()}, roles=(role,), cpus_per_node=1))
        assert (cluster.on_node, cluster.nodes_of) == ([{1: 1}, {}], {1: (0,)})
        assert cluster.index.cpus == [7, 3]

    def test_two_shares_on_one_node_are_one_entry(self) -> None:
        cluster = ClusterIndex(nodes(1, splittable=True))
        two = placed({0: (0, 1)}).shares + placed({0: (2,)}).shares
        cluster.hold(replace(running(1, {}), placement=replace(placed({}), shares=two)))
        assert (cluster.on_node, cluster.nodes_of) == ([{1: 3}], {1: (0,)})

    def test_elastic_jobs_and_jobs_that_stop_are_known(self) -> None:
        cluster = cluster_of()
        cluster.hold(running(1, {0: (0,)}, min_nodes=1, max_nodes=3))
        cluster.hold(running(2, {0: (1,)}, min_nodes=1))
        cluster.hold(running(3, {0: (2,)}, stopping=True))
        assert (cluster.elastic, cluster.stopping) == ({1}, {3})
        cluster.update(replace(cluster.held[1], stopping=True))
        cluster.update(replace(cluster.held[3], stopping=False))
        assert cluster.stopping == {1}
        assert [num for _, num in cluster.preemptible(9)[50]] == [2, 3]
        cluster.release(1)
        assert (cluster.elastic, cluster.stopping) == (set(), set())

    def test_progress_changes_urgency_and_a_save_does_not(self) -> None:
        cluster = cluster_of()
        cluster.hold(running(1, {0: (0,)}))
        (before,) = cluster.preemptible(9)[50]
        cluster.saved(1, 7)
        assert cluster.held[1].saved_at == 7
        assert cluster.preemptible(9)[50] == [before]
        cluster.update(replace(cluster.held[1], remaining_s=10.0))
        assert cluster.preemptible(9)[50] == [(0.1, 1)]
        assert cluster.end_of(1, 9) == 9 + 10 * US
        assert cluster.score_of(cluster.held[1], 9) == 0.1


class TestNodes:
    def cluster(self) -> ClusterIndex:
        cluster = cluster_of(queued(1, 1, 4), queued(2, 1, 1, not_before=9))
        cluster.hold(running(3, {0: (0,), 1: FULL}))
        cluster.reservations[1] = Reservation(1, ("n0",), None, 9)
        return cluster

    def test_a_drained_node_takes_nothing_and_keeps_what_runs(self) -> None:
        cluster = self.cluster()
        cluster.replace_node(replace(nodes(1)[0], closed="drained"))
        (group,) = cluster.index.groups
        assert (group.num_nodes, group.num_free) == (1, 0)
        assert cluster.on_node == [{3: 1}, {3: 4}]
        assert cluster.reservations == {1: Reservation(1, ("n0",), None, 9)}
        assert cluster.deferred == {2: 9}
        cluster.replace_node(nodes(1)[0])
        assert cluster.index.groups[0].num_free == 3

    def test_a_new_node_is_added_at_the_end(self) -> None:
        cluster = self.cluster()
        cluster.replace_node(nodes(3)[2])
        assert cluster.index.num_of == {"n0": 0, "n1": 1, "n2": 2}
        assert cluster.class_of[1].groups[0].num_nodes == 3

    def test_slots_of_a_removed_node_still_count_for_the_job_that_held_them(self) -> None:
        cluster = self.cluster()
        cluster.remove_node("n0")
        assert cluster.on_node == [{3: 4}]
        assert (cluster.held[3].num_slots, cluster.used) == (5, {"": 5})
        cluster.release(3)
        assert (cluster.index.free, cluster.used) == ([15], {})

    def test_projects_and_configuration_survive_a_rebuild(self) -> None:
        project = Project("a", max_slots=4)
        cluster = ClusterIndex(nodes(1), (project,))
        history, config = cluster.history, cluster.config
        cluster.replace_node(nodes(2)[1])
        assert cluster.projects == {"a": project}
        assert (cluster.history is history, cluster.config is config) == (True, True)


# -- any events, in any order --------------------------------------------------------------------

NUM = st.integers(1, 12)


def _submit(cluster: ClusterIndex, num: int, how: int) -> None:
    """Submit a job of one of sixteen kinds."""
    job = queued(
        num,
        1 + how % 2,
        1 + how % 3,
        40 + 10 * (how % 2),
        project="ab"[how % 2],
        queued_at=how * US,
        delayed_s=float(how % 5),
        attained_slot_s=100.0 * (how % 4),
        cpus_per_node=how % 3,
        min_nodes=1 if how % 8 == 1 else None,
        not_before=cluster.now + 5 * US if how % 5 == 0 else None,
        required="rack" if how % 7 == 0 else None,
        required_until=cluster.now + 7 * US if how % 7 == 0 else None,
        roles=(RoleShape(1, how % 2, 1, "head", 1, 1),) if how % 6 == 0 else (),
    )
    cluster.submit(job)


def _start(cluster: ClusterIndex, num: int, how: int) -> None:
    """Start a queued job where it fits."""
    job = cluster.waiting.get(num)
    if job is None:
        return
    request = request_of(job)
    found = place(cluster.index, request, cluster.groups_for(request), job.shape)
    if found is not None:
        held = RunningJob(
            num,
            placed({}),
            project=job.project,
            priority=job.priority,
            started_at=cluster.now if how % 4 else None,
            attained_slot_s=job.attained_slot_s,
            remaining_s=float(how) if how % 3 == 0 else None,
            max_duration_s=90.0 if how % 5 == 0 else None,
            preemptible=how % 7 != 0,
            cpus_per_node=job.cpus_per_node,
            min_nodes=job.min_nodes,
            max_nodes=None if job.min_nodes is None else job.shape.nodes,
            delayed_s=float(how % 2),
            roles=job.roles,
        )
        cluster.start(num, cluster.index.placement(found), held)


def _update(cluster: ClusterIndex, num: int, how: int) -> None:
    held = cluster.held.get(num)
    if held is not None:
        cluster.update(replace(held, stopping=how % 2 == 0, remaining_s=float(how)))


def _node(cluster: ClusterIndex, num: int, how: int) -> None:
    one = nodes(5)[num % 5]
    if how % 4 == 0:
        cluster.replace_node(replace(one, closed="drained" if how % 8 else ""))
    elif how % 4 == 1 and not cluster.held:
        cluster.remove_node(one.id)


EVENTS: dict[str, Callable[[ClusterIndex, int, int], None]] = {
    "submit": _submit,
    "again": _submit,
    "start": _start,
    "start now": _start,
    "release": lambda cluster, num, _: cluster.release(num) and None,
    "withdraw": lambda cluster, num, _: cluster.withdraw(num),
    "update": _update,
    "advance": lambda cluster, _, how: cluster.advance(cluster.now + how * US),
    "ended": lambda cluster, num, how: (
        cluster.history.observe(cluster.class_of[num].kind, 50.0 * how)
        if num in cluster.class_of
        else None
    ),
    "node": _node,
    "ask": lambda cluster, *_: cluster.preemptible(cluster.now) and None,
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), NUM, st.integers(0, 31)), max_size=40))
@example([("submit", 1, 0), ("advance", 1, 5), ("node", 1, 0)])  # a back-off ends, then a rebuild
def test_after_any_events_it_is_the_index_of_its_snapshot(
    events: list[tuple[str, int, int]],
) -> None:
    cluster = ClusterIndex(nodes(4), (Project("a"),))
    for event, num, how in events:
        EVENTS[event](cluster, num, how)
    assert same_as_rebuilt(cluster)
