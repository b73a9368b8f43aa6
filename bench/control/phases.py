"""Processor time of each phase of a job, without HTTP and threads: what one step costs for many jobs.

The steps of the loops run one after another in this process, as tests drive them. `--profile FILE` writes
what `python -m pstats` reads.
"""

from __future__ import annotations

import contextlib
import cProfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.control.plane import NoopExecutor
from bench.control.throughput import SPEC, database

from phalanx.kit.clock import SystemClock
from phalanx.kit.garbage import tune_for_long_lived_process
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.server.app import build_context
from phalanx.server.context import Context
from phalanx.server.settings import Settings
from phalanx.services.batches.submit import submit_batch
from phalanx.services.lifecycle.dispatch import LeaseOwner, dispatch_step
from phalanx.services.lifecycle.polling import poll_leaving_step
from phalanx.services.planning.scheduling import scheduling_step
from phalanx.services.platform import Platform
from phalanx.standalone.home import prepare_home
from phalanx.store import jobs, open_store

_SLOTS = 1024
_ROUNDS = 6


def report(databases: tuple[str, ...], size: int, profile: str) -> bool:
    """Print the processor time of each phase for a job of a batch."""
    tune_for_long_lived_process()  # as the server does
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
            opened(Path(folder), url, _SLOTS) as (context, executor),
        ):
            _measure(name, context.platform, executor, size, profile)
    return True


@contextlib.contextmanager
def opened(
    folder: Path, url: str, num_slots: int, *, stays: bool = False
) -> Iterator[tuple[Context, NoopExecutor]]:
    """A control plane in this process that does not run by itself, with an executor without processes."""
    home = prepare_home(folder / "home")
    executor = NoopExecutor(num_slots, home.root if stays else None)
    store = open_store(url or home.database_file)
    context = build_context(
        store=store,
        home=home,
        executor=executor,
        url="http://127.0.0.1:1",
        token="bench",
        settings=Settings(),
        clock=SystemClock(),
    )
    executor.platform = context.platform
    try:
        yield context, executor
    finally:
        store.close()


def _measure(
    database: str, platform: Platform, executor: NoopExecutor, size: int, profile: str
) -> None:
    requests = [SubmitRequest(spec=SPEC) for _ in range(size)]
    owner, now = LeaseOwner("bench", "bench"), lambda: round(time.time() * 1e6)
    phases: dict[str, Callable[[], object]] = {
        "submission": lambda: submit_batch(platform, requests, now()),
        "scheduler": lambda: scheduling_step(platform, now()),
        "dispatcher": lambda: dispatch_step(platform, owner, now(), size),
        "reports": executor.report_all,
        "polling": lambda: poll_leaving_step(platform, now()),
    }
    taken = dict.fromkeys(phases, 0.0)
    profiler = cProfile.Profile()
    for turn in range(_ROUNDS + 1):
        if turn == 1 and profile:
            profiler.enable()
        for name, step in phases.items():
            began = time.process_time()
            step()
            # The first turn fills caches of statements and rows.
            taken[name] += time.process_time() - began if turn else 0.0
    if profile:
        profiler.disable()
        profiler.dump_stats(f"{profile}.{database}")
    done = platform.store.view(jobs.count_by_state)
    if done != {"succeeded": size * (_ROUNDS + 1)}:
        raise SystemExit(f"not every job succeeded: {done}")
    print(f"{database}, batches of {size}: processor ms a job of this process, without HTTP")
    for name, used in taken.items():
        print(f"  {name:12} {used / size / _ROUNDS * 1e3:8.3f}")
    print(f"  {'in all':12} {sum(taken.values()) / size / _ROUNDS * 1e3:8.3f}")
