"""Every promise can be broken: a double of the planner that breaks one rule is caught by its check.

The numbers are those of `promises.PROMISES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.gang.placement import GangShape, Node, NodeShare, Placement
from phalanx.core.jobs.machine import decide
from phalanx.core.jobs.model import Decision
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.core.scheduling import (
    ClusterIndex,
    Plan,
    Preemption,
    Project,
    QueuedJob,
    Reservation,
    Resize,
    RunningJob,
    Start,
    plan_pass,
)
from phalanx.core.scheduling.index.slots import mask_of
from phalanx.errors import InvariantBroken
from phalanx.sim.audit import promises
from phalanx.sim.audit.auditor import Auditor
from phalanx.sim.cluster.lifecycles import JobLifecycles
from phalanx.sim.jobs import TraceJob
from phalanx.sim.model import SlotTimes
from support import clusters

pytestmark = pytest.mark.unit

US = 1_000_000
HOUR = 3600 * US
FULL = (0, 1, 2, 3)
WHY = Reason(ReasonCode.PREEMPTED, "")
NOTHING = Plan((), ())


def make_nodes(num: int = 4) -> list[Node]:
    return list(clusters.nodes(num))


def gang(num: int, count: int, per_node: int, **more: Any) -> QueuedJob:
    return QueuedJob(num, GangShape(count, per_node, per_node), more.pop("priority", 50), 0, **more)


def at(*where: tuple[int, tuple[int, ...]]) -> Placement:
    return Placement("p", tuple(NodeShare(f"n{i}", "h", slots) for i, slots in where))


def held(num: int, where: Placement, **more: Any) -> RunningJob:
    return RunningJob(num, where, **{"priority": 10, "started_at": 0, **more})


def cluster(
    *jobs: QueuedJob,
    running: tuple[RunningJob, ...] = (),
    projects: tuple[Project, ...] = (),
    num: int = 4,
) -> ClusterIndex:
    made = ClusterIndex(make_nodes(num), projects)
    for one in running:
        made.hold(one)
    for job in jobs:
        made.submit(job)
    return made


def check(made: ClusterIndex, decided: Plan, now: int = HOUR) -> None:
    Auditor().check_plan(made, decided, now)


# -- doubles: each gives a world and a plan that break one rule ------------------------------------


def a_slot_given_twice() -> None:
    made = cluster(gang(1, 1, 4))
    decided = plan_pass(made, 1)
    check(made, decided)
    check(made, replace(decided, starts=decided.starts * 2))


def a_held_slot_given() -> None:
    made = cluster(gang(1, 1, 2), running=(held(9, at((0, FULL))),))
    check(made, Plan((Start(1, at((0, (0, 1)))),), ()))


def a_stale_index() -> None:
    made = cluster()
    made.index.set_free(0, mask_of([0]))
    Auditor().check_world(made)


def half_a_gang() -> None:
    made = cluster(gang(1, 2, 4))
    check(made, Plan((Start(1, at((0, FULL))),), ()))


def a_gang_below_its_range() -> None:
    made = cluster(gang(1, 4, 2, min_nodes=2))
    check(made, Plan((Start(1, at((0, (0, 1)))),), ()))


def a_gang_across_racks() -> None:
    made = cluster(gang(1, 2, 4, required="rack"))
    check(made, Plan((Start(1, at((1, FULL), (2, FULL))),), ()))


def a_start_on_a_drained_node() -> None:
    made = cluster(gang(1, 1, 4))
    decided = plan_pass(made, 1)
    name = decided.starts[0].placement.shares[0].node
    made.replace_node(replace(make_nodes()[int(name[1:])], closed="drained"))
    check(made, decided)


def a_guarantee_forgotten() -> None:
    mine = (Project("a", guaranteed_slots=4), Project("b"))
    made = cluster(
        gang(1, 1, 4, project="a"),
        running=tuple(held(8 + i, at((i, FULL)), project="b") for i in range(4)),
        projects=mine,
    )
    auditor = Auditor()
    auditor.check_plan(made, NOTHING, HOUR)
    auditor.check_plan(made, NOTHING, 20 * HOUR)


def a_limit_exceeded() -> None:
    made = cluster(gang(1, 1, 4, project="a"), projects=(Project("a", max_slots=2),))
    check(made, Plan((Start(1, at((0, FULL))),), ()))


def a_victim_above_its_beneficiary() -> None:
    made = cluster(gang(1, 1, 4), running=(held(9, at((0, FULL)), priority=90),))
    check(made, eviction(1, (9,), ("n0",)))


def eviction(owner: int, victims: tuple[int, ...], where: tuple[str, ...]) -> Plan:
    reservation = Reservation(owner, where, HOUR, 2 * HOUR, victims)
    asked = tuple(Preemption(victim, owner, 0.0, WHY) for victim in victims)
    return Plan((), (), preemptions=asked, reservations=(reservation,))


def an_eviction_for_nothing() -> None:
    made = cluster(gang(1, 1, 4), running=(held(9, at((0, (0, 1)))), held(8, at((0, (2, 3))))))
    check(made, eviction(1, (9,), ("n0",)))


def an_eviction_without_a_reservation() -> None:
    made = cluster(gang(1, 1, 4), running=(held(9, at((0, FULL))),))
    check(made, replace(eviction(1, (9,), ("n0",)), reservations=()))


def a_start_in_somebody_elses_reservation() -> None:
    made = cluster(gang(1, 1, 4), gang(2, 1, 2), running=(held(9, at((0, (2, 3)))),))
    decided = replace(eviction(1, (9,), ("n0",)), starts=(Start(2, at((0, (0, 1)))),))
    check(made, decided)


def a_reservation_kept_for_ever() -> None:
    made = cluster(gang(1, 1, 4), running=(held(9, at((0, FULL)), stopping=True),))
    check(made, Plan((), (), reservations=(Reservation(1, ("n0",), 1, HOUR - 1, (9,)),)))


def the_same_victim_again_and_again() -> None:
    made = cluster(gang(1, 1, 4), running=(held(9, at((0, FULL))),))
    auditor = Auditor()
    for minute in range(30):
        auditor.check_plan(made, eviction(1, (9,), ("n0",)), HOUR + minute * US)


def a_superfluous_victim() -> None:
    made = cluster(
        gang(1, 1, 4), running=(held(9, at((0, (0, 1)))), held(8, at((1, (0, 1))))), num=2
    )
    check(made, eviction(1, (9, 8), ("n0",)))


def a_slot_left_idle() -> None:
    made = cluster(gang(1, 1, 4))
    promises.check_work_conserving(made, NOTHING, HOUR)


def a_job_left_behind() -> None:
    made = cluster(gang(1, 1, 4))
    promises.check_all_started(made, list(made.waiting.values()))


def a_plan_that_depends_on_more_than_the_facts() -> None:
    made = cluster(gang(1, 1, 4))
    promises.check_replay(made, plan_pass(made, 1), lambda _: NOTHING)


def a_slot_held_twice() -> None:
    made = cluster(running=(held(9, at((0, FULL))),))
    made.held[8] = held(8, at((0, FULL)))
    promises.check_slots(made)


def books_that_do_not_balance() -> None:
    promises.check_books(SlotTimes(useful=90.0, overhead=5.0, held=100.0))


def a_project_favoured() -> None:
    promises.check_fair({"a": 110.0, "b": 90.0}, {"a": 1.0, "b": 1.0}, 0.05)


def a_backfill_that_outstays() -> None:
    made = cluster(
        gang(1, 2, 4, max_duration_s=600.0),
        gang(2, 1, 4, max_duration_s=36_000.0),
        running=(held(9, at((0, FULL)), max_duration_s=7200.0),),
        num=2,
    )
    reserved = Reservation(1, ("n0", "n1"), 2 * HOUR, HOUR)
    check(made, Plan((Start(2, at((1, FULL))),), (), reservations=(reserved,)))


def a_gang_shrunk_below_its_range() -> None:
    made = cluster(running=(held(9, at((0, FULL), (1, FULL)), min_nodes=2, max_nodes=3),))
    check(made, Plan((), (), resizes=(Resize(9, at((0, FULL)), WHY),)))


def a_resize_within_the_cool_down() -> None:
    running = held(9, at((0, FULL)), min_nodes=1, max_nodes=3, resized_at=HOUR - US)
    made = cluster(running=(running,))
    check(made, Plan((), (), resizes=(Resize(9, at((0, FULL), (1, FULL)), WHY),)))


def a_pass_that_never_ends() -> None:
    check(cluster(gang(1, 1, 4)), replace(NOTHING, num_steps=10**9))


DOUBLES: dict[Callable[[], None], tuple[int, str]] = {
    a_slot_given_twice: (1, "given twice"),
    a_held_slot_given: (1, "is held"),
    a_stale_index: (1, "differs from its rebuild"),
    half_a_gang: (2, "1 shares of a gang of 2"),
    a_gang_below_its_range: (2, "1 shares of a gang of 4"),
    a_gang_across_racks: (3, "leaves its required rack"),
    a_start_on_a_drained_node: (4, "starts on closed"),
    a_guarantee_forgotten: (5, "for what it is guaranteed"),
    a_limit_exceeded: (6, "would hold 4 of at most 2"),
    a_victim_above_its_beneficiary: (7, "priority 50.* evicts j-9"),
    an_eviction_for_nothing: (8, "cannot hold its share"),
    an_eviction_without_a_reservation: (8, "an eviction without a reservation"),
    a_start_in_somebody_elses_reservation: (8, "cannot hold its share"),
    a_reservation_kept_for_ever: (8, "kept beyond its time"),
    the_same_victim_again_and_again: (9, "times in an hour"),
    a_superfluous_victim: (10, "does not need its slots"),
    a_slot_left_idle: (11, "fits into free slots and stays"),
    a_job_left_behind: (12, "could run and never started"),
    a_plan_that_depends_on_more_than_the_facts: (13, "gave different plans"),
    a_slot_held_twice: (14, "held twice"),
    books_that_do_not_balance: (14, "unaccounted for"),
    a_project_favoured: (16, "of its fair share"),
    a_backfill_that_outstays: (17, "delays the reservation of j-1"),
    a_gang_shrunk_below_its_range: (19, "would have 1 of 2 to 3"),
    a_resize_within_the_cool_down: (19, "after its last change"),
    a_pass_that_never_ends: (20, "steps"),
}


@pytest.mark.parametrize("double", DOUBLES, ids=lambda double: double.__name__)
def test_a_double_that_breaks_one_rule_is_caught(double: Callable[[], None]) -> None:
    _, said = DOUBLES[double]
    with pytest.raises(InvariantBroken, match=said):
        double()


def test_a_planner_that_a_node_makes_worse_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(job: QueuedJob, nodes: Sequence[Node]) -> bool:
        return len(nodes) < 4

    monkeypatch.setattr(promises, "fits_ever", spoiled)
    with pytest.raises(InvariantBroken, match="no longer fits"):
        promises.check_monotone(GangShape(1, 1, 1), make_nodes(3), make_nodes(4)[3])


def test_a_machine_that_counts_repetitions_is_caught() -> None:
    def forgetful(job: Any, event: Any, now: int) -> Decision:
        decision = decide(job, event, now)
        return replace(decision, job=replace(decision.job, restarts=job.restarts + 1), ignored=None)

    told = JobLifecycles(deliveries=2, machine=forgetful)
    told.submitted(TraceJob(1, 0.0, 10.0, GangShape(1, 1, 1)), 0.0)
    with pytest.raises(InvariantBroken, match="a second AttemptPlaced changed the job"):
        told.placed(1, at((0, (0,))), 1.0)


def test_every_promise_has_a_double() -> None:
    elsewhere = {15, 18}
    assert {number for number, _ in DOUBLES.values()} | elsewhere == set(promises.PROMISES)
