"""A control plane without processes of jobs: `python -m bench.control.plane HOME SLOTS WORK [URL]`.

Every job runs through all states. Instead of processes, a thread reports for the supervisor of each job
that it is ready, that its ranks have started and ended, and that it leaves, through the service that the
route of real supervisors calls. Standard output gets the URL. WORK is `ends`, or `stays` for jobs that run
on: their supervisors' tokens are then in a file of the home.
"""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.core.gang.placement import Node
from phalanx.core.jobs.model import NodeOutcome
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import (
    Heartbeat,
    LeavingReport,
    NodeReadyReport,
    RanksEndedReport,
    RanksStartedReport,
    SyncRequest,
)
from phalanx.server import app
from phalanx.server.settings import DatabaseSettings, read_settings
from phalanx.services.lifecycle.sync import SyncCall, supervisor_sync_many
from phalanx.services.platform import Platform
from phalanx.standalone.home import prepare_home, read_key, read_token

TOKENS = "bench-tokens.json"
"""Tokens of supervisors by job, in the home."""
_SLOTS_OF_NODE = 64
_AT_ONCE = 128


class NoopExecutor:
    """Nodes of 64 slots on which each job ends as soon as it starts, or runs on."""

    def __init__(self, num_slots: int, stay_in: Path | None) -> None:
        self._stay_in = stay_in
        self._tokens: dict[int, str] = {}
        self._nodes = tuple(
            Node(f"n{at}", "noop", "127.0.0.1", _SLOTS_OF_NODE, _SLOTS_OF_NODE, 64 << 30, True)
            for at in range(max(1, num_slots // _SLOTS_OF_NODE))
        )
        self._started = queue.SimpleQueue[Assignment]()
        self._alive = set[SupervisorRef]()
        self.platform: Platform | None = None

    def inventory(self) -> Sequence[Node]:
        """See `Executor`."""
        return self._nodes

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`."""
        self._alive.add(SupervisorRef.of(assignment))
        if self._stay_in is not None:
            self._tokens[SupervisorRef.of(assignment).job] = assignment.token
            (self._stay_in / TOKENS).write_text(json.dumps(self._tokens))
        self._started.put(assignment)

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        self._alive.discard(ref)

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`."""
        return [SupervisorStatus(ref, ref in self._alive) for ref in refs]

    def begin(self) -> None:
        """Report in a thread from now on."""
        threading.Thread(target=self._run, daemon=True, name="supervisors").start()

    def _run(self) -> None:
        while True:
            first = self._started.get()
            self._report([first, *self._waiting(_AT_ONCE - 1)])

    def report_all(self) -> None:
        """Report for every supervisor that was started."""
        while found := self._waiting(_AT_ONCE):
            self._report(found)

    def _waiting(self, limit: int) -> list[Assignment]:
        found = list[Assignment]()
        while len(found) < limit and not self._started.empty():
            found.append(self._started.get())
        return found

    def _report(self, started: Sequence[Assignment]) -> None:
        assert self.platform is not None
        now = round(time.time() * 1e6)
        num_reports = 4 if self._stay_in is None else 2
        calls = [SyncCall(_said(one, now, num_reports), one.token) for one in started]
        for one, answer in zip(
            started, supervisor_sync_many(self.platform, calls, now), strict=True
        ):
            if isinstance(answer, Exception):
                raise answer
            if self._stay_in is None:
                self._alive.discard(SupervisorRef.of(one))


def _said(one: Assignment, now: int, num_reports: int) -> SyncRequest:
    """The first reports of the supervisor of a job without work."""
    ref = SupervisorRef.of(one)
    return SyncRequest(
        job=ref.job,
        attempt=ref.attempt,
        node_rank=ref.node_rank,
        sent_at=now,
        heartbeat=Heartbeat(),
        reports=[
            NodeReadyReport(seq=1, port=1, addresses=["127.0.0.1"], pid=1, host="bench"),
            RanksStartedReport(seq=2, generation=0, pids=[2], warm=True),
            RanksEndedReport(seq=3, generation=0, outcome=NodeOutcome.SUCCEEDED, port=1),
            LeavingReport(seq=4),
        ][:num_reports],
    )


def main() -> None:
    home = prepare_home(Path(sys.argv[1]))
    executor = NoopExecutor(int(sys.argv[2]), home.root if sys.argv[3] == "stays" else None)
    settings = read_settings()
    if len(sys.argv) > 4:
        settings = settings.model_copy(update={"database": DatabaseSettings(url=sys.argv[4])})
    build = app.build_context

    def known(**given: Any) -> Any:
        context = build(**given)
        executor.platform = context.platform
        executor.begin()
        return context

    app.build_context = known
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        asyncio.run(
            app.serve(
                home=home,
                executor=executor,
                sock=sock,
                url=url,
                token=read_token(home),
                settings=settings,
                signing_key=read_key(home),
                on_ready=lambda: print(url, flush=True),
            )
        )


if __name__ == "__main__":
    main()
