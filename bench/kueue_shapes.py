"""The load shapes of Kueue's scheduler performance suite, through our production control plane.

    python bench/kueue_shapes.py [--shape baseline|large-scale|tas] [--part 0.1] [--config FILE.yaml]
                                 [--planner compiled|Python]

The generators have the same parameters as Kueue's `test/performance/scheduler/configs`; `--config` reads
one of its `generator.yaml` files instead. The production control plane's own loops plan, launch and look
who is gone, woken as in a server, and every state change goes into SQLite with `synchronous=FULL`: a
commit that returned survives a power cut. The executor starts nothing and ends every workload after its
`runtimeMs`, as Kueue's own runner does. Not like for like: Kueue pays
for an API server and etcd, we for one process and one file.

How the shapes are carried over: a cluster queue is a project with its nominal quota guaranteed; the
cohort is a pool with the sum of the nominal quotas, and what a queue may borrow is its `max_slots`.
With topology, a slot is a quarter of a CPU, nodes stand in racks, and every queue keeps to its nominal
quota, since the nodes themselves do not bound what a cohort may hold. Priorities 50/100/200 are
25/50/100.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.scheduler import variants

from phalanx.core.gang.placement import Demand, Node
from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import JobState, NodeOutcome
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.kit import garbage
from phalanx.kit.clock import SystemClock
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.wire.assignments import Assignment
from phalanx.server.app import build_context
from phalanx.server.context import Context, in_thread
from phalanx.server.loops.runner import ServiceLoop, run_loop
from phalanx.server.loops.steps import all_loops
from phalanx.server.settings import Settings
from phalanx.services.lifecycle.admission import facts_of
from phalanx.services.lifecycle.commit import commit_many, commit_new_many
from phalanx.services.platform import Platform
from phalanx.services.resources import projects
from phalanx.store import jobs, open_store
from phalanx.store.database import Touched
from phalanx.store.jobs import JobFacts

# What supervisors say within so long is stored together.
TELL_S = 0.01


@dataclass(frozen=True)
class Kind:
    """One workload set of a queue."""

    name: str
    count: int
    every_ms: float
    runtime_ms: float
    priority: int
    slots: int
    pods: int = 1
    required: bool = False


@dataclass(frozen=True)
class Shape:
    """A generator: cohorts of equal queues, each with the same workload sets."""

    cohorts: int
    queues: int
    nominal: int
    borrow: int
    kinds: tuple[Kind, ...]
    racks: int = 0
    nodes: int = 0
    node_slots: int = 0


BASELINE_KINDS = (
    Kind("small", 350, 100, 200, 50, 1),
    Kind("medium", 100, 500, 500, 100, 5),
    Kind("large", 50, 1200, 1000, 200, 20),
)
LARGE_KINDS = (
    Kind("small", 35, 60, 150, 50, 1),
    Kind("medium", 11, 300, 350, 100, 5),
    Kind("large", 4, 700, 700, 200, 20),
)
TAS_KINDS = (
    Kind("small-required-rack", 120, 100, 200, 50, 2, 2, True),
    Kind("small-preferred-rack", 120, 100, 200, 50, 2, 2),
    Kind("small-balanced-rack", 110, 100, 200, 50, 2, 2),
    Kind("medium-required-rack", 34, 500, 500, 100, 5, 4, True),
    Kind("medium-preferred-rack", 33, 500, 500, 100, 5, 4),
    Kind("medium-balanced-rack", 33, 500, 500, 100, 5, 4),
    Kind("large-required-rack", 17, 1200, 1000, 200, 10, 8, True),
    Kind("large-preferred-rack", 17, 1200, 1000, 200, 10, 8),
    Kind("large-balanced-rack", 16, 1200, 1000, 200, 10, 8),
)
BASELINE = Shape(5, 6, 20, 100, BASELINE_KINDS)
LARGE = Shape(10, 100, 20, 100, LARGE_KINDS)
TAS = Shape(5, 6, 80, 0, TAS_KINDS, racks=10, nodes=640, node_slots=384)
SHAPES = {"baseline": BASELINE, "large-scale": LARGE, "tas": TAS}
THEIRS = {"baseline": (351, 80), "large-scale": (1179, 120), "tas": (401, 100)}


def of_config(path: Path) -> Shape:
    """Kueue's own file as a shape. One CPU is a slot, or four where pods ask for parts."""
    body = yaml.safe_load(path.read_text())
    (cohort,) = body["cohorts"]
    (queues,) = cohort["queuesSets"]
    parts = 4 if "topology" in body else 1

    def slots(text: object) -> int:
        word = str(text)
        cpus = float(word[:-1]) / 1000 if word.endswith("m") else float(word)
        return round(cpus * parts)

    kinds = tuple(
        Kind(
            one["className"],
            few["count"],
            few["creationIntervalMs"],
            one["runtimeMs"],
            one["priority"],
            slots(one["request"]),
            one.get("podCount", 1),
            one.get("tasConstraint") == "required",
        )
        for few in queues["workloadsSets"]
        for one in few["workloads"]
    )
    nominal = slots(queues["nominalQuota"])
    if parts == 1:
        borrow = slots(queues["borrowingLimit"])
        return Shape(cohort["count"], queues["count"], nominal, borrow, kinds)
    racks, each = (level["count"] for level in body["topology"]["levels"][1:])
    return Shape(cohort["count"], queues["count"], nominal, 0, kinds, racks, racks * each, 384)


class NoOp:
    """An executor that starts nothing; a workload is gone when the bench says so."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.fresh: deque[SupervisorRef] = deque()
        self.alive: set[SupervisorRef] = set()

    def inventory(self) -> Sequence[Node]:
        return self.nodes

    def start(self, node: Node, assignment: Assignment) -> None:
        ref = SupervisorRef(assignment.gang.job.num, assignment.gang.attempt, assignment.node_rank)
        if ref not in self.alive:
            self.alive.add(ref)
            self.fresh.append(ref)

    def stop(self, ref: SupervisorRef) -> None:
        self.alive.discard(ref)

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        return [SupervisorStatus(ref, ref in self.alive) for ref in refs]


def nodes_of(shape: Shape) -> list[Node]:
    if shape.racks:
        each = shape.nodes // shape.racks
        domains = [(("block", "b0"), ("rack", f"r{i // each}")) for i in range(shape.nodes)]
        return [
            Node(f"n{i:03d}", "tas", "h", shape.node_slots, 4096, 1 << 40, domains=domains[i])
            for i in range(shape.nodes)
        ]
    size = shape.nominal * shape.queues
    return [Node(f"c{i}", f"cohort-{i}", "h", size, 65536, 1 << 40) for i in range(shape.cohorts)]


@dataclass
class Bench:
    """The outside world of a control plane: the submissions and the reports of supervisors."""

    context: Context
    executor: NoOp
    shape: Shape
    part: float
    kind_of: dict[int, Kind] = field(default_factory=dict)
    created: dict[int, float] = field(default_factory=dict)
    admitted: dict[int, float] = field(default_factory=dict)
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    evicted: dict[tuple[int, int], None] = field(default_factory=dict)
    leaving: deque[tuple[int, int]] = field(default_factory=deque)
    done: set[int] = field(default_factory=set)
    bad: list[str] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    finish: Callable[[], object] = lambda: None
    total: int = 0
    began: float = 0.0

    @property
    def platform(self) -> Platform:
        return self.context.platform

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def arrivals(self) -> list[tuple[float, int, Kind]]:
        found = []
        for queue in range(self.shape.cohorts * self.shape.queues):
            for kind in self.shape.kinds:
                for i in range(max(1, round(kind.count * self.part))):
                    found.append((i * kind.every_ms / 1000, queue, kind))
        return sorted(found, key=lambda one: (one[0], one[1], one[2].name))

    def templates(self) -> dict[tuple[int, str], tuple[JobFacts, object]]:
        """Specs are validated once a template, as a client that submits many would send them."""
        found: dict[tuple[int, str], tuple[JobFacts, object]] = {}
        for queue in range(self.shape.cohorts * self.shape.queues):
            for kind in self.shape.kinds:
                pool = "tas" if self.shape.racks else f"cohort-{queue // self.shape.queues}"
                resources = {"nodes": kind.pods, "slots_per_node": kind.slots}
                fixed = {"schema": 1, "run": "true", "framework": "none"}
                queued = {"project": f"q{queue:04d}", "pool": [pool]}
                own = {"name": kind.name, "priority": kind.priority // 2, "resources": resources}
                spec = validate_spec({**fixed, **queued, **own})
                demand = Demand(
                    required="rack" if kind.required else None,
                    preferred="rack" if self.shape.racks else None,
                )
                facts = replace(facts_of(spec), spec=resolved(spec), owner="bench", demand=demand)
                found[queue, kind.name] = (facts, spec.to_policy())
        return found

    async def run(self) -> float:
        """Seconds from the first arrival to the last workload's end."""
        todo, templates = deque(self.arrivals()), self.templates()
        self.total, home = len(todo), asyncio.get_running_loop()
        self.finish = lambda: home.call_soon_threadsafe(self.over.set)
        self.platform.store.on_commit(self.heard)
        self.began = time.monotonic()
        loops = [
            asyncio.create_task(run_loop(self.context, self._timed(loop)), name=loop.name)
            for loop in all_loops(self.context, self.context.platform)
        ]
        cluster = [
            asyncio.create_task(
                self._as_it_comes("submit", self._due(todo), self._submit(templates))
            ),
            asyncio.create_task(self._as_it_comes("up", self._fresh, self._up)),
            asyncio.create_task(self._as_it_comes("gone", self._over, self._gone)),
        ]
        ended = asyncio.create_task(self.over.wait())
        await asyncio.wait({ended, *cluster}, return_when=asyncio.FIRST_COMPLETED)
        wall = self.elapsed()
        self.context.notifier.close()
        for task in (ended, *cluster, *loops):
            task.cancel()
        for end in await asyncio.gather(*cluster, *loops, return_exceptions=True):
            if isinstance(end, Exception):
                raise end
        if self.bad:
            raise SystemExit(f"workloads ended badly: {self.bad[:3]}")
        return wall

    async def _as_it_comes(self, name, find, tell) -> None:
        """Tell the control plane what was found, again and again."""
        while True:
            if found := find():
                await in_thread(self._count_cpu, name, tell, found)
            await asyncio.sleep(TELL_S)

    def _timed(self, loop: ServiceLoop) -> ServiceLoop:
        return replace(loop, step=lambda now: self._count_cpu(loop.name, loop.step, now))

    def _count_cpu(self, name, call, *words):
        began = time.thread_time()
        try:
            return call(*words)
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.thread_time() - began

    def heard(self, touched: Touched) -> None:
        """What became of the workloads, as every commit tells."""
        at = self.elapsed()
        for num, row in touched.rows.items():
            state, attempt = row.job.state, row.job.attempt
            if state is JobState.STARTING:
                self.admitted.setdefault(num, at)
            elif state is JobState.SUCCEEDED:
                self.done.add(num)
                if len(self.done) == self.total:
                    self.finish()
            elif state is JobState.STOPPING and (num, attempt.num) not in self.evicted:
                self.evicted[num, attempt.num] = None
                self.leaving.append((num, attempt.num))
            elif state in (JobState.FAILED, JobState.CANCELLED):
                self.bad.append(row.job.reason.message)
                self.finish()

    def _due(self, todo):
        def due() -> list[tuple[float, int, Kind]]:
            batch = []
            while todo and todo[0][0] <= self.elapsed() and len(batch) < 2000:
                batch.append(todo.popleft())
            return batch

        return due

    def _submit(self, templates):
        def submit(batch) -> None:
            now = self.context.clock.now()

            def work(tx) -> None:
                first = jobs.new_num(tx, len(batch))
                fresh = []
                for num, (due, queue, kind) in enumerate(batch, start=first):
                    facts, config = templates[queue, kind.name]
                    fresh.append((e.Submitted(num, config), facts))
                    self.kind_of[num], self.created[num] = kind, due
                commit_new_many(tx, fresh, now, "user:bench")

            self.platform.store.transact(work)

        return submit

    def _fresh(self) -> dict[tuple[int, int], int]:
        """Gangs that were started, with how many of their supervisors were."""
        up: dict[tuple[int, int], int] = {}
        for _ in range(len(self.executor.fresh)):
            ref = self.executor.fresh.popleft()
            up[ref.job, ref.attempt] = up.get((ref.job, ref.attempt), 0) + 1
        return up

    def _up(self, up: dict[tuple[int, int], int]) -> None:
        told: list[tuple[int, list[e.JobEvent]]] = []
        at = self.elapsed()
        for (num, attempt), count in up.items():
            ready: list[e.JobEvent] = [e.NodeReady(attempt, rank, 1) for rank in range(count)]
            ready += [e.RanksStarted(attempt, 0, rank) for rank in range(count)]
            told.append((num, ready))
            heapq.heappush(self.ends, (at + self.kind_of[num].runtime_ms / 1000, num, attempt))
        self._tell(told, [])

    def _over(self) -> dict[int, int]:
        """Gangs whose time is over, or that were asked to leave, with their attempts."""
        due: dict[int, int] = {}
        for _ in range(len(self.leaving)):
            num, attempt = self.leaving.popleft()
            due[num] = attempt
        while self.ends and self.ends[0][0] <= self.elapsed():
            _, num, attempt = heapq.heappop(self.ends)
            due[num] = max(attempt, due.get(num, 0))
        return due

    def _gone(self, due: dict[int, int]) -> None:
        found = self.platform.store.view(
            lambda tx: self.platform.scheduler_cache.rows.some(tx, list(due))
        )
        told: list[tuple[int, list[e.JobEvent]]] = []
        gone: list[SupervisorRef] = []
        for num, stored in found.items():
            attempt = stored.job.attempt
            if attempt is None or attempt.num != due[num]:
                continue  # it was evicted before its time was over
            how = (
                NodeOutcome.STOPPED
                if stored.job.state is JobState.STOPPING
                else NodeOutcome.SUCCEEDED
            )
            ranks = range(len(attempt.nodes))
            ended = [
                e.RanksEnded(attempt.num, attempt.generation, rank, how, 1, 1) for rank in ranks
            ]
            told.append((num, ended))
            gone += [SupervisorRef(num, attempt.num, rank) for rank in ranks]
        self._tell(told, gone)

    def _tell(self, told: list[tuple[int, list[e.JobEvent]]], gone: list[SupervisorRef]) -> None:
        """Reports of many supervisors in one commit, as a busy server would store them."""

        def work(tx) -> None:
            known = self.platform.scheduler_cache.rows.some(tx, [num for num, _ in told])
            commit_many(tx, told, self.context.clock.now(), "supervisor", known=known)
            # Before the commit, which wakes the loop that checks whether they have ended.
            self.executor.alive.difference_update(gone)

        self.platform.store.transact(work)


def measure(name: str, shape: Shape, part: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = HomeLayout(Path(folder))
        home.database_file.parent.mkdir(parents=True)
        store = open_store(home.database_file)
        executor, clock = NoOp(nodes_of(shape)), SystemClock()
        context = build_context(
            store=store,
            home=home,
            executor=executor,
            url="http://127.0.0.1:1",
            token="key",
            settings=Settings(),
            clock=clock,
        )
        queues = [f"q{i:04d}" for i in range(shape.cohorts * shape.queues)]
        most = shape.nominal + shape.borrow
        quotas = {"guaranteed_slots": shape.nominal, "max_slots": most}
        file = {"schema": 1, "projects": [{"name": queue, **quotas} for queue in queues]}
        projects.apply_projects(context.platform, file, clock.now(), "bench")
        bench = Bench(context, executor, shape, part)
        wall = asyncio.run(bench.run())
        store.close()
    num = len(bench.created)
    service = sum(k.runtime_ms / 1000 * k.slots * k.pods for k in bench.kind_of.values())
    usage = service / (len(queues) * shape.nominal * wall)
    theirs, target = THEIRS.get(name, (0, 0))
    print(
        f"{name}: {num} workloads in {wall:.1f} s ({num / wall:.0f}/s); Kueue with etcd {theirs} s, "
        f"goal {target} s; usage {usage:.1%}; evictions {len(bench.evicted)}"
    )
    for size in ("large", "medium", "small"):
        nums = [num for num, kind in bench.kind_of.items() if kind.name.startswith(size)]
        waits = [bench.admitted[num] - bench.created[num] for num in nums]
        print(f"  mean time to admission, {size}: {sum(waits) / max(len(waits), 1):.2f} s")
    print(f"  CPU seconds of the whole process: {time.process_time():.0f}")
    print("  CPU seconds in:", {k: round(v, 1) for k, v in bench.spent.items() if v >= 0.05})


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--shape", choices=list(SHAPES), default="baseline")
    asked.add_argument("--part", type=float, default=1.0, help="of each workload count")
    asked.add_argument("--config", type=Path)
    asked.add_argument(
        "--planner", choices=[variants.COMPILED, variants.PYTHON], default=variants.COMPILED
    )
    options = asked.parse_args()
    if options.planner == variants.COMPILED and variants.here().name == variants.PYTHON:
        found = variants.compiled()
        if found is not None:
            variants.run_again_with(found, __file__)
    shape = of_config(options.config) if options.config else SHAPES[options.shape]
    garbage.tune_for_long_lived_process()  # as a server does before it serves
    print(f"planner: {variants.here().name}")
    measure(options.shape, shape, options.part)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
