"""The context shared by routes and loops: one object per running control plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Depends, Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from phalanx.core.tenancy.principals import Caller
from phalanx.errors import NotFound, TooManyRequests
from phalanx.kit.clock import Clock
from phalanx.server.leadership import Leadership
from phalanx.server.notifier import Notifier, SharedReads, wait_for
from phalanx.server.settings import Settings
from phalanx.services.login.provider import IdentityProvider
from phalanx.services.logs.endpoints import LogSenders
from phalanx.services.notify.config import NotifyConfig
from phalanx.services.platform import Platform
from phalanx.services.queries.live import LivePage

T = TypeVar("T")
RECEIVE: ContextVar[Receive | None] = ContextVar("phalanx_receive", default=None)
"""Reads the next message of the client of the present request: its body, then that it has disconnected."""
_MAX_WAITING_LOGINS = 16
# Interval between looks while no changes of other replicas arrive.
_DEAF_S = 1.0


class Threads(Enum):
    """Pools of worker threads with their sizes: one that is stuck leaves the others free.

    Writes wait for one another, and for another process that holds the database's lock; reads do not. A
    page of output takes several times its size in memory while it is made.
    """

    READS = ("reads", 40)
    LOGS = ("logs", 6)
    WRITES = ("writes", 16)
    SUPERVISORS = ("supervisors", 16)
    LOOPS = ("loops", 12)
    LEASE = ("lease", 3)
    LOGIN = ("login", 4)


@dataclass(slots=True)
class Presence:
    """The time of the last client request, on the monotonic clock, and what is open."""

    last_seen: float
    num_open: int = 0
    num_streams: int = 0
    #: number of open requests by token, and by whether they may change something
    of_token: Counter[tuple[str, bool]] = field(default_factory=Counter)


@dataclass(slots=True)
class AdminToken:
    """The token of the home; its rotation replaces it."""

    token: str


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one control plane. `admin` authenticates its owner."""

    platform: Platform  # what every service may use
    clock: Clock  # the time of this process
    settings: Settings  # defaults and the environment
    notifier: Notifier  # wakes loops and long polls
    admin: AdminToken  # the token of the home
    presence: Presence  # the last client and open requests
    started_at: int  # µs UTC
    leadership: Leadership  # whether this process runs the loops
    notify: NotifyConfig = field(default_factory=NotifyConfig)  # receivers of alerts
    log_senders: LogSenders = field(default_factory=LogSenders)  # to other log stores
    login: IdentityProvider | None = None  # the provider of `phalanx login`; None: it is off
    #: time of the last completed step of each loop, on the monotonic clock
    beats: dict[str, float] = field(default_factory=dict)
    #: the loop and the begin, on the monotonic clock, of each step that is under way, by thread
    steps: dict[int, tuple[str, float]] = field(default_factory=dict)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # set to end the process
    #: pages of live views with their bytes
    shared_reads: SharedReads[tuple[LivePage, bytes]] = field(default_factory=SharedReads)

    def provider(self) -> IdentityProvider:
        """The identity provider of `phalanx login`. Raises NotFound."""
        if self.login is None:
            raise NotFound(
                "no identity provider is configured here", "docs/how-to/login.md says how to"
            )
        return self.login

    async def poll_until(
        self,
        topics: tuple[str, ...],
        wait_s: float,
        look: Callable[[], T],
        enough: Callable[[T], bool],
        pool: Threads = Threads.READS,
    ) -> T:
        """Call `look` in a thread, now and at every publication.

        Returns its result when `enough` accepts it, or when `wait_s` has passed. Raises ClientDisconnect
        as soon as the client has left.
        """
        until = self.clock.monotonic() + min(wait_s, self.settings.api.max_wait_s)
        with self.notifier.subscribe(*topics) as woken, _departure(woken) as gone:
            while True:
                if gone.is_set():
                    raise ClientDisconnect
                found = await in_thread(look, pool=pool)
                left_s = until - self.clock.monotonic()
                if enough(found) or left_s <= 0 or self.notifier.closed:
                    return found
                hears = self.platform.store.hears_others
                await wait_for(woken, left_s if hears else min(left_s, _DEAF_S))


@contextlib.contextmanager
def _departure(woken: asyncio.Event) -> Iterator[asyncio.Event]:
    """An event that is set, with `woken`, when the client of the present request disconnects."""
    gone, receive = asyncio.Event(), RECEIVE.get()
    if receive is None:
        yield gone
        return

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        woken.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()


# Not a plain function: those run in a thread, once for each request.
async def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


Here = Annotated[Context, Depends(_context)]
CALLER_KEY = "phalanx.caller"
"""Where the scope of a request has its `Caller`."""
STILL_PERMITTED_KEY = "phalanx.still_permitted"
"""Where it has a function that returns the caller as it is now; None: it may no longer do this."""


async def _caller(request: Request) -> Caller:
    caller = request.scope[CALLER_KEY]
    assert isinstance(caller, Caller)
    return caller


By = Annotated[Caller, Depends(_caller)]
"""The authenticated caller of a request; not on routes that need none."""


_LIMITERS: RunVar[dict[Threads, CapacityLimiter]] = RunVar("phalanx_limiters")


def limiter(pool: Threads) -> CapacityLimiter:
    """The limiter of a pool in the running event loop."""
    found = _LIMITERS.get(None)
    if found is None:
        found = {one: CapacityLimiter(one.value[1]) for one in Threads}
        _LIMITERS.set(found)
    return found[pool]


async def in_thread(work: Callable[..., T], *args: object, pool: Threads = Threads.READS) -> T:
    """Run blocking work in a worker thread of a pool."""
    return await to_thread.run_sync(work, *args, limiter=limiter(pool))


async def asking_provider(work: Callable[[], T]) -> T:
    """Run work that asks the identity provider. Raises TooManyRequests: its callers have no token."""
    if limiter(Threads.LOGIN).statistics().tasks_waiting >= _MAX_WAITING_LOGINS:
        raise TooManyRequests("too many logins are being served", "try again")
    return await in_thread(work, pool=Threads.LOGIN)
