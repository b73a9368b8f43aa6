"""Wakes waiting loops, long polls and streams when topics are published, and lets them share reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from phalanx.services.lifecycle.commit import job_topic
from phalanx.store.database import Touched

ANY_JOB = "jobs"
_MOST_KEPT = 64
T = TypeVar("T")


class Notifier:
    """Topics and the asyncio events that wait for them. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._ends = asyncio.Event()
        self.published = 0
        """Publications so far; changed in the event loop only."""

    @property
    def closed(self) -> bool:
        """Whether the server is stopping: long polls answer at once."""
        return self._closed

    @contextlib.contextmanager
    def subscribe(self, *topics: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of `topics` is published."""
        self._loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        if self._closed:
            woken.set()
        for topic in topics:
            self._waiting[topic].add(woken)
        try:
            yield woken
        finally:
            for topic in topics:
                self._waiting[topic].discard(woken)
                if not self._waiting[topic]:
                    del self._waiting[topic]

    def touched(self, touched: Touched) -> None:
        """A listener for `Store.on_commit`."""
        topics = {*touched.topics, *(job_topic(num) for num in touched.jobs)}
        self.publish(topics | ({ANY_JOB} if touched.jobs else set()))

    def publish(self, topics: Iterable[str]) -> None:
        """Set the events that wait for one of `topics`."""
        if self._loop is not None and not self._loop.is_closed():
            wanted = tuple(topics)
            with contextlib.suppress(RuntimeError):  # the loop was closed this very moment
                self._loop.call_soon_threadsafe(self._wake, wanted)

    def _wake(self, topics: tuple[str, ...]) -> None:
        self.published += 1
        for topic in topics:
            for woken in self._waiting.get(topic, ()):
                woken.set()

    def publish_all(self) -> None:
        """Set all events once: any topic may have been published by another process."""
        self.publish(tuple(self._waiting))

    async def ended(self) -> None:
        """Wait until the server stops."""
        await self._ends.wait()

    async def pause(self, duration_s: float) -> None:
        """Wait for this duration, or until the server stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await self._ends.wait()

    def close(self) -> None:
        """Set all events for good."""
        self._closed = True
        self._ends.set()
        for waiting in self._waiting.values():
            for woken in waiting:
                woken.set()


async def wait_for(woken: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event was set within `timeout_s`; it is cleared again."""
    # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that meets the event.
    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            await woken.wait()
    except TimeoutError:
        return False
    woken.clear()
    return True


@dataclass(slots=True)
class _SharedRead(Generic[T]):
    began: int  # publications before it
    task: asyncio.Task[T]

    @property
    def is_usable(self) -> bool:
        """Whether it has not failed."""
        task = self.task
        return not task.done() or not (task.cancelled() or task.exception())


@dataclass(slots=True)
class SharedReads(Generic[T]):
    """Reads that many streams want at the same time, made once. Of one event loop.

    A read serves all callers that were woken before it began: it sees what woke them.
    """

    _kept: dict[Hashable, _SharedRead[T]] = field(default_factory=dict)

    async def read(
        self, key: Hashable, woken_at: int, published: int, make: Callable[[], Awaitable[T]]
    ) -> T:
        """What `make` finds, or found for another caller with this key.

        `woken_at` is the number of publications when the caller was woken, `published` that of now. A
        caller that leaves does not end the read of the others.
        """
        found = self._kept.get(key)
        if found is None or found.began < woken_at or not found.is_usable:
            found = _SharedRead(published, asyncio.ensure_future(_made(make)))
            self._kept.pop(key, None)
            self._kept[key] = found
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return await asyncio.shield(found.task)


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
