"""Many clients with an open stream of events: the time from a change until each of them has it.

Jobs are submitted one at a time at a fixed rate, and go through all states without processes. Clients read
the streams of all control planes in turn; each must get every event of the feed once, in order. The time of
an event is that at which it was made, so that the commit is in it. All processes share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from bench.control.throughput import SPEC, database, processor_s, served

from phalanx.kit.clock import SystemClock
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.sdk import PhalanxClient

MOST_P95_S = 0.5
_SLOTS = 1024
_EVENT = re.compile(rb'"feed":(\d+).*?"at":"([^"]+)"')
_ON_THEIR_WAY = ("queued", "starting", "running", "recovering", "stopping")
_OPENING, _OF_A_TOKEN = 8, 20
_OPEN_S, _REST_S = 120.0, 60.0


@dataclass
class LiveReader:
    """One open stream: the feed numbers that arrived, and how late each was."""

    feeds: list[int] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    is_open: bool = False

    async def read(self, url: str, token: str, turn: asyncio.Semaphore) -> None:
        """Read until it is cancelled; streams open in turn. Exits where the stream is refused."""
        place, clock = urlsplit(url), SystemClock()
        await turn.acquire()
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
        head = (
            f"GET /api/v1/events/stream?from=now HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
        )
        writer.write(head.encode())
        try:
            status = await reader.readline()
            if b" 200 " not in status:
                raise SystemExit(f"a stream was refused: {status.decode()}")
            async for line in reader:
                if line.startswith(b"retry:"):
                    self.is_open = True
                    turn.release()
                found = _EVENT.search(line) if line.startswith(b"data:") else None
                if found is not None:
                    at = datetime.fromisoformat(found[2].decode()).timestamp()
                    self.feeds.append(int(found[1]))
                    self.late_s.append(clock.now() / 1e6 - at)
        finally:
            writer.close()


class Readers:
    """Many readers in one thread with a loop of its own."""

    def __init__(self, urls: list[str], tokens: list[str], num: int) -> None:
        self.every = [LiveReader() for _ in range(num)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="readers")
        self._thread.start()
        turn = asyncio.Semaphore(_OPENING)
        self._tasks = [
            asyncio.run_coroutine_threadsafe(
                one.read(urls[at % len(urls)], tokens[at // _OF_A_TOKEN], turn), self._loop
            )
            for at, one in enumerate(self.every)
        ]

    def wait(self, what: str, done: Callable[[LiveReader], object], most_s: float) -> None:
        """Wait until `done` holds for each reader. Exits after a while."""
        until = time.monotonic() + most_s
        while not all(done(one) for one in self.every):
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > until:
                missing = sum(not done(one) for one in self.every)
                raise SystemExit(f"{missing} of {len(self.every)} streams: {what} took too long")
            time.sleep(0.05)

    def close(self) -> None:
        """End all of them."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def report(
    databases: tuple[str, ...], num_clients: int, jobs_per_s: float, duration_s: float
) -> bool:
    """Measure and print; whether 95 % of the events arrive in time. PostgreSQL has three control planes."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
            contextlib.ExitStack() as stack,
        ):
            home = HomeLayout(Path(folder) / "home")
            count = 3 if url else 1
            planes = [stack.enter_context(served(home, _SLOTS, "ends", url)) for _ in range(count)]
            kept &= _measured(name, planes, num_clients, jobs_per_s, duration_s)
    return kept


def _measured(
    name: str,
    planes: list[tuple[PhalanxClient, subprocess.Popen[bytes]]],
    num_clients: int,
    jobs_per_s: float,
    duration_s: float,
) -> bool:
    urls = [str(client.url) for client, _ in planes]
    pids = [plane.pid for _, plane in planes]
    memory = [psutil.Process(pid).memory_info().rss for pid in pids]
    tokens = [
        planes[0][0].create_token(f"viewer-{at}", ["read"]).token
        for at in range(-(-num_clients // _OF_A_TOKEN))
    ]
    readers = Readers(urls, tokens, num_clients)
    try:
        readers.wait("opening", lambda one: one.is_open, _OPEN_S)
        opened = [psutil.Process(pid).memory_info().rss for pid in pids]
        used = [processor_s(pid) for pid in pids]
        client = planes[-1][0]
        began, num_jobs = time.monotonic(), 0
        while time.monotonic() < began + duration_s:
            client.submit(SubmitRequest(spec=SPEC))
            num_jobs += 1
            time.sleep(max(0.0, began + num_jobs / jobs_per_s - time.monotonic()))
        took_s = time.monotonic() - began
        last = _last_feed(client)
        readers.wait("the last event", lambda one: one.feeds and one.feeds[-1] >= last, _REST_S)
        spent = [processor_s(pid) - before for pid, before in zip(pids, used, strict=True)]
    finally:
        readers.close()
    first = readers.every[0].feeds
    same = all(one.feeds == first for one in readers.every)
    late = sorted(value for one in readers.every for value in one.late_s)
    p95 = late[int(0.95 * len(late))]
    grown = sum(opened) - sum(memory)
    print(
        f"live, {name}, {len(planes)} control planes, {num_clients} streams: {num_jobs} jobs in "
        f"{took_s:.1f} s, {len(first) / took_s:.0f} events a second, each to every stream: "
        f"{len(late)} arrived; late by {statistics.median(late) * 1e3:.0f} ms (median), "
        f"{p95 * 1e3:.0f} ms (95 %), {late[-1] * 1e3:.0f} ms (longest); "
        f"{'every stream has all events in order' if same else 'STREAMS DIFFER'}; "
        f"{grown / num_clients / 1024:.0f} KB of memory for an open stream; processors busy: "
        + ", ".join(f"{one / took_s:.2f}" for one in spent)
    )
    return same and p95 <= MOST_P95_S


def _last_feed(client: PhalanxClient) -> int:
    """The number of the last event once all jobs have ended. Exits after a while."""
    until = time.monotonic() + _REST_S
    while client.jobs(states=_ON_THEIR_WAY, limit=1).jobs:
        if time.monotonic() > until:
            raise SystemExit("not all jobs have ended")
        time.sleep(0.25)
    after, more = 0, True
    while more:
        page = client.live.feed(after=after)
        after, more = page.cursor, page.more
    return after
