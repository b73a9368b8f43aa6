"""Cost of a scrape of `/metrics` while many gangs train, on one processor and without HTTP.

Every rank reports a whole window between two scrapes: all instruments, with six buckets each.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.control.phases import opened
from bench.control.throughput import SPEC, database

from phalanx.core.contract.records import MetricPoint
from phalanx.core.telemetry.instruments import INSTRUMENTS, Kind, bucket_name, sum_name
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.server.observe.exposition import Exposition
from phalanx.services.batches.submit import submit_batch
from phalanx.services.lifecycle.dispatch import LeaseOwner, dispatch_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.store import jobs
from phalanx.store.metrics import arrivals

MAX_SERIES = 100_000
LIMIT_S = 1.0
_RANKS = 8
_ROUNDS = 5
_BATCH = 100


def report(databases: tuple[str, ...], num_jobs: int) -> bool:
    """Measure and print; whether series and time of every scrape are within the limits."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
            opened(Path(folder), url, num_jobs * _RANKS, stays=True) as (context, executor),
        ):
            platform, owner = context.platform, LeaseOwner("bench", "bench")
            spec = SPEC | {"resources": {"slots_per_node": _RANKS}}
            for _ in range(max(1, num_jobs // _BATCH)):
                submit_batch(platform, [SubmitRequest(spec=spec)] * _BATCH, _now())
                scheduling_step(platform, _now())
                dispatch_step(platform, owner, _now(), _BATCH)
                executor.report_all()
            live = platform.store.view(jobs.count_by_state).get("running", 0)
            exposition = Exposition(context)
            exposition.scrape(_now())
            scrapes = []
            for step in range(1, _ROUNDS + 1):
                for num in range(1, live + 1):
                    points = [MetricPoint(rank, step, _now(), _window()) for rank in range(_RANKS)]
                    platform.store.transact(
                        lambda tx, num=num, points=points: arrivals.add_points(  # type: ignore[misc]
                            tx, (num, 1, 0), points
                        )
                    )
                began, used = time.monotonic(), time.process_time()
                text = exposition.scrape(_now())
                scrapes.append((time.process_time() - used, time.monotonic() - began, text))
            took_s, wall_s, text = sorted(scrapes)[len(scrapes) // 2]
            series = sum(not line.startswith(b"#") for line in text.splitlines())
        kept &= series <= MAX_SERIES and took_s <= LIMIT_S
        print(
            f"{name}: {live} jobs of {_RANKS} ranks: {series:,} series, {len(text) / 1e6:.1f} MB, "
            f"median scrape {took_s:.2f} s of processor time, {wall_s:.2f} s"
        )
    return kept


def _now() -> int:
    return round(time.time() * 1e6)


def _window() -> dict[str, float]:
    """What a rank reports for one window."""
    found = {"loss": 0.5, "accuracy": 0.9}
    for one in INSTRUMENTS.values():
        found[one.name] = 0.02
        if one.kind is Kind.HISTOGRAM:
            found[sum_name(one.name)] = 1.0
            found |= {bucket_name(one.name, at): 8.0 for at in range(5, 11)}
    return found
