"""Populations through the services: forks begin from pinned checkpoints, and survive crashes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from integration.rig import Rig, ScriptedSupervisor, open_rig
from integration.test_control_studies import RANDOM, Bench, Crash, crash_at
from phalanx.core.contract.trial import TrialContract
from phalanx.core.jobs.desired import Action
from phalanx.errors import SpecInvalid
from phalanx.kit.clock import ManualClock
from phalanx.schemas.api.studies import TrialView
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.store import jobs
from phalanx.store.studies import checkpoint_pins
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration
SPACE = {"lr": {"log": [0.001, 1.0]}}
POPULATION = {"size": 4, "every": 2, "max": 8, "quantile": 0.25, "resample": 0.0}
# Those that come late to a comparison are the ones that can be replaced.
STARTS = [{"lr": 0.1}, {"lr": 0.12}, {"lr": 0.5}, {"lr": 0.9}]


def loss(params: dict[str, Any], unit: int) -> float:
    return abs(params["lr"] - 0.1) + 1 / unit


class Members(Bench):
    """Trials that train from target to target, and save a checkpoint at each."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, loss)
        self.alive: dict[tuple[int, int], ScriptedSupervisor] = {}
        self.begun: list[str] = []  # checkpoints of others that jobs began from

    def contract(self, job: int) -> TrialContract:
        facts = self.rig.store.view(lambda tx: jobs.load(tx, job)).facts
        found = contract_of(facts).trial
        assert found is not None
        return found

    def supervised(self, trial: TrialView) -> ScriptedSupervisor:
        """The supervisor of a trial's job; ranks that begin find the checkpoint that they need."""
        assert trial.job is not None
        attempt = self.rig.job(trial.job).attempts
        if (trial.job, attempt) not in self.alive:
            found = self.rig.supervisor(trial.job, attempt=attempt)
            source = self.contract(trial.job).fork_of
            # Later attempts begin from the job's own checkpoint.
            if source is not None and attempt == 1:
                held = self.rig.store.view(lambda tx: checkpoint_pins.pinned(tx, source.job))
                assert source.path in held
                self.begun.append(source.path)
            found.ready()
            found.started()
            self.alive[trial.job, attempt] = found
        return self.alive[trial.job, attempt]

    def step(self, trial: TrialView) -> None:
        """Train to the next target and report there; leave if nothing raises it."""
        supervisor = self.supervised(trial)
        orders = supervisor.sync().orders
        assert trial.job is not None
        until = max(orders.until or 0, self.contract(trial.job).until or 0)
        if orders.action is Action.RUN:
            path = f"/c/{trial.job}/{until}"
            at, base = supervisor.now(), {"generation": 0}
            saved = wire.CheckpointReport(
                seq=supervisor.next_seq(), step=until, path=path, at=at, **base
            )
            value = self.loss(trial.params, until)
            report = wire.TrialReport(
                seq=supervisor.next_seq(), unit=until, value=value, checkpoint=path, at=at, **base
            )
            supervisor.sync(saved, report)
            self.loops()
            orders = supervisor.sync().orders
            if orders.until is not None and orders.until > until:
                return
        if orders.action is Action.STOP:
            supervisor.ended(0, "stopped", step=until)
        else:
            supervisor.ended(0, "at_target", step=until, target=until)
        supervisor.leave()

    def turn(self, num: int) -> None:
        """Each trial that runs trains to its target, in an order that is always the same."""
        self.loops()
        self.rig.turn(1.0)
        self.loops()
        for trial in self.trials(num):
            if trial.job is not None and not trial.is_over:
                state = self.rig.job(trial.job).state
                if state in ("starting", "running", "stopping"):
                    self.step(trial)
        self.rig.turn(1.0)
        self.loops()

    def go_on(self, num: int, turns: int = 60) -> None:
        for _ in range(turns):
            if self.view(num).is_terminal:
                return
            self.turn(num)

    def start(self, **changes: Any) -> int:
        search = {"method": "pbt", "seed": 3}
        return self.submit(
            **{
                "search": search,
                "space": SPACE,
                "trials": {},
                "population": POPULATION,
                "start_with": STARTS,
            }
            | changes
        )

    def check(self, num: int) -> list[TrialView]:
        """The study has ended well: its size is kept, and nothing is pinned any more."""
        self.loops()
        trials = self.trials(num)
        assert self.view(num).state == "succeeded", self.view(num).reason
        assert sum(one.status == "completed" for one in trials) == 4
        listed = self.rig.client.jobs(limit=100).jobs
        assert sorted(one.num for one in listed) == sorted(one.job or 0 for one in trials)
        for one in listed:
            assert not self.rig.store.view(lambda tx, job=one.num: checkpoint_pins.pinned(tx, job))
        self.check_log(num)
        return trials


def test_members_that_fall_behind_are_replaced_by_forks_of_the_best(rig: Rig) -> None:
    members = Members(rig)
    num = members.start()
    members.go_on(num)
    trials = members.check(num)
    forks = [one for one in trials if one.origin.parent is not None]
    assert forks and members.begun
    for fork in forks:
        parent = trials[fork.origin.parent or 0]
        source = members.contract(fork.job or 0).fork_of
        assert source is not None and source.path == f"/c/{parent.job}/{fork.origin.step}"
        assert fork.params["lr"] == pytest.approx(parent.params["lr"] * 0.8) or fork.params[
            "lr"
        ] == pytest.approx(parent.params["lr"] * 1.2)
    replaced = [one for one in trials if one.status == "stopped"]
    assert len(replaced) == len(forks)
    assert all("by trial" in one.reason for one in replaced)
    # Members that are not replaced never leave their slots.
    assert {rig.job(one.job or 0).attempts for one in trials} == {1}


def test_pb2_asks_the_model_for_params_of_forks(rig: Rig) -> None:
    members = Members(rig)
    longer = POPULATION | {"quantile": 0.5}
    num = members.start(search={"method": "pb2", "seed": 3}, population=longer)
    members.go_on(num)
    trials = members.check(num)
    forks = [one for one in trials if one.origin.parent is not None]
    assert all(one.origin.sampler == "pb2" or "intervals" in one.origin.reason for one in forks), (
        forks
    )
    assert "pb2" in {one.origin.sampler for one in forks} <= {"pb2", "random"}
    assert all(one.origin.step for one in forks)


class Losing(Members):
    """The first fork loses its job before it has trained."""

    lost: TrialView | None = None

    def step(self, trial: TrialView) -> None:
        if trial.origin.parent is None or self.lost is not None:
            super().step(trial)
            return
        self.lost = trial
        supervisor = self.supervised(trial)
        supervisor.failed(message="the disk is full", cause="final_checkpoint_not_saved")
        supervisor.ended(0, "failed")
        supervisor.leave()


def test_a_lost_fork_begins_from_its_parent_until_it_has_a_checkpoint_of_its_own(rig: Rig) -> None:
    members = Losing(rig)
    num = members.start()
    members.go_on(num)
    members.loops()
    assert members.view(num).state == "succeeded" and members.lost is not None
    before, after = members.lost, members.trials(num)[members.lost.number]
    assert after.job != before.job and after.unit is not None
    sources = [members.contract(job or 0).fork_of for job in (before.job, after.job)]
    assert sources[0] == sources[1] is not None


HALVING = {"rule": "asha", "min": 2, "max": 6, "eta": 3, "hold": "never"}


def test_a_survivor_goes_on_in_a_job_with_more_slots(rig: Rig) -> None:
    members = Members(rig)
    rungs = HALVING | {"resources": {6: {"slots_per_node": 2}}}
    trials = {"max": 3, "parallel": 3}
    num = members.submit(search=RANDOM, space=SPACE, trials=trials, rungs=rungs)
    members.go_on(num)
    view = members.view(num)
    assert view.state == "succeeded" and view.best is not None and view.best.unit == 6
    after = view.best.job or 0
    source = members.contract(after).fork_of
    assert source is not None
    before = source.job
    slots = [(rig.job(job).spec or {})["resources"]["slots_per_node"] for job in (before, after)]
    assert slots == [1, 2]
    assert before != after and source.path == f"/c/{before}/2"
    assert (rig.job(before).state, members.contract(after).until) == ("cancelled", 6)
    assert "in a job of another shape" in rig.job(before).reason.message
    # Both jobs count: two units on one slot, four on two.
    spent = rig.store.view(lambda tx: jobs.slot_seconds(tx, num, view.best.number))  # type: ignore
    assert set(spent) == {before, after} and view.best.slot_s == sum(spent.values())
    members.check_log(num)


def test_a_shape_that_no_node_has_is_refused_at_once(rig: Rig) -> None:
    rungs = HALVING | {"resources": {6: {"slots_per_node": 99}}}
    with pytest.raises(SpecInvalid, match=r"rungs\.resources\.6: job\.resources"):
        Members(rig).submit(search=RANDOM, space=SPACE, trials={"max": 3}, rungs=rungs)


def test_the_best_params_are_trained_again_with_other_seeds(rig: Rig) -> None:
    members = Members(rig)
    trials = {"max": 3, "parallel": 3}
    num = members.submit(
        search=RANDOM, space=SPACE, trials=trials, rungs=HALVING, final={"seeds": 2}
    )
    members.go_on(num)
    view = members.view(num)
    assert view.state == "succeeded" and view.best is not None and view.final is not None
    assert (view.best.origin.sampler, view.final.trials) == ("random", [3, 4])
    assert [members.contract(job).seed for job in view.final.jobs] == [1, 2]
    again = members.trials(num)[3:]
    assert [one.params for one in again] == [view.best.params] * 2
    assert [one.unit for one in again] == [6, 6]
    expected = loss(view.best.params, 6)
    assert view.final.values == [expected] * 2
    assert (view.final.mean, view.final.deviation) == (pytest.approx(expected), 0.0)
    members.check_log(num)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.proof) for n in (1, 2))])
def test_a_crash_leaves_no_fork_without_its_checkpoint(tmp_path: Path, seed: int) -> None:
    options: dict[str, Any] = {"executor": FakeExecutor(), "clock": ManualClock()}
    dice, crashes = random.Random(seed), 0
    alive: dict[tuple[int, int], ScriptedSupervisor] = {}
    with open_rig(tmp_path, **options) as rig:
        num = Members(rig).start()
    is_over = False
    while not is_over:
        with open_rig(tmp_path, **options) as rig:
            members = Members(rig)
            for one in alive.values():
                one.rig = rig
            members.alive = alive
            crash_at(rig, dice.randrange(1, 25))
            try:
                members.go_on(num)
                members.check(num)
                is_over = True
            except Crash:
                crashes += 1
    assert crashes > 3
