"""A loop: woken, timed, and never ended by an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.errors import ExecutorUnavailable
from phalanx.executors.routing import RoutedExecutor
from phalanx.kit.clock import ManualClock, SystemClock
from phalanx.server.loops import steps
from phalanx.server.loops.runner import ServiceLoop, _wait_s, run_loop
from phalanx.server.loops.steps import DispatchBatch, planner_pause_s
from phalanx.server.notifier import Notifier, wait_for
from phalanx.server.settings import LoopSettings
from phalanx.services.lifecycle.polling import PolledSupervisors
from phalanx.services.planning.scheduling import Step
from phalanx.store.database import Touched

pytestmark = pytest.mark.unit


def context() -> Any:
    return SimpleNamespace(notifier=Notifier(), clock=SystemClock(), beats={}, steps={})


def test_an_error_does_not_end_a_loop_and_a_topic_wakes_it() -> None:
    here, calls, done = context(), [], asyncio.Event()
    troubles: list[Exception] = [ExecutorUnavailable("away"), RuntimeError("bug")]

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def step(now: int) -> None:
            calls.append(now)
            if troubles:
                raise troubles.pop(0)
            loop.call_soon_threadsafe(done.set)

        task = asyncio.create_task(run_loop(here, ServiceLoop("x", step, ("topic",), 60.0)))
        async with asyncio.timeout(30):
            await done.wait()  # both errors are behind it
            done.clear()
            while not done.is_set():
                here.notifier.publish(["topic"])
                await asyncio.sleep(0.005)
            here.notifier.close()
            await task

    asyncio.run(main())
    assert len(calls) >= 4


@pytest.mark.parametrize("rest", [0.0, 3.0])
def test_a_loop_that_is_woken_without_end_rests_in_proportion(rest: float) -> None:
    """Without a rest, the guard off, it never pauses."""
    here, clock, pauses, steps = context(), ManualClock(), [], []

    async def pause(duration_s: float) -> None:
        pauses.append(duration_s)

    def step(now: int) -> None:
        steps.append(now)
        clock.advance(0.25)
        if len(steps) == 4:
            here.notifier.close()
        here.notifier.publish(["topic"])

    here.clock, here.notifier.pause = clock, pause
    asyncio.run(
        run_loop(here, ServiceLoop("x", step, ("topic",), 60.0, lambda took_s: rest * took_s))
    )
    assert pauses == ([0.75] * 4 if rest else [])


def test_a_pause_ends_with_the_server() -> None:
    async def main() -> None:
        here = Notifier()
        pausing = asyncio.create_task(here.pause(3600.0))
        await asyncio.sleep(0)
        here.close()
        async with asyncio.timeout(30):
            await pausing

    asyncio.run(main())


def test_the_planner_rests_longer_after_longer_plans() -> None:
    shares = [planner_pause_s(took_s) / took_s for took_s in (0.001, 0.1, 0.2, 10.0)]
    assert shares == pytest.approx([0.01, 1.0, 2.0, 4.0])


def test_storing_what_a_plan_starts_adds_nothing_to_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, clock = context(), ManualClock()
    here.clock = clock

    def slow(_platform: object, _now: int, _until: int, on_planned: Callable[[], None]) -> Step:
        clock.advance(0.2)
        on_planned()
        clock.advance(9.8)
        return Step((1,), (), None)

    monkeypatch.setattr(steps, "scheduling_step", slow)
    planner = steps._Scheduling(here, None)  # type: ignore[arg-type]
    planner.step(clock.now())
    assert planner.pause_s(10.0) == pytest.approx(0.4)


def test_the_dispatcher_takes_more_at_a_time_while_that_is_quick() -> None:
    batch = DispatchBatch()
    for _ in range(10):
        batch.took(0.01)
    assert batch.size == 512
    batch.took(2.0)
    assert batch.size == 256
    for _ in range(10):
        batch.took(2.0)
    assert batch.size == 16


def test_how_long_a_loop_waits() -> None:
    here, loop = context(), ServiceLoop("x", lambda now: None, (), 2.0)
    assert _wait_s(here, loop, None, 0) == 2.0
    assert _wait_s(here, loop, 0, 0) == 0.001
    assert 1.0 < _wait_s(here, loop, here.clock.now() + 1_500_000, 0) < 1.6
    assert _wait_s(here, loop, here.clock.now() + 90_000_000, 0) == 2.0
    assert _wait_s(here, loop, 0, 3) == pytest.approx(0.8)


def test_only_who_waits_for_a_topic_is_woken() -> None:
    here = Notifier()

    async def main() -> tuple[bool, bool, bool]:
        with here.subscribe("job:1") as one, here.subscribe("job:2") as two:
            here.touched(Touched(jobs={1}))
            woken = await wait_for(one, 10.0), await wait_for(two, 0.01)
            here.close()
            return (*woken, await wait_for(two, 10.0))

    assert asyncio.run(main()) == (True, False, True)


def test_a_cancelled_wait_is_cancelled_even_when_the_event_comes() -> None:
    """What asyncio.wait_for gets wrong on Python 3.11, and what kept a server from stopping."""

    async def main() -> bool:
        woken = asyncio.Event()
        task = asyncio.create_task(wait_for(woken, 10.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        woken.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(main())


def test_a_pool_that_tells_of_a_change_is_polled_between_the_times_of_all(monkeypatch: Any) -> None:
    """A storm of changes is polled for a fifth of the time: a poll of 10 ms, then 40 ms of rest."""
    polls: list[object] = []
    published: list[tuple[str, ...]] = []
    here, clock = context(), ManualClock()
    here.notifier = SimpleNamespace(publish=published.append)
    here.clock, here.settings = clock, SimpleNamespace(loops=LoopSettings())
    none = PolledSupervisors((), leaving=False)

    def changed(platform: object, pools: set[str], now: int) -> None:
        polls.append((now, pools))
        clock.advance(0.01)

    monkeypatch.setattr(steps, "poll_step", lambda platform, now: polls.append(now) or none)
    monkeypatch.setattr(steps, "poll_leaving_step", lambda platform, now: none)
    monkeypatch.setattr(steps, "poll_changed_step", changed)
    here.platform, ms = SimpleNamespace(), 1000
    polling, begin = steps.Polling(here, here.platform), clock.now()
    assert polling.step(begin) == begin + 500 * ms
    polling.tell("a")
    polling.tell("b")
    assert set(published) == {(steps.SUPERVISORS,)}
    assert polling.step(begin + 10 * ms) == begin + 500 * ms
    polling.tell("a")
    assert polling.step(begin + 20 * ms) == begin + 60 * ms  # it rests
    assert polling.step(begin + 60 * ms) == begin + 500 * ms
    assert polls == [begin, (begin + 10 * ms, {"a", "b"}), (begin + 60 * ms, {"a"})]


def test_an_executor_of_pools_passes_on_what_each_pool_tells() -> None:
    told: list[str] = []
    first, later = TellingPool(), TellingPool()
    pools: Any = {"first": first}
    routed = RoutedExecutor(pools)
    routed.tell(told.append)
    routed.add("later", later)  # type: ignore[arg-type]
    first.changed("first")
    later.changed("later")
    assert told == ["first", "later"]


class TellingPool:
    """A pool of which a test says when something has changed."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda pool: None

    def tell(self, changed: Callable[[str], None]) -> None:
        self.changed = changed
