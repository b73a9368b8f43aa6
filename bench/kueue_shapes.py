"""The load shapes of Kueue's scheduler performance suite, through our production control plane.

    python bench/kueue_shapes.py [--shape baseline|large-scale|tas] [--part 0.1] [--config FILE.yaml]

The generators have the same parameters as Kueue's `test/performance/scheduler/configs`; `--config` reads
one of its `generator.yaml` files instead. Every state change goes through the production services into
SQLite with `synchronous=FULL`: a commit that returned survives a power cut. The executor starts nothing
and ends every workload after its `runtimeMs`, as Kueue's own runner does. Not like for like: Kueue pays
for an API server and etcd, we for one process and one file.

How the shapes are carried over: a cluster queue is a project with its nominal quota guaranteed; the
cohort is a pool with the sum of the nominal quotas, and what a queue may borrow is its `max_slots`.
With topology, a slot is a quarter of a CPU, nodes stand in racks, and every queue keeps to its nominal
quota, since the nodes themselves do not bound what a cohort may hold. Priorities 50/100/200 are
25/50/100.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from phalanx.core.jobs import events as e
from phalanx.core.jobs.model import JobState, Outcome
from phalanx.core.placement import Demand, Node
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.kit import collector
from phalanx.kit.clock import SystemClock
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec import resolved, validate_spec
from phalanx.schemas.supervision import Assignment
from phalanx.services import estate
from phalanx.services.commit import commit_many, commit_new_many
from phalanx.services.dispatch import Dispatcher, dispatch_step
from phalanx.services.fitting import facts_of
from phalanx.services.platform import Platform
from phalanx.services.polling import poll_step
from phalanx.services.scheduling import scheduling_step
from phalanx.services.timers import timers_step
from phalanx.store import jobs, open_store
from phalanx.store.jobs import JobFacts

US = 1_000_000
PASS_S = 0.1
NAP_S = 0.02


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


BASELINE = Shape(5, 6, 20, 100, (
    Kind("small", 350, 100, 200, 50, 1),
    Kind("medium", 100, 500, 500, 100, 5),
    Kind("large", 50, 1200, 1000, 200, 20),
))  # fmt: skip
LARGE = Shape(10, 100, 20, 100, (
    Kind("small", 35, 60, 150, 50, 1),
    Kind("medium", 11, 300, 350, 100, 5),
    Kind("large", 4, 700, 700, 200, 20),
))  # fmt: skip
TAS = Shape(5, 6, 80, 0, (
    Kind("small-required-rack", 120, 100, 200, 50, 2, 2, True),
    Kind("small-preferred-rack", 120, 100, 200, 50, 2, 2),
    Kind("small-balanced-rack", 110, 100, 200, 50, 2, 2),
    Kind("medium-required-rack", 34, 500, 500, 100, 5, 4, True),
    Kind("medium-preferred-rack", 33, 500, 500, 100, 5, 4),
    Kind("medium-balanced-rack", 33, 500, 500, 100, 5, 4),
    Kind("large-required-rack", 17, 1200, 1000, 200, 10, 8, True),
    Kind("large-preferred-rack", 17, 1200, 1000, 200, 10, 8),
    Kind("large-balanced-rack", 16, 1200, 1000, 200, 10, 8),
), 10, 640, 384)  # fmt: skip
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
        Kind(one["className"], few["count"], few["creationIntervalMs"], one["runtimeMs"],
             one["priority"], slots(one["request"]), one.get("podCount", 1),
             one.get("tasConstraint") == "required")
        for few in queues["workloadsSets"] for one in few["workloads"]
    )  # fmt: skip
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
        self.fresh: list[SupervisorRef] = []
        self.alive: set[SupervisorRef] = set()

    def inventory(self) -> Sequence[Node]:
        return self.nodes

    def start(self, node: Node, assignment: Assignment) -> None:
        ref = SupervisorRef(assignment.gang.job, assignment.gang.attempt, assignment.node_rank)
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
        return [
            Node(f"n{i:03d}", "tas", "h", shape.node_slots, 4096, 1 << 40,
                 domains=(("block", "b0"), ("rack", f"r{i // each}")))
            for i in range(shape.nodes)
        ]  # fmt: skip
    size = shape.nominal * shape.queues
    return [Node(f"c{i}", f"cohort-{i}", "h", size, 65536, 1 << 40) for i in range(shape.cohorts)]


@dataclass
class Bench:
    platform: Platform
    executor: NoOp
    shape: Shape
    part: float
    who: Dispatcher = field(default_factory=lambda: Dispatcher("bench", "t"))
    kind_of: dict[int, Kind] = field(default_factory=dict)
    created: dict[int, float] = field(default_factory=dict)
    admitted: dict[int, float] = field(default_factory=dict)
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    num_done: int = 0
    evictions: int = 0
    spent: dict[str, float] = field(default_factory=dict)

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
                spec = validate_spec({
                    "schema": 1, "name": kind.name, "project": f"q{queue:04d}", "pool": [pool],
                    "run": "true", "priority": kind.priority // 2, "framework": "none",
                    "resources": {"nodes": kind.pods, "slots_per_node": kind.slots},
                })  # fmt: skip
                facts = facts_of(spec)
                body = resolved(spec)
                made = JobFacts(**{
                    **{name: getattr(facts, name) for name in JobFacts.__dataclass_fields__},
                    "spec": body, "owner": "bench",
                    "demand": Demand(required="rack" if kind.required else None,
                                     preferred="rack" if self.shape.racks else None),
                })  # fmt: skip
                found[queue, kind.name] = (made, spec.to_terms())
        return found

    def run(self) -> float:
        todo = self.arrivals()
        templates = self.templates()
        total, next_, last_pass = len(todo), 0, -1.0
        clock, began = SystemClock(), time.monotonic()
        while self.num_done < total:
            at = time.monotonic() - began
            batch = []
            while next_ < total and todo[next_][0] <= at and len(batch) < 2000:
                batch.append(todo[next_])
                next_ += 1
            self._timed("submit", self._submit, batch, templates, clock.now(), at)
            if at - last_pass >= PASS_S:
                last_pass = at
                step = self._timed("schedule", scheduling_step, self.platform, clock.now())
                for num in step.started:
                    self.admitted.setdefault(num, time.monotonic() - began)
                for num in step.evicted:
                    self.evictions += 1
                    heapq.heappush(self.ends, (at, num, 0))
            self._timed("dispatch", dispatch_step, self.platform, self.who, clock.now(), 2000)
            self._timed("report", self._report, clock.now(), time.monotonic() - began)
            self._timed("poll", poll_step, self.platform, clock.now())
            self._timed("timers", timers_step, self.platform, clock.now())
            self._count()
            idle = min(PASS_S - (time.monotonic() - began - last_pass), NAP_S)
            if idle > 0:
                time.sleep(idle)
        return time.monotonic() - began

    def _timed(self, name, call, *words):
        began = time.perf_counter()
        try:
            return call(*words)
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - began

    def _submit(self, batch, templates, now: int, at: float) -> None:
        if not batch:
            return

        def work(tx) -> list[int]:
            first = jobs.new_num(tx, len(batch))
            fresh = []
            for num, (_, queue, kind) in enumerate(batch, start=first):
                facts, terms = templates[queue, kind.name]
                fresh.append((e.Submitted(num, terms), facts))
            return [job.num for job in commit_new_many(tx, fresh, now, "user:bench")]

        for num, (due, _, kind) in zip(self.platform.store.transact(work), batch, strict=True):
            self.kind_of[num], self.created[num] = kind, due

    def _report(self, now: int, at: float) -> None:
        """What supervisors would say: that the gang is up, and that it ended."""
        up: dict[tuple[int, int], int] = {}
        for ref in self.executor.fresh:
            up[ref.job, ref.attempt] = up.get((ref.job, ref.attempt), 0) + 1
        self.executor.fresh.clear()
        told: list[tuple[int, list[e.JobEvent]]] = []
        for (num, attempt), count in up.items():
            ready: list[e.JobEvent] = [e.NodeReady(attempt, rank, 1) for rank in range(count)]
            ready += [e.RanksStarted(attempt, 0, rank) for rank in range(count)]
            told.append((num, ready))
            heapq.heappush(self.ends, (at + self.kind_of[num].runtime_ms / 1000, num, attempt))
        if told:
            self._tell(told, now)
        self._end(now, at)

    def _end(self, now: int, at: float) -> None:
        due: dict[int, None] = {}
        while self.ends and self.ends[0][0] <= at:
            due[heapq.heappop(self.ends)[1]] = None
        if not due:
            return
        held = self.platform.store.view(self.platform.picture.jobs)[1]
        stored = [one for one in held if one.job.num in due]
        ended: list[tuple[int, list[e.JobEvent]]] = []
        for one in stored:
            attempt = one.job.attempt
            if attempt is None:
                continue
            how = Outcome.STOPPED if one.job.state is JobState.STOPPING else Outcome.SUCCEEDED
            ranks = range(len(attempt.nodes))
            events: list[e.JobEvent] = [
                e.RanksEnded(attempt.num, attempt.generation, rank, how, 1, 1) for rank in ranks
            ]
            ended.append((one.job.num, events))
            self.executor.alive -= {SupervisorRef(one.job.num, attempt.num, r) for r in ranks}
        self._tell(ended, now)

    def _tell(self, told: list[tuple[int, list[e.JobEvent]]], now: int) -> None:
        """Reports of many supervisors in one commit, as a busy server would store them."""

        def work(tx) -> None:
            known = {one.job.num: one for one in self.platform.picture.jobs(tx)[1]}
            commit_many(tx, told, now, "supervisor", known=known)

        self.platform.store.transact(work)

    def _count(self) -> None:
        counts = self.platform.store.view(jobs.count_by_state)
        self.num_done = counts.get(JobState.SUCCEEDED.value, 0)
        bad = {state: n for state, n in counts.items() if state in ("failed", "cancelled")}
        if bad:
            raise SystemExit(f"workloads ended badly: {bad}")


def measure(name: str, shape: Shape, part: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = HomeLayout(Path(folder))
        home.database_file.parent.mkdir(parents=True)
        store = open_store(home.database_file)
        executor = NoOp(nodes_of(shape))
        platform = Platform(store, executor, home, "http://127.0.0.1:1", b"key")
        queues = [f"q{i:04d}" for i in range(shape.cohorts * shape.queues)]
        file = {"schema": 1, "projects": [
            {"name": queue, "guaranteed_slots": shape.nominal,
             "max_slots": shape.nominal + shape.borrow} for queue in queues
        ]}  # fmt: skip
        estate.apply_projects(platform, file, SystemClock().now(), "bench")
        bench = Bench(platform, executor, shape, part)
        wall = bench.run()
        store.close()
    num = len(bench.created)
    service = sum(k.runtime_ms / 1000 * k.slots * k.pods for k in bench.kind_of.values())
    usage = service / (len(queues) * shape.nominal * wall)
    theirs, target = THEIRS.get(name, (0, 0))
    print(f"{name}: {num} workloads in {wall:.1f} s ({num / wall:.0f}/s); Kueue with etcd {theirs} s, "
          f"goal {target} s; usage {usage:.1%}; evictions {bench.evictions}")  # fmt: skip
    for size in ("large", "medium", "small"):
        waits = [bench.admitted[n] - bench.created[n] for n, k in bench.kind_of.items()
                 if k.name.startswith(size)]  # fmt: skip
        print(f"  mean time to admission, {size}: {sum(waits) / max(len(waits), 1):.2f} s")
    print(f"  CPU seconds of the whole process: {time.process_time():.0f}")
    print("  seconds in:", {k: round(v, 1) for k, v in bench.spent.items()})


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--shape", choices=list(SHAPES), default="baseline")
    asked.add_argument("--part", type=float, default=1.0, help="of each workload count")
    asked.add_argument("--config", type=Path)
    options = asked.parse_args()
    shape = of_config(options.config) if options.config else SHAPES[options.shape]
    collector.for_a_long_life()  # as a server does before it serves
    measure(options.shape, shape, options.part)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
