"""Shared reads: one for all that were woken before it began, a new one for what came later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from phalanx.server.notifier import SharedReads

pytestmark = pytest.mark.unit


class Source:
    """Counts reads, and lets them end together."""

    def __init__(self) -> None:
        self.num = 0
        self.may_end = asyncio.Event()

    async def read(self) -> int:
        self.num += 1
        mine = self.num
        await self.may_end.wait()
        return mine


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))  # type: ignore[arg-type]


def test_callers_with_one_key_share_a_read_that_sees_what_woke_them() -> None:
    async def scenario() -> None:
        reads, source = SharedReads[int](), Source()
        waiting = [
            asyncio.create_task(reads.read("a", woken_at, 5, source.read)) for woken_at in (3, 5, 4)
        ]
        await asyncio.sleep(0)
        source.may_end.set()
        assert await asyncio.gather(*waiting) == [1, 1, 1]
        assert await reads.read("a", 5, 7, source.read) == 1  # it began behind what woke this one
        assert await reads.read("a", 6, 7, source.read) == 2
        assert await reads.read("b", 0, 7, source.read) == 3

    run(scenario)


def test_a_caller_that_leaves_does_not_end_the_read_of_the_others() -> None:
    async def scenario() -> None:
        reads, source = SharedReads[int](), Source()
        first, second = (asyncio.create_task(reads.read("a", 1, 1, source.read)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        source.may_end.set()
        assert await second == 1 and first.cancelled()

    run(scenario)


def test_a_read_that_fails_is_not_kept() -> None:
    async def scenario() -> None:
        reads, source = SharedReads[int](), Source()
        source.may_end.set()

        async def fails() -> int:
            raise LookupError

        for _ in range(2):
            with pytest.raises(LookupError):
                await reads.read("a", 1, 1, fails)
        assert await reads.read("a", 1, 1, source.read) == 1

    run(scenario)


def test_few_reads_are_kept() -> None:
    async def scenario() -> None:
        reads, source = SharedReads[int](), Source()
        source.may_end.set()
        for place in range(500):
            await reads.read(place, 1, 1, source.read)
        assert len(reads._kept) == 64
        assert await reads.read(499, 1, 1, source.read) == 500 and source.num == 500

    run(scenario)
