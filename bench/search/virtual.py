"""A whole control plane in simulated time: real store, services and loops; trials that only report.

Every loop of the control plane runs when one of its topics is published, when it asked to be woken, and at
its ticks. What the control plane computes takes simulated time as well: the clock advances by the processor
time of each step and of each call of a supervisor, one after the other. So a control plane that is too slow
for its trials makes a study late here as it would on a machine with one processor for it. Not in these
figures: sockets, HTTP parsing, waiting for the disk, and the start of real processes, for which `boot_s`
stands.
"""

from __future__ import annotations

import heapq
import itertools
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.core.gang.placement import Node
from phalanx.core.jobs.desired import Action
from phalanx.executors.protocol import SupervisorRef
from phalanx.kit.clock import ManualClock
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.api.studies import StudyView, SubmitStudyRequest
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.wire import supervision as wire
from phalanx.schemas.wire.assignments import Assignment
from phalanx.server.app import build_context
from phalanx.server.context import Context
from phalanx.server.loops.runner import ServiceLoop
from phalanx.server.loops.steps import all_loops
from phalanx.server.settings import Settings
from phalanx.services.lifecycle.submit import submit
from phalanx.services.lifecycle.sync import supervisor_sync
from phalanx.services.queries import studies as views
from phalanx.services.studies.submit import submit_study
from phalanx.store import open_store
from phalanx.store.database import Touched
from phalanx.testing.executors import FakeExecutor

URL, TOKEN = "http://127.0.0.1:1", "token-of-the-bench"
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Course:
    """What one job does once it runs: `results` results, each after `unit_s` seconds, then its end."""

    results: int
    unit_s: float
    loss: Callable[[int], float] = lambda unit: 1.0 / (1 + unit)


@dataclass(slots=True)
class _Supervisor:
    assignment: Assignment
    course: Course
    seq: int = 0
    generation: int = -1
    unit: int = 0
    until: int | None = None
    began_at: int = 0  # of the ranks, which never wait for the control plane
    beat: wire.Heartbeat = field(default_factory=wire.Heartbeat)
    seen: str = ""


class VirtualExecutor(FakeExecutor):
    """Starts nothing: it tells the bench which supervisors would have been started or stopped."""

    on_start: Callable[[SupervisorRef, Assignment], None]
    on_stop: Callable[[SupervisorRef], None]

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`."""
        super().start(node, assignment)
        self.on_start(SupervisorRef.of(assignment), assignment)

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        super().stop(ref)
        self.on_stop(ref)


@dataclass(slots=True)
class _LoopState:
    loop: ServiceLoop
    due: int
    dirty: bool = True
    spent: list[float] = field(default_factory=list)  # processor seconds of each step


class VirtualPlane:
    """The control plane, its clock, and the supervisors of its jobs."""

    def __init__(
        self,
        context: Context,
        executor: VirtualExecutor,
        clock: ManualClock,
        course: Callable[[Assignment], Course],
        boot_s: float,
    ) -> None:
        self.context, self.executor, self.clock = context, executor, clock
        self.course, self.boot_s = course, boot_s
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._supervisors: dict[SupervisorRef, _Supervisor] = {}
        self.loops = [_LoopState(one, clock.now()) for one in all_loops(context, context.platform)]
        self.spent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.started_at: dict[int, int] = {}  # of jobs: their first ranks
        self.began = clock.now()
        executor.on_start, executor.on_stop = self._boot, self._killed
        context.platform.store.on_commit(self._touched)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the beginning."""
        return (self.clock.now() - self.began) / _US

    def study(self, spec: Mapping[str, Any], owner: str = "ada") -> int:
        """Submit a study."""
        request = SubmitStudyRequest(spec=dict(spec), owner=owner)
        return int(
            self._charged(
                "submit", lambda: submit_study(self.context.platform, request, self.clock.now())
            )
        )

    def job(self, spec: Mapping[str, Any], owner: str = "ops") -> int:
        """Submit a job."""
        request = SubmitRequest(spec=dict(spec), owner=owner)
        made = self._charged(
            "submit", lambda: submit(self.context.platform, request, self.clock.now())
        )
        return int(made[0])

    def view(self, num: int) -> StudyView:
        """A study as the API shows it."""
        return views.study_view(self.context.platform, num)

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Do something at a simulated time."""
        self._later(self.began + round(when_s * _US), what)

    def run(self, until: Callable[[], bool], limit_s: float = 1e7) -> None:
        """Go on until `until` holds; it is asked after each event."""
        end = self.began + round(limit_s * _US)
        while not until() and self.clock.now() < end:
            self._settle()
            self._pass_time()

    # -- time and loops --------------------------------------------------------------------------

    def _charged(self, name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        try:
            return work()
        finally:
            spent = time.process_time() - began
            self.spent[name] += spent
            self.calls[name] += 1
            self.clock.advance(spent)

    def _touched(self, touched: Touched) -> None:
        for one in self.loops:
            if touched.topics.intersection(one.loop.topics):
                one.dirty = True

    def _settle(self) -> None:
        """Run the loops that have a reason to."""
        for one in self.loops:
            if not one.dirty and one.due > self.clock.now():
                continue
            one.dirty = False
            began = time.process_time()
            wake_at = self._charged(one.loop.name, lambda one=one: one.loop.step(self.clock.now()))
            one.spent.append(time.process_time() - began)
            tick = self.clock.now() + round(one.loop.tick_s * _US)
            one.due = tick if wake_at is None else min(tick, max(wake_at, self.clock.now() + 1000))

    def _pass_time(self) -> None:
        """Go to the next event, unless a loop has something to do now."""
        if any(one.dirty for one in self.loops):
            self._due_events()
            return
        wake = min(one.due for one in self.loops)
        at = min(self._agenda[0][0], wake) if self._agenda else wake
        if at > self.clock.now():
            self.clock.advance((at - self.clock.now()) / _US)
        self._due_events()

    def _due_events(self) -> None:
        while self._agenda and self._agenda[0][0] <= self.clock.now():
            heapq.heappop(self._agenda)[2]()

    def _later(self, at: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), what))

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        self._later(self.clock.now() + round(seconds * _US), what)

    # -- supervisors -----------------------------------------------------------------------------

    def _boot(self, ref: SupervisorRef, assignment: Assignment) -> None:
        trial = assignment.gang.trial
        until = None if trial is None else trial.until
        made = _Supervisor(assignment, self.course(assignment), until=until)
        self._supervisors[ref] = made
        self._in(self.boot_s, lambda: self._ready(ref))

    def _killed(self, ref: SupervisorRef) -> None:
        self._supervisors.pop(ref, None)

    def _sync(self, ref: SupervisorRef, *bodies: wire.Report) -> wire.Orders | None:
        """One call, with its body and its answer as JSON."""
        mine = self._supervisors.get(ref)
        if mine is None:
            return None
        body = wire.SyncRequest(
            job=ref.job,
            attempt=ref.attempt,
            node_rank=ref.node_rank,
            sent_at=self.clock.now(),
            reports=list(bodies),
            heartbeat=mine.beat,
            seen=mine.seen,
        ).model_dump_json()

        def call() -> str:
            request = wire.SyncRequest.model_validate_json(body)
            token = mine.assignment.token
            answer = supervisor_sync(self.context.platform, request, token, self.clock.now())
            return answer.response.model_dump_json()

        orders = wire.SyncResponse.model_validate_json(self._charged("sync", call)).orders
        mine.seen = orders.version
        return orders

    def _seq(self, ref: SupervisorRef) -> int:
        self._supervisors[ref].seq += 1
        return self._supervisors[ref].seq

    def _ready(self, ref: SupervisorRef) -> None:
        if ref in self._supervisors:
            ready = wire.NodeReadyReport(seq=self._seq(ref), port=4000, pid=77, host="box")
            self._follow(ref, self._sync(ref, ready))

    def _follow(self, ref: SupervisorRef, orders: wire.Orders | None) -> None:
        mine = self._supervisors.get(ref)
        if mine is None or orders is None:
            return
        if orders.action in (Action.STOP, Action.END, Action.RELEASE):
            self._leave(ref, "stopped")
        elif orders.action is Action.RUN and mine.generation < orders.generation:
            mine.generation = orders.generation
            mine.beat = wire.Heartbeat(generation=orders.generation, phase="running")
            self.started_at.setdefault(ref.job, self.clock.now())
            started = wire.RanksStartedReport(
                seq=self._seq(ref), generation=mine.generation, pids=[1], warm=True
            )
            self._sync(ref, started)
            mine.began_at = self.clock.now()
            self._in(mine.course.unit_s, lambda: self._unit(ref))
        else:
            # What a long poll would wait for: another node of the gang, or a decision.
            self._in(0.02, lambda: self._follow(ref, self._sync(ref)))

    def _unit(self, ref: SupervisorRef) -> None:
        """The results that are there by now, in one call; the last one goes with the end."""
        mine = self._supervisors.get(ref)
        if mine is None:
            return
        last = mine.course.results if mine.until is None else min(mine.until, mine.course.results)
        passed_s = (self.clock.now() - mine.began_at) / _US
        by_now = max(mine.unit + 1, int(passed_s / mine.course.unit_s + 1e-6))
        reports = []
        while mine.unit < min(by_now, last):
            mine.unit += 1
            reports += self._result(ref, mine)
        if mine.unit >= last:
            over = mine.unit >= mine.course.results
            self._leave(ref, "succeeded" if over else "at_target", reports)
            return
        orders = self._sync(ref, *reports)
        if orders is not None and orders.action is not Action.RUN:
            self._leave(ref, "stopped")
        else:
            at = mine.began_at + round((mine.unit + 1) * mine.course.unit_s * _US)
            self._later(at, lambda: self._unit(ref))

    def _result(self, ref: SupervisorRef, mine: _Supervisor) -> list[wire.Report]:
        trial = mine.assignment.gang.trial
        if mine.assignment.node_rank or trial is None:
            return []
        value, final = mine.course.loss(mine.unit), mine.unit == mine.until
        return [
            wire.TrialReport(
                seq=self._seq(ref),
                generation=mine.generation,
                unit=mine.unit,
                value=value,
                metrics={trial.objective: value},
                checkpoint=f"/c/{ref.job}/{mine.unit}" if final else "",
                final=final,
                at=self.clock.now(),
            )
        ]

    def _leave(
        self, ref: SupervisorRef, outcome: str, reports: list[wire.Report] | None = None
    ) -> None:
        mine = self._supervisors[ref]
        reports = reports or []
        if mine.generation >= 0:
            reports.append(
                wire.RanksEndedReport(
                    seq=self._seq(ref),
                    generation=mine.generation,
                    outcome=outcome,  # type: ignore[arg-type]
                    port=4100,
                    step=mine.unit,
                    target=mine.until if outcome == "at_target" else None,
                )
            )
        self._sync(ref, *reports)
        if ref in self._supervisors:
            self._sync(ref, wire.LeavingReport(seq=self._seq(ref)))
        self._supervisors.pop(ref, None)
        self.executor.bury(ref)


def nodes(count: int, slots: int) -> tuple[Node, ...]:
    """Equal nodes that several jobs may share."""
    return tuple(
        Node(f"n{i:02}", "local", f"10.0.0.{i + 1}", slots, 4 * slots, 64 << 30, splittable=True)
        for i in range(count)
    )


@contextmanager
def virtual_plane(
    root: Path,
    course: Callable[[Assignment], Course],
    where: tuple[Node, ...],
    boot_s: float = 0.0,
) -> Iterator[VirtualPlane]:
    """A control plane over a fresh home."""
    home, clock = HomeLayout(root), ManualClock()
    executor = VirtualExecutor(nodes=where)
    store = open_store(home.database_file)
    context = build_context(
        store=store,
        home=home,
        executor=executor,
        url=URL,
        token=TOKEN,
        settings=Settings(),
        clock=clock,
    )
    try:
        yield VirtualPlane(context, executor, clock, course, boot_s)
    finally:
        store.close()
        context.platform.sampler.close()


def percentile(values: list[float], share: float) -> float:
    """A value of a list by rank; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def peak_mib() -> float:
    """The largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
