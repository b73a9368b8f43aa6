"""A leader with a loop that hangs: it gives up its lease, and leads again once the step has ended."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.kit.clock import ManualClock
from phalanx.server.loops import leading
from phalanx.server.loops.runner import ServiceLoop
from phalanx.server.notifier import Notifier
from phalanx.store.leadership.leases import LOOPS, Lease
from support.waiting import wait_until

pytestmark = pytest.mark.unit


class OneLease:
    """The leadership of a process that gets the lease whenever it asks."""

    def __init__(self, others: bool) -> None:
        self.me, self.others, self.log = object(), others, list[str]()

    def take(self) -> Lease:
        self.log.append("take")
        return Lease(LOOPS, self.log.count("take"))

    def renew(self, lease: Lease) -> None:
        self.log.append("renew")

    def has_others(self) -> bool:
        return self.others

    def stand_by(self) -> None:
        self.log.append("stand by")

    def platform_of(self, platform: Any, lease: Lease) -> Any:
        return platform


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("needed", [True, False])
def test_a_leader_with_a_step_that_hangs_lets_another_one_lead(
    others: bool, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it keeps the lease, and for a loop that no job waits for."""
    clock, mine, notifier = ManualClock(), OneLease(others), Notifier()
    hangs, go_on = threading.Event(), threading.Event()

    def step(now: int) -> None:
        if not go_on.is_set():
            hangs.set()
            assert go_on.wait(30)

    async def pause(duration_s: float) -> None:
        """Time passes only while the step hangs."""
        if await asyncio.to_thread(hangs.wait, 30) and not go_on.is_set():
            clock.advance(100.0)
        await asyncio.sleep(0)

    cache = SimpleNamespace(start_fresh=lambda: None)
    store = SimpleNamespace(transact=lambda work: None)
    here: Any = SimpleNamespace(
        notifier=notifier,
        clock=clock,
        beats={},
        steps={},
        leadership=mine,
        platform=SimpleNamespace(scheduler_cache=cache, studies=cache, store=store),
        settings=SimpleNamespace(loops=SimpleNamespace(hanging_after_s=300.0)),
    )
    loop = ServiceLoop("dispatcher", step, (), 60.0, needed=needed)
    monkeypatch.setattr(notifier, "pause", pause)
    monkeypatch.setattr(leading, "all_loops", lambda context, platform: (loop,))
    monkeypatch.setattr(leading, "RENEW_S", 0.001)

    async def main() -> None:
        task = asyncio.create_task(leading.lead(here))
        async with asyncio.timeout(30):
            await asyncio.to_thread(
                wait_until, lambda: mine.log.count("renew") >= 20 or "stand by" in mine.log
            )
            before = list(mine.log)
            assert before.count("take") == 1  # not again while the step hangs
            assert ("stand by" in before) is (others and needed)
            go_on.set()
            if others and needed:
                await asyncio.to_thread(wait_until, lambda: mine.log.count("take") == 2)
            notifier.close()
            await task

    asyncio.run(main())
