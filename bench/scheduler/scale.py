"""T9: 10,000 slots, 5,000 queued, 50,000 submitted; the CPU time of a pass."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

from bench.scheduler.table import Table

from phalanx.core.placement import GangShape
from phalanx.core.scheduling import Held, Terms, Waiting, World, plan_pass
from phalanx.core.scheduling.estimates import KindKey, size_class
from phalanx.kit import collector
from phalanx.sim import traces
from phalanx.sim.jobs import US


def t9(where: Path, seed: int, table: Table) -> None:
    rng = random.Random(9)
    world = World(traces.grid_nodes(1250, 8, 16, 8), terms=Terms())
    sizes, weights = [1, 2, 4, 8, 16, 32, 64, 256, 1024], [60, 10, 10, 9, 5, 3, 2, 0.9, 0.1]
    num = now = 0
    times: list[float] = []
    starts = 0
    running: list[int] = []
    for _ in range(420):
        now += 60 * US
        while len(world.waiting) < 5000 and num < 50_000:
            num += 1
            slots = rng.choices(sizes, weights)[0]
            shape = GangShape(max(1, slots // 8), min(slots, 8), 1)
            kind = f"k{rng.randrange(8)}"
            world.submit(Waiting(num, shape, rng.choice([50, 50, 50, 60]), now, kind=kind))
        rng.shuffle(running)
        for gone in [running.pop() for _ in range(min(len(running), 120))]:
            held = world.release(gone)
            if held is not None:
                key = KindKey("", held.kind, size_class(held.num_slots))
                world.history.observe(key, held.attained(now))
        began = time.process_time()
        # As the control plane does: Python's collector runs between passes.
        with collector.held_off():
            decided = plan_pass(world, now)
        times.append(1e3 * (time.process_time() - began))
        world.holes = {hole.job: hole for hole in decided.holes if hole.victims}
        for preemption in decided.preemptions:
            world.release(preemption.job)
        for start in decided.starts:
            job = world.waiting[start.job]
            fresh = Held(
                job.num, start.placement, priority=job.priority, kind=job.kind, started_at=now
            )
            world.start(job.num, start.placement, fresh)
            running.append(job.num)
            starts += 1
    steady = sorted(times[20:])
    p50, p99 = steady[len(steady) // 2], steady[int(0.99 * len(steady))]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nT9 10,000 slots, {len(world.waiting)} queued, {len(world.held)} running, {num} submitted, "
        f"{starts} started: CPU ms a pass p50 {p50:.1f} p99 {p99:.1f}, first {times[0]:.0f}; {rss:.0f} MB"
    )
    table.goal("T9", "pass p99 < 10 ms", f"{p99:.1f} ms", p99 < 10)
    table.goal("T9", "memory < 300 MB", f"{rss:.0f} MB", rss < 300)
