"""Stores the reports of many supervisors in one transaction.

A commit waits for the disk, and a transaction costs as much as the few rows of a call. Calls that arrive
while others are being stored therefore wait for those, and are then stored together; a single call does not
wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context as ContextVars

from phalanx.schemas.wire.supervision import SyncRequest
from phalanx.server.context import Context, Threads, in_thread
from phalanx.services.lifecycle.sync import (
    SyncAnswer,
    SyncCall,
    supervisor_sync,
    supervisor_sync_many,
)

# Limits on one transaction: a call may bring a megabyte.
_CALLS_AT_ONCE, _REPORTS_AT_ONCE = 128, 512
# PostgreSQL lets several write at a time, so that one which waits for a lock does not hold back all others.
_WRITERS = {"sqlite": 1, "postgresql": 4}


class SyncBatches:
    """The calls that wait to be stored. Its methods run in the event loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[tuple[SyncCall, asyncio.Future[SyncAnswer]]] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._most = _WRITERS[context.platform.store.dialect]

    async def sync(self, request: SyncRequest, token: str) -> SyncAnswer:
        """`supervisor_sync` in a thread, together with other calls where that is quicker."""
        if not request.reports:
            now, platform = self._context.clock.now(), self._context.platform
            return await in_thread(
                supervisor_sync, platform, request, token, now, pool=Threads.SUPERVISORS
            )
        stored: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((SyncCall(request, token), stored))
        if len(self._writers) < self._most:
            # Nothing of this request, such as its row of the audit log, belongs to the other calls.
            writer = asyncio.create_task(self._write(), context=ContextVars())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await stored

    async def _write(self) -> None:
        while batch := self._next():
            calls, context = [call for call, _ in batch], self._context
            answers: list[SyncAnswer | Exception]
            try:
                answers = await in_thread(
                    supervisor_sync_many,
                    context.platform,
                    calls,
                    context.clock.now(),
                    pool=Threads.SUPERVISORS,
                )
            except Exception as error:
                answers = [error for _ in batch]
            for (_, stored), answer in zip(batch, answers, strict=True):
                if stored.done():
                    continue  # its supervisor has hung up
                if isinstance(answer, Exception):
                    stored.set_exception(answer)
                else:
                    stored.set_result(answer)

    def _next(self) -> list[tuple[SyncCall, asyncio.Future[SyncAnswer]]]:
        """The calls that are stored next: at most one of each job, in the order of their arrival."""
        found: list[tuple[SyncCall, asyncio.Future[SyncAnswer]]] = []
        later, jobs, num_reports = list(found), set[int](), 0
        while self._waiting and len(found) < _CALLS_AT_ONCE and num_reports < _REPORTS_AT_ONCE:
            one = self._waiting.popleft()
            if one[0].request.job in jobs:
                later.append(one)
                continue
            jobs.add(one[0].request.job)
            num_reports += len(one[0].request.reports)
            found.append(one)
        self._waiting.extendleft(reversed(later))
        return found
