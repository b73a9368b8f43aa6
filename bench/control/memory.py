"""Memory of a control plane with 1,000 running and 10,000 queued jobs, which were submitted over HTTP."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil
from bench.control.throughput import SPEC, database, served

from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout

LIMIT_MB = 500.0
_BATCH = 500
_DONE_S = 900.0


def report(databases: tuple[str, ...], running: int, queued: int) -> bool:
    """Measure and print; whether the resident memory stays below the limit on every database."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
            served(HomeLayout(Path(folder) / "home"), running, "stays", url) as (client, plane),
        ):
            first_mb = _memory_mb(plane.pid)
            for _ in range((running + queued) // _BATCH):
                last = client.submit_batch([SubmitRequest(spec=SPEC)] * _BATCH).jobs[-1].num
            until = time.monotonic() + _DONE_S
            # The queue is served in the order of the jobs: the last one that fits runs last.
            while client.job(running).state != "running":
                if time.monotonic() > until:
                    raise SystemExit(f"j-{running} does not run")
                time.sleep(0.5)
            state = client.job(last).state
            used_mb = _memory_mb(plane.pid)
        kept &= used_mb <= LIMIT_MB
        print(
            f"{name}: {used_mb:.0f} MB resident with {running} running and {queued} {state} jobs "
            f"({first_mb:.0f} MB before the first)"
        )
    return kept


def _memory_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / 1e6)
