"""Everything that the planner decides happens: evictions, holes, resizes, quotas, drains, answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig, open_rig
from phalanx.core.scheduling import NAMED_POLICIES, PlannerConfig
from phalanx.errors import Conflict, NotFound, SpecInvalid, UserError
from phalanx.kit.clock import ManualClock
from phalanx.schemas.api.body import at_of
from phalanx.schemas.api.jobs import ChangeRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.server.settings import SchedulerSettings, Settings
from phalanx.services.planning.scheduling import apply, scheduling_step, view_of
from phalanx.store import planning
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration


def pool_file(*nodes: dict[str, Any], name: str = "a", **traits: Any) -> dict[str, Any]:
    return {"schema": 1, "pools": [{"name": name, "nodes": list(nodes), **traits}]}


def gang(nodes: Any = 1, slots: int = 4, **rest: Any) -> dict[str, Any]:
    return {"resources": {"nodes": nodes, "slots_per_node": slots}, **rest}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with open_rig(tmp_path) as one:
        one.client.apply_pools(
            pool_file(
                {"name": "r1", "count": 2, "slots": 4, "topology": {"rack": "r1"}},
                {"name": "r2", "count": 2, "slots": 4, "topology": {"rack": "r2"}},
                levels=["rack"],
            )
        )
        yield one


def run(rig: Rig, num: int, attempt: int = 1) -> None:
    """Every supervisor of the attempt comes up, and its script says that it takes up checkpoints."""
    nodes = rig.job(num).nodes
    said = [rig.supervisor(num, rank, attempt) for rank in range(len(nodes))]
    for one in said:
        one.ready()
    for one in said:
        one.started()
    restored = wire.RestoredReport(
        seq=said[0].next_seq(), generation=0, path=None, step=0, epoch=0, position=0, exact=True
    )
    said[0].sync(restored)
    rig.supervisors[num] = said  # type: ignore[attr-defined]


def leave(rig: Rig, num: int) -> None:
    """The ranks have saved and everything of the attempt is gone."""
    for one in rig.supervisors[num]:  # type: ignore[attr-defined]
        one.ended(outcome="stopped", step=7)
        one.leave()


@pytest.fixture(autouse=True)
def _supervisors(rig: Rig) -> None:
    rig.supervisors = {}  # type: ignore[attr-defined]


def start(rig: Rig, **changes: Any) -> int:
    num = rig.submit(**changes)
    rig.turn()
    assert rig.job(num).state == "starting", rig.job(num).pending_reason
    run(rig, num)
    return num


def reservations(rig: Rig) -> dict[int, planning.StoredReservation]:
    return rig.store.view(planning.reservations_now)


class TestEviction:
    def test_the_cheapest_victims_leave_for_a_gang_that_waits_for_all_of_its_reservation(
        self, rig: Rig
    ) -> None:
        low = [start(rig, **gang(priority=20, name=f"low{i}")) for i in range(4)]
        high = rig.submit(**gang(2, priority=80))
        rig.turn(60)
        leaving = [num for num in low if rig.job(num).state == "stopping"]
        assert len(leaving) == 2
        racks = {rig.client.node(rig.job(n).nodes[0].node).topology["rack"] for n in leaving}
        assert len(racks) == 1  # one whole domain, and nobody in the other one
        view = rig.job(leaving[0])
        assert (view.goal, view.reason.code) == ("requeue", "preempted")
        assert f"makes room for j-{high} (8 slots, priority 80)" in view.reason.message
        assert rig.job(high).pending_reason.code == "waiting_for_victims"

        leave(rig, leaving[0])
        rig.turn(1)
        assert rig.job(leaving[0]).state == "queued"  # its slots are free and it does not get them
        assert rig.job(high).state == "queued"
        leave(rig, leaving[1])
        rig.turn(1)
        assert rig.job(high).state == "starting"
        assert reservations(rig) == {}
        for num in (*low, high):
            rig.check_log(num)

    def test_who_is_not_preemptible_stays(self, rig: Rig) -> None:
        for i in range(4):
            start(rig, **gang(priority=20, preemptible=False, name=f"low{i}"))
        high = rig.submit(**gang(priority=80))
        rig.turn(60)
        assert rig.job(high).pending_reason.code == "waiting_for_slots"
        assert reservations(rig) == {}

    @pytest.mark.parametrize(("factor", "num_asked"), [("1.5", 1), ("never", 0)])
    def test_peers_share_time_unless_the_operator_switches_it_off(
        self, tmp_path: Path, factor: str, num_asked: int
    ) -> None:
        scheduler = SchedulerSettings.model_validate({"peer_hysteresis": factor})
        with open_rig(tmp_path / "home", settings=Settings(scheduler=scheduler)) as rig:
            rig.client.apply_pools(pool_file({"name": "n", "count": 4, "slots": 4}))
            rig.supervisors = {}  # type: ignore[attr-defined]
            for i in range(4):
                start(rig, **gang(name=f"low{i}"))
            rig.submit(**gang())
            rig.turn(11 * 3600)
            asked = [job for job in rig.client.jobs().jobs if job.state == "stopping"]
            assert len(asked) == num_asked

    def test_a_policy_that_is_set_holds_from_the_next_pass_and_over_a_restart(
        self, tmp_path: Path
    ) -> None:
        def leaving(rig: Rig) -> int:
            return sum(job.state == "stopping" for job in rig.client.jobs().jobs)

        clock, executor = ManualClock(), FakeExecutor()
        settings = Settings(scheduler=SchedulerSettings(policy="fair", min_run_s=1800.0))

        def opened() -> AbstractContextManager[Rig]:
            home = tmp_path / "home"
            return open_rig(home, executor=executor, clock=clock, settings=settings)

        with opened() as rig:
            rig.client.apply_pools(pool_file({"name": "n", "count": 4, "slots": 4}))
            rig.supervisors = {}  # type: ignore[attr-defined]
            for i in range(4):
                start(rig, **gang(name=f"low{i}"))
            found = rig.client.scheduler_policy()
            assert (found.policy, found.source, found.stored) == ("fair", "start", None)
            assert found.constants == {"min_run_s": "1800.0"}
            assert list(found.policies) == list(NAMED_POLICIES)
            found = rig.client.set_scheduler_policy("fifo")
            assert (found.policy, found.source, found.start) == ("fifo", "stored", "fair")
            assert (found.set_by, found.set_at) == ("user:admin", at_of(clock.now()))
            rig.submit(**gang())
            rig.turn(11 * 3600)
            assert leaving(rig) == 0
            used = view_of(rig.platform, clock.now()).snapshot.config
            assert used == replace(NAMED_POLICIES["fifo"], min_run_s=1800.0)
        with opened() as rig:
            rig.turn(60)
            assert (rig.client.scheduler_policy().policy, leaving(rig)) == ("fifo", 0)
            for _ in range(2):
                rig.client.reset_scheduler_policy()
            rig.turn(60)
            assert (rig.client.scheduler_policy().policy, leaving(rig)) == ("fair", 1)

    def test_a_wrong_policy_is_refused_and_an_unknown_stored_one_has_no_effect(
        self, rig: Rig
    ) -> None:
        with pytest.raises(UserError, match="'quick'; known: throughput, fair, fifo, deadline"):
            rig.client.set_scheduler_policy("quick")
        later = planning.StoredPolicy("of-a-later-release", 1, "user")
        rig.store.transact(lambda tx: planning.put_policy(tx, later))
        found = rig.client.scheduler_policy()
        assert (found.policy, found.source, found.stored) == (
            *("throughput", "start", "of-a-later-release"),
        )
        assert view_of(rig.platform, rig.clock.now()).snapshot.config == PlannerConfig()

    def test_reservations_survive_the_death_of_the_control_plane(self, rig: Rig) -> None:
        low = [start(rig, **gang(priority=20, name=f"low{i}")) for i in range(4)]
        high = rig.submit(**gang(2, priority=80))
        rig.turn(60)
        leaving = [num for num in low if rig.job(num).state == "stopping"]
        leave(rig, leaving[0])
        before = reservations(rig)
        assert before
        root = rig.platform.home.root
        with open_rig(root, executor=rig.executor, clock=rig.clock) as second:
            second.supervisors = {}  # type: ignore[attr-defined]
            assert reservations(second) == before
            small = second.submit(
                **gang(priority=60)
            )  # more urgent than the victim, fits its slots
            second.turn(1)
            assert second.job(small).state == "queued"
            assert second.job(leaving[0]).state == "queued"
            for one in rig.supervisors[leaving[1]]:  # type: ignore[attr-defined]
                one.rig = second
            second.supervisors = rig.supervisors  # type: ignore[attr-defined]
            leave(second, leaving[1])
            second.turn(1)
            assert second.job(high).state == "starting"

    def test_without_the_reservation_the_next_in_line_would_take_the_slots(self, rig: Rig) -> None:
        """The control of the test above: what the hole prevents happens when it is forgotten."""
        low = [start(rig, **gang(priority=20, name=f"low{i}")) for i in range(4)]
        high = rig.submit(**gang(2, priority=80, preemptible=True))
        rig.turn(60)
        leaving = [num for num in low if rig.job(num).state == "stopping"]
        leave(rig, leaving[0])
        rig.store.transact(lambda tx: planning.remove_reservations(tx, [high]))
        rig.client.stop(high)
        rig.turn(1)
        assert rig.job(leaving[0]).state == "starting"

    def test_a_reservation_is_refused_whole_when_a_victim_is_gone_meanwhile(self, rig: Rig) -> None:
        from phalanx.core.scheduling import plan

        low = [start(rig, **gang(priority=20, name=f"low{i}")) for i in range(4)]
        rig.submit(**gang(2, priority=80))
        now = rig.clock.advance(60)
        view = view_of(rig.platform, now)
        decided = plan(view.snapshot, now)
        victims = [one.job for one in decided.preemptions]
        assert len(victims) == 2
        rig.client.stop(victims[0])
        step = apply(rig.platform, decided, view, now)
        assert step.refused and step.evicted == ()
        assert reservations(rig) == {}
        assert rig.job(victims[1]).state == "running"
        assert set(victims) < set(low)

    def test_what_it_cost_is_part_of_the_story(self, rig: Rig) -> None:
        low = start(rig, **gang(priority=20, pool="a"))
        for i in range(3):
            start(rig, **gang(priority=90, name=f"other{i}"))
        high = rig.submit(**gang(priority=80))
        rig.turn(60)
        doomed = rig.client.why(low)
        assert doomed.preempted_for is not None
        assert doomed.preempted_for.beneficiary == high
        leave(rig, low)
        rig.turn(1)
        run(rig, high)
        left = rig.client.why(low)
        assert [(one.code, one.beneficiary) for one in left.evictions] == [("preempted", high)]
        assert left.evictions[0].price_slot_s > 0
        assert left.evictions[0].lost_s is None
        rig.supervisors[high][0].ended(step=3)  # type: ignore[attr-defined]
        rig.supervisors[high][0].leave()  # type: ignore[attr-defined]
        rig.turn(1)
        run(rig, low, attempt=2)
        rig.clock.advance(30)
        rig.supervisors[low][0].step(0, 8)  # type: ignore[attr-defined]
        cost = rig.client.why(low).evictions[0].lost_s
        assert cost is not None and cost >= 31
        assert [one.cause for one in rig.job(low).lineage.restarts] == ["preempted"]


class TestElastic:
    @pytest.mark.parametrize(("rate", "grows"), [(1.0, False), (0.55, True)])
    def test_a_job_grows_only_where_its_own_steps_said_that_it_gains(
        self, rig: Rig, rate: float, grows: bool
    ) -> None:
        """Two nodes made one step a second; one node makes `rate`."""
        start(rig, **gang(2, priority=90, preemptible=False))
        elastic = start(rig, **gang("1..2", priority=40))
        measured = rig.supervisors[elastic][0]  # type: ignore[attr-defined]
        measured.step(0, 1)
        rig.clock.advance(1000)
        measured.step(0, 1001)
        other = rig.submit(**gang(1, priority=50))
        rig.turn()
        leave(rig, elastic)
        rig.turn(1)
        run(rig, elastic, attempt=2)
        run(rig, other)
        measured = rig.supervisors[elastic][0]  # type: ignore[attr-defined]
        measured.step(0, 1002)
        rig.clock.advance(1000)
        measured.step(0, 1002 + int(1000 * rate))
        for one in rig.supervisors[other]:  # type: ignore[attr-defined]
            one.ended(step=5)
            one.leave()
        rig.turn(1)
        rig.turn(700)
        assert (rig.job(elastic).reason.code == "resized") is grows

    def test_a_job_shrinks_for_another_and_grows_again(self, rig: Rig) -> None:
        start(rig, **gang(2, priority=90, preemptible=False))
        elastic = start(rig, **gang("1..2", priority=40))
        assert len(rig.job(elastic).nodes) == 2
        rig.clock.advance(3600)
        other = rig.submit(**gang(1, priority=50))
        rig.turn()
        view = rig.job(elastic)
        assert (view.state, view.reason.code) == ("stopping", "resized")
        leave(rig, elastic)
        rig.turn(1)
        assert rig.job(other).state == "starting"
        view = rig.job(elastic)
        assert (view.state, len(view.nodes), view.world_size) == ("starting", 1, 4)
        gangs = [
            rig.executor.started[ref].gang for ref in rig.executor.started if ref.job == elastic
        ]
        assert {
            (one.world.num_nodes, one.role.reference_world) for one in gangs if one.attempt == 2
        } == {(1, 8)}
        run(rig, elastic, attempt=2)
        run(rig, other)
        for one in rig.supervisors[other]:  # type: ignore[attr-defined]
            one.ended(step=5)
            one.leave()
        rig.turn(1)
        assert rig.job(elastic).state == "running"  # not again so soon
        rig.turn(700)
        assert rig.job(elastic).reason.code == "resized"
        small = rig.submit(**gang(1, priority=10))
        rig.turn(1)
        assert rig.job(small).state == "queued"  # where it will grow to is taken
        leave(rig, elastic)
        rig.turn(1)
        assert len(rig.job(elastic).nodes) == 2
        rig.check_log(elastic)

    def test_a_range_that_was_lowered_shrinks_a_running_job(self, rig: Rig) -> None:
        num = start(rig, **gang("1..2"))
        held = [one.node for one in rig.job(num).nodes]
        assert len(held) == 2
        rig.client.change(num, ChangeRequest(nodes=1))
        view = rig.job(num)
        assert (view.state, view.num_nodes) == ("running", 1)
        assert view.spec is not None
        assert view.spec["resources"]["nodes"] == 1
        rig.turn(1)  # long before the cool-down between two resizes is over
        view = rig.job(num)
        assert (view.state, view.reason.code) == ("stopping", "resized")
        assert "shrinks from 2 to 1 nodes" in view.reason.message
        leave(rig, num)
        rig.turn(1)
        assert [one.node for one in rig.job(num).nodes] == held[:1]
        rig.check_log(num)

    @pytest.mark.parametrize("nodes", ["2..4", 2])
    def test_a_range_that_was_raised_grows_a_running_job(self, rig: Rig, nodes: Any) -> None:
        num = start(rig, **gang(1))
        rig.client.change(num, ChangeRequest(nodes=nodes))
        rig.turn(1)
        view = rig.job(num)
        assert (view.state, view.reason.code) == ("stopping", "resized")
        leave(rig, num)
        rig.turn(1)
        assert len(rig.job(num).nodes) == 2
        rig.check_log(num)

    def test_a_move_to_a_size_that_is_allowed_no_more_is_forgotten(self, rig: Rig) -> None:
        num = start(rig, **gang(1))
        rig.client.change(num, ChangeRequest(nodes=2))
        rig.turn(1)
        assert num in reservations(rig)
        rig.client.change(num, ChangeRequest(nodes=1))
        assert reservations(rig) == {}
        leave(rig, num)
        rig.turn(1)
        assert len(rig.job(num).nodes) == 1
        rig.check_log(num)

    def test_a_script_that_does_not_save_keeps_its_nodes_until_its_next_start(
        self, rig: Rig
    ) -> None:
        num = rig.submit(**gang(1))
        rig.turn()
        (supervisor,) = [rig.supervisor(num)]
        supervisor.ready()
        supervisor.started()
        rig.client.change(num, ChangeRequest(nodes=2))
        rig.turn(1)
        assert (rig.job(num).state, len(rig.job(num).nodes)) == ("running", 1)
        rig.client.stop(num, goal="pause")
        rig.supervisors[num] = [supervisor]  # type: ignore[attr-defined]
        leave(rig, num)
        rig.turn(1)
        rig.client.resume(num)
        rig.turn(1)
        assert len(rig.job(num).nodes) == 2

    def test_a_number_of_nodes_that_no_cluster_or_gang_can_have_is_refused(self, rig: Rig) -> None:
        num = start(rig, **gang("1..2"))
        for nodes, said in [(5, "at most 2 such nodes|5 nodes|nodes"), ("4..2", "upper end")]:
            with pytest.raises(SpecInvalid, match=said):
                rig.client.change(num, ChangeRequest(nodes=nodes))
        part = {"run": "python x.py", "resources": {"nodes": 1, "slots_per_node": 1}}
        both = rig.submit(roles={"one": part, "two": part}, run=None, resources={})
        halves = rig.submit(**gang(2, placement={"required": "rack", "domains": 2}, name="halves"))
        with pytest.raises(SpecInvalid, match=r"`placement.domains` keeps its size"):
            rig.client.change(halves, ChangeRequest(nodes=4))
        with pytest.raises(SpecInvalid, match="several roles keeps its size"):
            rig.client.change(both, ChangeRequest(nodes=2))

    def test_it_starts_smaller_where_there_is_no_room_for_more(self, rig: Rig) -> None:
        start(rig, **gang(2, priority=60))
        elastic = start(rig, **gang("1..4", priority=40))
        assert len(rig.job(elastic).nodes) == 2


class TestBuiltInPool:
    """No pool file: one machine plays every node of a gang."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        with open_rig(tmp_path) as one:
            yield one

    def test_a_gang_of_several_nodes_evicts_and_is_evicted(self, rig: Rig) -> None:
        low = [start(rig, **gang(slots=2, priority=20, name=f"low{i}")) for i in range(2)]
        high = rig.submit(**gang(2, 2, priority=60))
        rig.turn(60)
        assert [rig.job(num).state for num in low] == ["stopping", "stopping"]
        assert rig.job(high).pending_reason.code == "waiting_for_victims"
        for num in low:
            leave(rig, num)
        rig.turn(1)
        assert rig.job(high).state == "starting"
        assert [share.node for share in rig.job(high).nodes] == ["local", "local"]
        run(rig, high)
        top = rig.submit(**gang(slots=3, priority=90))
        rig.turn(60)
        assert rig.job(high).state == "stopping"
        leave(rig, high)
        rig.turn(1)
        assert rig.job(top).state == "starting"
        for num in (*low, high, top):
            rig.check_log(num)


class TestProjects:
    FILE = {  # noqa: RUF012
        "schema": 1,
        "projects": [
            {"name": "vision", "guaranteed_slots": 8, "max_slots": 12},
            {"name": "text", "max_slots": 8, "max_running": 1, "max_priority": 70},
        ],
    }

    def test_quotas_hold_and_say_so(self, rig: Rig) -> None:
        rig.client.apply_projects(self.FILE)
        jobs = [rig.submit(**gang(project="vision", name=f"v{i}")) for i in range(4)]
        rig.turn()
        assert [rig.job(num).state for num in jobs] == ["starting"] * 3 + ["queued"]
        assert rig.job(jobs[3]).pending_reason.code == "waiting_for_quota"
        assert "12 of at most 12" in rig.job(jobs[3]).pending_reason.message
        assert any(one.kind == "quota" for one in rig.client.why(jobs[3]).changes)
        view = rig.client.project("vision")
        assert (view.held_slots, view.max_slots, view.num_waiting) == (12, 12, 1)

    def test_max_running_keeps_the_rest_back(self, rig: Rig) -> None:
        rig.client.apply_projects(self.FILE)
        first = rig.submit(**gang(project="text"))
        second = rig.submit(**gang(project="text", priority=60))
        rig.turn()
        assert (rig.job(first).state, rig.job(second).state) == ("queued", "starting")
        found = rig.client.why(first)
        assert "runs 1 jobs of at most 1" in found.reason.message
        assert found.constraints[0].text.endswith(f": j-{second}")
        assert [one.text for one in found.changes] == [
            "starts now at priority 70",
            "starts now if project text might run 2 jobs",
        ]

    def test_what_can_never_be_is_refused_at_submit(self, rig: Rig) -> None:
        rig.client.apply_projects(self.FILE)
        with pytest.raises(SpecInvalid, match="allows at most 70"):
            rig.submit(**gang(project="text", priority=80))
        with pytest.raises(SpecInvalid, match="may hold at most 8 slots, the job needs 12"):
            rig.submit(**gang(3, project="text"))

    def test_a_guarantee_is_taken_back_from_whom_it_was_lent_to(self, rig: Rig) -> None:
        rig.client.apply_projects(self.FILE)
        loans = [start(rig, **gang(project="other", priority=90, name=f"o{i}")) for i in range(4)]
        rig.client.apply_projects({"schema": 1, "projects": [{"name": "other"}]})
        owed = rig.submit(**gang(2, project="vision", priority=10))
        rig.turn(60)
        leaving = [num for num in loans if rig.job(num).state == "stopping"]
        assert len(leaving) == 2
        for num in leaving:
            leave(rig, num)
        rig.turn(1)
        assert rig.job(owed).state == "starting"

    TREE = {  # noqa: RUF012
        "schema": 1,
        "projects": [
            {"name": "lab", "guaranteed_slots": 8, "max_slots": 8, "max_running": 2},
            {"name": "robots", "guaranteed_slots": 4, "parent": "lab"},
            {"name": "speech", "parent": "lab", "max_slots": 8},
        ],
    }

    def test_the_quota_of_a_parent_binds_its_parts_together(self, rig: Rig) -> None:
        unlimited = [{**one, "max_running": None} for one in self.TREE["projects"]]  # type: ignore[dict-item]
        rig.client.apply_projects({"schema": 1, "projects": unlimited})
        jobs = [rig.submit(**gang(project=name)) for name in ("robots", "speech", "speech")]
        rig.turn()
        assert [rig.job(num).state for num in jobs] == ["starting", "starting", "queued"]
        said = rig.job(jobs[2]).pending_reason
        assert said.code == "waiting_for_quota"
        assert "project lab, which speech is part of, holds 8 of at most 8" in said.message
        told = rig.client.why(jobs[2])
        assert any("if project speech might hold" not in one.text for one in told.changes)
        assert any("project lab might hold 12 slots" in one.text for one in told.changes)
        lab = rig.client.project("lab")
        assert (lab.held_slots, lab.child_slots) == (0, 8)
        with pytest.raises(SpecInvalid, match="project lab, which speech is part of, may hold"):
            rig.submit(**gang(3, project="speech"))

    def test_max_running_of_a_parent_counts_all_its_parts(self, rig: Rig) -> None:
        rig.client.apply_projects(self.TREE)
        small = {"slots": 1}
        jobs = [rig.submit(**gang(**small, project=n)) for n in ("robots", "speech", "speech")]
        rig.turn()
        assert [rig.job(num).state for num in jobs] == ["starting", "starting", "queued"]
        said = rig.client.why(jobs[2]).reason.message
        assert "project lab, which speech is part of, runs 2 jobs of at most 2" in said

    def test_a_part_claims_what_its_parent_is_guaranteed(self, rig: Rig) -> None:
        rig.client.apply_projects({"schema": 1, "projects": [{"name": "other"}]})
        loans = [start(rig, **gang(project="other", priority=90, name=f"o{i}")) for i in range(4)]
        rig.client.apply_projects(self.TREE)
        owed = rig.submit(**gang(2, project="speech", priority=10))
        rig.turn(60)
        leaving = [num for num in loans if rig.job(num).state == "stopping"]
        assert len(leaving) == 2
        for num in leaving:
            leave(rig, num)
        rig.turn(1)
        assert rig.job(owed).state == "starting"

    def test_past_use_is_remembered_and_fades(self, rig: Rig) -> None:
        rig.client.apply_projects(self.FILE)
        num = start(rig, **gang(2, project="vision"))
        rig.turn()
        rig.turn(7 * 86_400)
        assert rig.client.project("vision").average_slots == pytest.approx(4.0, abs=0.01)
        for one in rig.supervisors[num]:  # type: ignore[attr-defined]
            one.ended(step=5)
            one.leave()
        rig.turn(1)
        rig.turn(7 * 86_400)
        assert rig.client.project("vision").average_slots == pytest.approx(2.0, abs=0.01)

    def test_a_bad_file_changes_nothing_and_names_every_fault(self, rig: Rig) -> None:
        with pytest.raises(SpecInvalid) as caught:
            rig.client.apply_projects(
                {
                    "schema": 1,
                    "projects": [
                        {"name": "a", "parent": "b", "guaranteed_slots": 4},
                        {"name": "b", "parent": "a"},
                    ],
                }
            )
        said = str(caught.value)
        assert "is its own ancestor" in said
        assert "raise guaranteed_slots to 4" in said
        assert [one.name for one in rig.client.projects()] == []


class TestNodes:
    def test_nothing_starts_on_a_drained_node_and_its_jobs_may_move(self, rig: Rig) -> None:
        num = start(rig, **gang())
        node = rig.job(num).nodes[0].node
        done = rig.client.drain(node, reason="fan")
        assert done.staying == [num]
        others = [rig.submit(**gang(name=f"o{i}")) for i in range(4)]
        rig.turn()
        assert [rig.job(one).state for one in others] == ["starting"] * 3 + ["queued"]
        rig.client.stop(others[3])
        assert rig.client.drain(node, jobs="move").moving == [num]
        assert rig.job(num).reason.code == "node_drained"
        leave(rig, num)
        run(rig, others[0])
        rig.supervisors[others[0]][0].ended(step=1)  # type: ignore[attr-defined]
        rig.supervisors[others[0]][0].leave()  # type: ignore[attr-defined]
        rig.turn(1)
        assert rig.job(num).state == "starting"
        assert rig.job(num).nodes[0].node != node
        assert rig.client.node(node).state == "drained"
        assert rig.client.undrain(node).state == "open"
        assert rig.job(start(rig, **gang(name="late"))).nodes[0].node == node
        with pytest.raises(NotFound, match="no node r1-9"):
            rig.client.drain("r1-9")

    def test_a_gang_keeps_to_its_required_domain(self, rig: Rig) -> None:
        start(rig, **gang(1, name="blocker"))
        num = rig.submit(**gang(2, placement={"required": "rack"}))
        wide = rig.submit(**gang(2, placement={"required": "rack"}, name="late"))
        rig.turn()
        names = {one.node for one in rig.job(num).nodes}
        assert {rig.client.node(name).topology["rack"] for name in names} == {"r2"}
        assert rig.job(wide).state == "queued"
        with pytest.raises(SpecInvalid, match="at most 2 × 4 slots fit in one rack"):
            rig.submit(**gang(3, placement={"required": "rack"}))

    def test_what_is_preferred_is_waited_for_and_then_done_without(self, rig: Rig) -> None:
        for name in ("r1-0", "r2-0"):
            rig.client.drain(name)
        wish = {"preferred": "rack", "patience": "5m"}
        num = rig.submit(**gang(2, placement=wish))
        rig.turn()
        assert rig.job(num).state == "queued"
        rig.turn(301)
        assert rig.job(num).state == "starting"

    def test_pools_slot_types_labels_and_taints_are_respected(self, rig: Rig) -> None:
        rig.client.apply_pools(
            pool_file(
                {"name": "h0", "slots": 8, "labels": {"disk": "nvme"}},
                {"name": "h1", "slots": 8, "taints": ["spot"]},
                name="h100",
                slot_type="H100",
                device_memory="80GB",
            )
        )
        fast = rig.submit(
            resources={"slots_per_node": 8, "accelerator": "H100", "accelerator_memory": "80GB"}
        )
        second = rig.submit(resources={"slots_per_node": 8, "accelerator": "H100"})
        nvme = rig.submit(**gang(1, 8, placement={"selector": {"disk": "nvme"}}))
        spot = rig.submit(**gang(1, 8, placement={"tolerate": ["spot"]}, priority=10))
        rig.turn()
        assert rig.job(fast).nodes[0].node == "h0"
        assert rig.job(second).state == "queued"
        assert rig.job(nvme).state == "queued"
        assert rig.job(spot).nodes[0].node == "h1"
        assert {one.name: one.num_free for one in rig.client.pools()} == {"a": 16, "h100": 0}
        with pytest.raises(SpecInvalid, match="no node has it; known: H100"):
            rig.submit(resources={"accelerator": "A100"})
        with pytest.raises(SpecInvalid, match="disk=nvme"):
            rig.submit(placement={"selector": {"disk": "hdd"}})


class TestPools:
    def test_applying_again_changes_nothing(self, rig: Rig) -> None:
        file = pool_file({"name": "x", "slots": 2}, name="b")
        assert [c.outcome for c in rig.client.apply_pools(file).changes] == ["created"]
        assert [c.outcome for c in rig.client.apply_pools(file).changes] == ["unchanged"]
        file["pools"][0]["nodes"][0]["slots"] = 3
        assert [c.outcome for c in rig.client.apply_pools(file).changes] == ["changed"]
        assert rig.client.node("x").num_slots == 3

    def test_what_runs_is_not_cut_off(self, rig: Rig) -> None:
        num = start(rig, **gang())
        node = rig.job(num).nodes[0].node
        smaller = pool_file({"name": "other", "slots": 4})
        with pytest.raises(Conflict, match=f"j-{num} runs on node {node}"):
            rig.client.apply_pools(smaller)
        with pytest.raises(Conflict, match=f"j-{num} still run in pool a"):
            rig.client.remove_pool("a")
        leave(rig, num)
        rig.turn(1)
        rig.client.stop(num)
        if rig.job(num).state == "stopping":
            rig.executor.alive.clear()
            rig.turn(1)
        rig.client.remove_pool("a")
        assert [pool.name for pool in rig.client.pools()] == ["local"]

    def test_a_bad_file_names_every_fault(self, rig: Rig) -> None:
        file = pool_file({"name": "r1-0", "slots": 0, "slts": 3}, name="b", executor="local")
        with pytest.raises(SpecInvalid) as caught:
            rig.client.apply_pools(file)
        assert {one.path for one in caught.value.problems} == {
            "pools[0].nodes[0].slots",
            "pools[0].nodes[0].slts",
        }
        with pytest.raises(SpecInvalid, match="belongs to pool a already"):
            rig.client.apply_pools(pool_file({"name": "r1-0", "slots": 1}, name="b"))
        with pytest.raises(SpecInvalid, match="has no rack in its topology"):
            rig.client.apply_pools(pool_file({"name": "y", "slots": 1}, name="b", levels=["rack"]))
        with pytest.raises(SpecInvalid, match="no such executor"):
            rig.client.apply_pools(pool_file({"name": "y", "slots": 1}, name="b", executor="slurm"))


class TestWhy:
    def test_it_says_what_binds_and_what_would_help(self, rig: Rig) -> None:
        for i in range(3):
            start(rig, **gang(priority=60, name=f"o{i}", max_duration="1h"))
        num = rig.submit(**gang(2, priority=50))
        rig.turn()
        found = rig.client.why(num)
        assert (found.position, found.num_waiting) == (1, 1)
        assert found.eta_p50_at is not None and found.eta_p90_at >= found.eta_p50_at
        kinds = {one.kind: one for one in found.changes}
        assert "4 slots on 1 node" in kinds["size"].text
        assert kinds["priority"].by_preemption and kinds["priority"].victims
        assert found.constraints
        # It is true: with the priority that it names the job's victims are asked to leave at once.
        higher = int(kinds["priority"].text.split()[-1])
        rig.client.stop(num)
        rig.submit(**gang(2, priority=higher))
        rig.turn(1)
        assert [j.state for j in rig.client.jobs().jobs].count("stopping") >= 1

    def test_a_finished_history_is_learned_from(self, rig: Rig) -> None:
        num = start(rig, **gang())
        rig.clock.advance(100)
        rig.supervisors[num][0].ended(step=5)  # type: ignore[attr-defined]
        rig.supervisors[num][0].leave()  # type: ignore[attr-defined]
        rig.turn(1)
        scheduling_step(rig.platform, rig.clock.now())
        history = view_of(rig.platform, rig.clock.now()).snapshot.history
        assert history.num_observed == 1
        with open_rig(rig.platform.home.root, clock=rig.clock) as second:
            again = view_of(second.platform, rig.clock.now()).snapshot.history
            assert again == history


def test_why_of_a_job_that_runs_says_what_it_waited_for(rig: Rig) -> None:
    others = [start(rig, **gang(name=f"other{i}")) for i in range(4)]
    late = rig.submit(**gang(slots=3, name="late"))
    rig.turn(5.0)
    assert rig.client.why(late).waits == []
    run(rig, others[0])
    (done,) = rig.supervisors[others[0]]  # type: ignore[attr-defined]
    done.ended(outcome="succeeded", step=7)
    done.leave()
    rig.turn(12.0)
    rig.turn()
    assert rig.job(late).state == "starting"
    (wait,) = rig.client.why(late).waits
    assert wait.attempt == 1
    assert wait.waited_s >= 5.0
    assert "3 slots" in wait.text


def test_a_gang_finds_its_own_shape_and_says_what_it_costs(rig: Rig) -> None:
    num = start(rig, resources={"accelerators": 8})
    job = rig.job(num)
    assert [len(node.slots) for node in job.nodes] == [4, 4]
    assert job.world_size == 8
    assert job.communication is not None
    assert job.communication.text == "16 pairs across 2 nodes over 10 Gbit/s: cost 1.6"
    assert [len(rig.job(start(rig, **gang())).nodes), rig.job(num).num_slots] == [1, 8]
