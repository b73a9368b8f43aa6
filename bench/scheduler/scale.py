"""T9: 10,000 slots, 5,000 queued, 50,000 submitted; the CPU time of a pass.

Each variant of the planner runs in a process of its own, which also makes the memory its own.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scheduler import variants
from bench.scheduler.table import Table

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import (
    ClusterIndex,
    Plan,
    PlannerConfig,
    QueuedJob,
    RunningJob,
    plan_pass,
)
from phalanx.core.scheduling.model.durations import KindKey, size_class
from phalanx.kit import garbage
from phalanx.sim.jobs import US
from phalanx.sim.workload import traces

_PASSES = 420
_WARM_UP = 20
_SIZES, _WEIGHTS = [1, 2, 4, 8, 16, 32, 64, 256, 1024], [60, 10, 10, 9, 5, 3, 2, 0.9, 0.1]


@dataclass(frozen=True, slots=True)
class Scale:
    """What one process measured: CPU milliseconds of a pass, MB, and a digest of all decisions."""

    p50_ms: float
    p99_ms: float
    first_ms: float
    memory_mb: float
    num_submitted: int
    num_started: int
    num_evicted: int
    planner: str
    decisions: str


def t9(where: Path, seed: int, table: Table) -> None:
    """Goals are judged by the variant that this bench runs; the others stand beside it."""
    found = {one.name: _in_its_process(one) for one in variants.both()}
    for name, scale in found.items():
        print(
            f"\nT9 10,000 slots, 5,000 queued, {scale.num_submitted} submitted, "
            f"{scale.num_started} started, planner {name}: CPU ms a pass p50 {scale.p50_ms:.1f} "
            f"p99 {scale.p99_ms:.1f}, first {scale.first_ms:.0f}; {scale.memory_mb:.0f} MB; "
            f"decisions {scale.decisions}"
        )
    ours = found[variants.here().name]
    p99 = ", ".join(f"{name} {scale.p99_ms:.1f}" for name, scale in found.items())
    table.goal("T9", "pass p99 <= 10 ms", f"{p99} ms", ours.p99_ms <= 10, ours.p99_ms)
    table.goal("T9", "memory < 300 MB", f"{ours.memory_mb:.0f} MB", ours.memory_mb < 300)
    if len(found) > 1:
        alike = len({scale.decisions for scale in found.values()}) == 1
        table.goal("T9", "decisions alike, Python and compiled", str(alike).lower(), alike)


def _in_its_process(variant: variants.Variant) -> Scale:
    done = subprocess.run(
        [sys.executable, __file__], env=variant.environment(), stdout=subprocess.PIPE, check=True
    )
    return Scale(**json.loads(done.stdout))


def measured(num_passes: int) -> Scale:
    """The stream of T9, or its beginning, through the planner of this process."""
    stream = _Stream()
    times: list[float] = []
    for _ in range(num_passes):
        stream.step()
        began = time.process_time()
        # As the control plane does: Python's collector runs between passes.
        with garbage.collection_paused():
            decided = plan_pass(stream.cluster, stream.now)
        times.append(1e3 * (time.process_time() - began))
        stream.apply(decided)
    steady = sorted(times[_WARM_UP:])
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    p50, p99 = steady[len(steady) // 2], steady[int(0.99 * len(steady))]
    return Scale(
        p50,
        p99,
        times[0],
        rss,
        stream.num,
        stream.num_started,
        stream.num_evicted,
        variants.here().name,
        stream.decisions.hexdigest()[:16],
    )


class _Stream:
    """Jobs that arrive, start and end; the same for every planner that decides the same."""

    def __init__(self) -> None:
        self.rng = random.Random(9)
        self.cluster = ClusterIndex(traces.grid_nodes(1250, 8, 16, 8), config=PlannerConfig())
        self.num = self.now = self.num_started = self.num_evicted = 0
        self.running: list[int] = []
        self.decisions = hashlib.sha256()

    def step(self) -> None:
        """A minute later: the queue is full again, and up to 120 jobs have ended."""
        rng, cluster = self.rng, self.cluster
        self.now += 60 * US
        while len(cluster.waiting) < 5000 and self.num < 50_000:
            self.num += 1
            slots = rng.choices(_SIZES, _WEIGHTS)[0]
            shape = GangShape(max(1, slots // 8), min(slots, 8), 1)
            kind = f"k{rng.randrange(8)}"
            priority = rng.choice([50, 50, 50, 60])
            cluster.submit(QueuedJob(self.num, shape, priority, self.now, kind=kind))
        rng.shuffle(self.running)
        for gone in [self.running.pop() for _ in range(min(len(self.running), 120))]:
            held = cluster.release(gone)
            if held is not None:
                key = KindKey("", held.kind, size_class(held.num_slots))
                cluster.history.observe(key, held.attained(self.now))

    def apply(self, decided: Plan) -> None:
        """As if every start and every stop succeeded at once."""
        cluster = self.cluster
        said = (decided.starts, decided.preemptions, decided.reservations, decided.wake_at)
        self.decisions.update(repr((*said, decided.num_steps)).encode())
        cluster.reservations = {
            reservation.job: reservation
            for reservation in decided.reservations
            if reservation.victims
        }
        for preemption in decided.preemptions:
            cluster.release(preemption.job)
            self.num_evicted += 1
        for start in decided.starts:
            job = cluster.waiting[start.job]
            fresh = RunningJob(
                job.num, start.placement, priority=job.priority, kind=job.kind, started_at=self.now
            )
            cluster.start(job.num, start.placement, fresh)
            self.running.append(job.num)
            self.num_started += 1


if __name__ == "__main__":
    asked = int(sys.argv[1]) if sys.argv[1:] else _PASSES
    print(json.dumps(asdict(measured(asked))))
