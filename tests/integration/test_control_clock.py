"""The wall clock of the control plane is set while jobs depend on deadlines, also across restarts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.rig import Rig, ScriptedSupervisor, open_rig
from phalanx.kit.clock import SteadyClock
from phalanx.schemas.home import HomeLayout
from phalanx.services.timekeeping import Timekeeper, open_clock
from phalanx.store import open_store
from phalanx.testing.executors import FakeExecutor
from support.clocks import SettableClock

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}
HOUR_S, DAY_S = 3600.0, 86_400.0


class Plant:
    """A machine with a control plane that can be restarted, and true time.

    Without `guarded`, the control plane uses the wall clock as it is: the negative control.
    """

    def __init__(self, root: Path, *, guarded: bool = True) -> None:
        self.root, self.guarded = root, guarded
        self.source, self.executor = SettableClock(), FakeExecutor()
        self.true_s = 0.0
        self._open()

    def _open(self) -> None:
        clock: Any = self.source
        if self.guarded:
            store = open_store(HomeLayout(self.root).database_file)
            clock = open_clock(store, self.source, "boot")
            store.close()
        self._context = open_rig(self.root, executor=self.executor, clock=clock)
        self.rig: Rig = self._context.__enter__()
        self.keeper = Timekeeper(self.rig.store, clock, "boot")
        self.turn(0.0)

    def turn(self, seconds: float) -> None:
        self.source.advance(seconds)
        self.true_s += seconds
        clock = self.rig.context.clock
        self.keeper.step(clock.now())
        # The rig's own turn would move the clock.
        self.rig.clock = Still(clock.now)  # type: ignore[assignment]
        self.rig.turn()

    def restart(self, down_s: float = 0.0, jump_s: float = 0.0) -> None:
        self._context.__exit__(None, None, None)
        self.source.advance(down_s)
        self.true_s += down_s
        self.source.set(jump_s)
        self._open()

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def supervisor(self, num: int) -> ScriptedSupervisor:
        return self.rig.supervisor(num)

    def until(self, reached: Callable[[], bool], step_s: float, most_s: float) -> float:
        """True seconds until something is reached; infinite where it is not."""
        began = self.true_s
        while not reached():
            if self.true_s - began > most_s:
                return float("inf")
            self.turn(step_s)
        return self.true_s - began


class Still:
    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now

    def advance(self, _seconds: float) -> int:
        return self.now()


def running(plant: Plant, **spec: Any) -> tuple[int, ScriptedSupervisor]:
    num = plant.rig.submit(resources=SMALL, **spec)
    plant.turn(1)
    one = plant.supervisor(num)
    one.ready()
    one.started(pids=(1,))
    return num, one


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("guarded", [True, False])
def test_three_hours_ahead_do_not_end_a_job_of_one_hour(
    tmp_path: Path, guarded: bool, restart: bool
) -> None:
    plant = Plant(tmp_path / "home", guarded=guarded)
    num, _ = running(plant, max_duration="1h")
    plant.turn(25)
    if restart:
        plant.restart(jump_s=3 * HOUR_S)
    else:
        plant.source.set(3 * HOUR_S)
    plant.turn(1)
    ended = lambda: plant.rig.job(num).state == "stopping"  # noqa: E731
    assert ended() is not guarded
    if guarded:
        assert plant.until(ended, 120, 2 * HOUR_S) == pytest.approx(HOUR_S - 26, abs=160)
    plant.close()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_day_back_does_not_freeze_a_back_off(
    tmp_path: Path, guarded: bool, restart: bool
) -> None:
    plant = Plant(tmp_path / "home", guarded=guarded)
    num, one = running(plant)
    for generation in range(3):  # failures without progress have to wait, the third for two seconds
        one.failed(generation)
        one.ended(generation, "failed")
        plant.turn(0.1 if generation == 2 else 2)
    assert plant.rig.job(num).state == "recovering"
    if restart:
        plant.restart(jump_s=-DAY_S)
        one.rig = plant.rig
    else:
        plant.source.set(-DAY_S)
    again = lambda: one.sync().orders.generation == 3  # noqa: E731
    assert (plant.until(again, 1, 60) < 10) is guarded
    plant.close()


@pytest.mark.parametrize("guarded", [True, False])
def test_a_jump_in_a_grace_does_not_kill_a_save(tmp_path: Path, guarded: bool) -> None:
    plant = Plant(tmp_path / "home", guarded=guarded)
    num, one = running(plant)
    plant.rig.client.stop(num, goal="cancel")
    plant.turn(5)
    plant.source.set(HOUR_S)
    plant.turn(1)
    left_s = one.sync().orders.grace_left_s
    assert left_s == pytest.approx(24.0 if guarded else 0.0, abs=0.5)
    assert (one.ref in plant.executor.stopped) is not guarded
    plant.close()


@pytest.mark.extras
@given(st.integers(0, 2**32))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_deadlines_follow_true_time_under_random_jumps_and_restarts(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    plant = Plant(tmp_path_factory.mktemp("plant") / "home")
    limit_s = rng.uniform(600, 2000)
    began = plant.true_s
    num, _ = running(plant, max_duration=f"{limit_s:.0f}s")
    shown = plant.rig.context.clock.now()
    while plant.rig.job(num).state == "running":
        assert plant.true_s - began < limit_s * 1.02 + 200
        plant.turn(rng.uniform(20, 100))
        if rng.random() < 0.1:
            plant.source.set(rng.uniform(-3 * DAY_S, 3 * DAY_S))
        if rng.random() < 0.05:
            plant.restart(rng.uniform(0, 30), rng.choice([0.0, rng.uniform(-DAY_S, DAY_S)]))
        now = plant.rig.context.clock.now()
        assert now >= shown
        shown = now
    assert plant.true_s - began == pytest.approx(limit_s, rel=0.02, abs=200)
    plant.close()


def test_without_live_jobs_the_wall_clock_is_followed(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "home")
    plant.turn(1)
    plant.source.set(DAY_S)
    plant.turn(5)
    clock = plant.rig.context.clock
    assert isinstance(clock, SteadyClock) and clock.ahead_s == pytest.approx(0.0, abs=0.1)
    assert plant.rig.client.info().clock_ahead_s == pytest.approx(0.0, abs=0.1)
    running(plant)
    plant.source.set(-DAY_S)
    plant.turn(5)
    assert plant.rig.client.info().clock_ahead_s == pytest.approx(DAY_S, rel=0.01)
    plant.close()
