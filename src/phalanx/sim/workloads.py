"""Generated jobs, for when there is no trace: the shapes of busy research and LLM clusters."""

from __future__ import annotations

import math
import random

from phalanx.sim.jobs import TraceJob, gang_of

_DAY_S = 86_400.0


def research(
    num_jobs: int, load_slots: float, node_size: int = 8, seed: int = 0, num_projects: int = 4
) -> list[TraceJob]:
    """Many small jobs with heavy-tailed durations and a few gangs.

    Arrivals are spread so that `load_slots` slots are wanted on average.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(num_jobs):
        slots = rng.choices([1, 2, 4, 8, 16, 32], [0.75, 0.07, 0.08, 0.07, 0.02, 0.01])[0]
        slots = min(slots, node_size * 8)
        duration_s = min(max(rng.lognormvariate(math.log(1200.0), 1.9), 30.0), 5 * _DAY_S)
        rows.append((slots, duration_s))
    span_s = sum(slots * duration for slots, duration in rows) / max(load_slots, 1.0)
    times = sorted(rng.random() * span_s for _ in rows)
    return [
        TraceJob(
            num,
            at_s,
            duration_s,
            gang_of(slots, node_size),
            project=f"team-{rng.randrange(num_projects)}",
            sensitivity=rng.choices([0.0, 0.1, 0.3, 0.8], [0.25, 0.35, 0.25, 0.15])[0],
        )
        for num, (at_s, (slots, duration_s)) in enumerate(zip(times, rows, strict=True), start=1)
    ]


def training(
    num_jobs: int, load_slots: float, node_size: int = 8, seed: int = 0, num_projects: int = 4
) -> list[TraceJob]:
    """Longer runs than `research` and more gangs: hours to weeks, up to 64 slots.

    Arrivals are spread so that `load_slots` slots are wanted on average.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(num_jobs):
        slots = rng.choices([1, 2, 4, 8, 16, 32, 64], [0.4, 0.1, 0.12, 0.22, 0.1, 0.04, 0.02])[0]
        slots = min(slots, node_size * 8)
        hours = rng.lognormvariate(math.log(5.0), 1.4)
        rows.append((slots, min(max(hours * 3600.0, 120.0), 20 * _DAY_S)))
    span_s = sum(slots * duration for slots, duration in rows) / max(load_slots, 1.0)
    times = sorted(rng.random() * span_s for _ in rows)
    return [
        TraceJob(
            num,
            at_s,
            duration_s,
            gang_of(slots, node_size),
            project=f"team-{rng.randrange(num_projects)}",
            kind=f"kind-{rng.randrange(12)}",
            sensitivity=rng.choices([0.0, 0.1, 0.3, 0.8], [0.25, 0.35, 0.25, 0.15])[0],
        )
        for num, (at_s, (slots, duration_s)) in enumerate(zip(times, rows, strict=True), start=1)
    ]
