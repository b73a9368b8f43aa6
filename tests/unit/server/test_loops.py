"""A loop: woken, timed, and never ended by an error."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.errors import ExecutorUnavailable
from phalanx.kit.clock import SystemClock
from phalanx.server.loops.runner import Loop, _wait_s, run_loop
from phalanx.server.notifier import Notifier, wait_for
from phalanx.store.database import Touched

pytestmark = pytest.mark.unit


def context() -> Any:
    return SimpleNamespace(notifier=Notifier(), clock=SystemClock())


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

        task = asyncio.create_task(run_loop(here, Loop("x", step, ("topic",), 60.0)))
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


def test_how_long_a_loop_waits() -> None:
    here, loop = context(), Loop("x", lambda now: None, (), 2.0)
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
