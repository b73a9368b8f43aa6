"""A control plane in one process: real store, services and routes; fake executor; manual clock."""

from __future__ import annotations

import base64
import contextlib
import itertools
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from fastapi.routing import iter_route_contexts

from phalanx.core.jobs.machine import rebuild
from phalanx.executors.protocol import SupervisorRef
from phalanx.kit.clock import ManualClock
from phalanx.kit.text import random_hex
from phalanx.schemas.api.jobs import JobView, SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire import supervision as wire
from phalanx.sdk import PhalanxClient
from phalanx.search import SamplerWorker
from phalanx.server.app import build_context, create_app
from phalanx.server.context import Context
from phalanx.server.settings import ApiSettings, Settings
from phalanx.services.lifecycle.dispatch import LeaseOwner, dispatch_step
from phalanx.services.lifecycle.polling import poll_step
from phalanx.services.lifecycle.requests import timers_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.store import events, jobs, open_store
from phalanx.store.migrate import DATABASE_ID
from phalanx.testing.executors import FakeExecutor
from support import databases
from support.asgi import AsgiTransport, asgi_transport

URL = "http://127.0.0.1:1"
TOKEN = "secret-of-the-home"
_SAMPLES = {
    "{scope}": "project",
    "{num}": "1",
    "{digest}": "0" * 64,
    "{name}": "local",
    "{trial}": "0",
    "{secret}": "A_TOKEN",
    "{schedule}": "nightly",
    "{template}": "tune",
    "{bill}": "november",
    "{tunnel}": "0" * 32,
}


def sample_path(route: str) -> str:
    """A path of a route."""
    for name, sample in _SAMPLES.items():
        route = route.replace(name, sample)
    assert "{" not in route, f"say in _SAMPLES what stands for the variable of {route}"
    return route


def spec(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "schema": 1,
        "name": "digits",
        "run": ["python", "train.py"],
        "resources": {"nodes": 1, "slots_per_node": 3},
    }
    return base | changes


@dataclass
class Rig:
    context: Context
    executor: FakeExecutor
    clock: ManualClock
    client: PhalanxClient
    transport: AsgiTransport
    owner: LeaseOwner = field(default_factory=lambda: LeaseOwner("test", "t1"))

    @property
    def platform(self):
        return self.context.platform

    @property
    def store(self):
        return self.context.platform.store

    def routes(self) -> list[tuple[str, str]]:
        """Every method and path that the application knows, pages and documentation among them."""
        return [
            (method, route.path)
            for route in iter_route_contexts(create_app(self.context).routes)
            for method in sorted(route.methods or ())
        ]

    def submit(self, **changes: Any) -> int:
        view = self.client.submit(SubmitRequest(spec=spec(**changes), owner="ada")).job
        assert view is not None
        return view.num

    def retain(self, **periods: float | None) -> None:
        """Set retention periods of the platform, in seconds."""
        rules = self.platform.retention
        rules = replace(rules, periods=replace(rules.periods, **periods))
        object.__setattr__(self.platform, "retention", rules)

    def turn(self, seconds: float = 0.0) -> None:
        """Every loop once, in the order of one job's life."""
        now = self.clock.advance(seconds)
        timers_step(self.platform, now)
        poll_step(self.platform, now)
        scheduling_step(self.platform, now)
        dispatch_step(self.platform, self.owner, now)

    def job(self, num: int) -> JobView:
        return self.client.job(num)

    def supervisor(
        self, num: int, node_rank: int = 0, attempt: int = 1, incarnation: int = 0
    ) -> ScriptedSupervisor:
        ref = SupervisorRef(num, attempt, node_rank, incarnation=incarnation)
        return ScriptedSupervisor(self, ref)

    def check_log(self, num: int) -> None:
        """The events alone rebuild the job."""
        stored = self.store.view(lambda tx: jobs.load(tx, num))
        assert rebuild(self.store.view(lambda tx: events.machine_log(tx, num))) == stored.job


class ScriptedSupervisor:
    """What a supervisor says, sentence by sentence, through the real route."""

    def __init__(self, rig: Rig, ref: SupervisorRef) -> None:
        self.rig, self.ref = rig, ref
        self.assignment = rig.executor.started[ref]
        self.token = self.assignment.token
        self.numbers = itertools.count(1)
        self.seq = 0
        self.beat = wire.Heartbeat()
        self.skew_us = 0

    def next_seq(self) -> int:
        self.seq = next(self.numbers)
        return self.seq

    def now(self) -> int:
        return self.rig.clock.now() + self.skew_us

    def post(self, request: wire.SyncRequest, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        with httpx.Client(base_url=URL, transport=self.rig.transport) as http:
            return http.post(
                "/api/v1/supervisors/sync",
                content=request.model_dump_json(),
                headers=headers | {"Content-Type": "application/json"},
            )

    def request(self, *reports: wire.Report, **rest: Any) -> wire.SyncRequest:
        return wire.SyncRequest(
            job=self.ref.job,
            attempt=self.ref.attempt,
            node_rank=self.ref.node_rank,
            incarnation=self.ref.incarnation,
            sent_at=self.now(),
            reports=list(reports),
            heartbeat=self.beat,
            **rest,
        )

    def sync(self, *reports: wire.Report, **rest: Any) -> wire.SyncResponse:
        response = self.post(self.request(*reports, **rest))
        assert response.status_code == 200, response.text
        return wire.SyncResponse.model_validate_json(response.content)

    def ready(self, port: int = 4000) -> wire.Orders:
        return self.sync(
            wire.NodeReadyReport(seq=self.next_seq(), port=port, pid=77, host="box")
        ).orders

    def started(self, generation: int = 0, pids: tuple[int, ...] = (1, 2, 3)) -> wire.Orders:
        self.beat = wire.Heartbeat(generation=generation, phase="running")
        return self.sync(
            wire.RanksStartedReport(
                seq=self.next_seq(), generation=generation, pids=list(pids), warm=True
            )
        ).orders

    def step(self, generation: int, step: int, loss: float = 0.5) -> wire.Orders:
        self.beat = wire.Heartbeat(generation=generation, step=step, epoch=0, phase="running")
        point = wire.MetricPoint(rank=0, step=step, at=self.now(), values={"loss": loss})
        return self.sync(
            wire.MetricsReport(seq=self.next_seq(), generation=generation, points=[point])
        ).orders

    def failure(self, message: str = "rank 1 was killed by SIGKILL", **rest: Any):
        base = {"cause": "rank_crash", "rank": 1, "at": self.now(), "message": message}
        return wire.FailureReport(**(base | rest))

    def failed(self, generation: int = 0, **rest: Any) -> wire.Orders:
        return self.sync(
            wire.RankFailedReport(
                seq=self.next_seq(), generation=generation, failure=self.failure(**rest)
            )
        ).orders

    def ended(
        self, generation: int = 0, outcome: str = "succeeded", step: int | None = None, **rest: Any
    ) -> wire.Orders:
        return self.sync(
            wire.RanksEndedReport(
                seq=self.next_seq(),
                generation=generation,
                outcome=outcome,
                port=4100 + generation,
                step=step,
                **rest,
            )
        ).orders

    def log(self, offset: int, data: bytes, rank: int = 0, generation: int = 0) -> wire.Orders:
        return self.sync(
            wire.LogReport(
                seq=self.next_seq(),
                generation=generation,
                rank=rank,
                stream="out",
                offset=offset,
                data=base64.b64encode(data).decode(),
            )
        ).orders

    def leave(self) -> None:
        self.sync(wire.LeavingReport(seq=self.next_seq()))
        self.rig.executor.bury(self.ref)


def _make_database(file: Path) -> None:
    """A fresh database with an id of its own: a copy costs a fifth of making the tables."""
    if databases.without_files():
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(_fresh_database())
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as raw:
        raw.execute("UPDATE facts SET value = ? WHERE name = ?", (random_hex(32), DATABASE_ID))


@cache
def _fresh_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.sqlite")
        open_store(made).close()
        return made.read_bytes()


@contextmanager
def open_rig(
    root: Path,
    *,
    executor: FakeExecutor | None = None,
    clock: ManualClock | None = None,
    settings: Settings | None = None,
    sampler: SamplerWorker | None = None,
) -> Iterator[Rig]:
    home = HomeLayout(root)
    clock = clock or ManualClock()
    executor = executor or FakeExecutor()
    if not home.database_file.exists():
        _make_database(home.database_file)
    store = open_store(home.database_file)
    context = build_context(
        store=store,
        home=home,
        executor=executor,
        url=URL,
        token=TOKEN,
        # A live view ends after its first page: the client of tests reads whole answers.
        settings=settings or Settings(api=ApiSettings(max_stream_s=0)),
        clock=clock,
        sampler=sampler,
    )
    try:
        with (
            asgi_transport(create_app(context)) as transport,
            PhalanxClient(URL, TOKEN, transport=transport) as client,
        ):
            yield Rig(context, executor, clock, client, transport)
    finally:
        store.close()
        if sampler is None:
            context.platform.sampler.close()
