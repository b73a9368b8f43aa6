"""Listings of a large database over HTTP on loopback: p99 of list, filter, sort, show, cost and events.

The database is filled with rows that are copies of real ones, with other names, owners, states and times;
then a real control plane serves it. Beside the time of a call stands the processor time that the control
plane used for it, in ms.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from bench.control.throughput import database, served
from sqlalchemy import insert, literal, select

from phalanx.core.cost.ledger import DAY_US, Account, AccountRow
from phalanx.core.jobs.events import Submitted
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.sdk import PhalanxClient
from phalanx.services.lifecycle.admission import facts_of
from phalanx.services.lifecycle.commit import Note, commit_events, commit_new
from phalanx.standalone.home import prepare_home
from phalanx.store import jobs, open_store
from phalanx.store.cost import days
from phalanx.store.cost import rows as cost_rows
from phalanx.store.cost.rows import CostOwner, CostRow
from phalanx.store.database import Store, Tx
from phalanx.store.listings.jobs import SORTS
from phalanx.store.schema.listings import job_listing
from phalanx.store.tables import counters, events, job_labels
from phalanx.store.tables import jobs as jobs_table

LIMIT_MS = 100.0
_ROUNDS = 200
_BATCH = 10_000
# Jobs that ran at the same time: their events lie among each other.
_AT_ONCE = 1_000
_US = 1_000_000
_OVER = ("succeeded", "failed", "cancelled")


def report(databases: tuple[str, ...], num_jobs: int, num_events: int, kept: str) -> bool:
    """Fill a database of each kind, measure, and print a table; whether every p99 is within the limit.

    `kept` is a folder for the databases, which are then filled once only; empty: a temporary one.
    """
    good = True
    for name in databases:
        with contextlib.ExitStack() as stack:
            folder = Path(kept) / name if kept else _temporary(stack)
            folder.mkdir(parents=True, exist_ok=True)
            url, _ = stack.enter_context(database(name, folder))
            home = HomeLayout(folder / "home")
            _filled(home, url, num_jobs, num_events)
            client, plane = stack.enter_context(served(home, 64, "ends", url))
            good &= _measured(client, plane.pid, num_jobs)
    return good


def _temporary(stack: contextlib.ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-")))


def _filled(home: HomeLayout, url: str, num_jobs: int, num_events: int) -> None:
    began, done = time.monotonic(), home.root.parent / f"filled-{num_jobs}-{num_events}"
    prepare_home(home.root)
    if done.exists():
        return
    store = open_store(url or home.database_file)
    _fill(store, num_jobs, num_events)
    store.close()
    done.touch()
    said = f"{num_jobs} jobs, {num_events} events, filled in {time.monotonic() - began:.0f} s"
    size = "" if url else f": {home.database_file.stat().st_size / 1e6:.0f} MB"
    print(f"{said}{size}")


def _fill(store: Store, num_jobs: int, num_events: int) -> None:
    draw = random.Random(1)
    job = store.transact(_first)
    for start in range(2, num_jobs + 1, _BATCH):
        nums = range(start, min(start + _BATCH, num_jobs + 1))
        store.transact(lambda tx, nums=nums: _add_jobs(tx, job, nums, draw))  # type: ignore[misc]
    each = num_events // num_jobs
    for start in range(1, num_jobs + 1, _AT_ONCE):
        nums = range(start, min(start + _AT_ONCE, num_jobs + 1))
        store.transact(lambda tx, nums=nums: _add_events(tx, nums, each))  # type: ignore[misc]
    while store.view(days.is_behind):
        store.transact(days.fold)
    last = jobs_table.update().values(last_seq=each)
    store.transact(lambda tx: tx.conn.execute(last))
    for name, value in (("job", num_jobs), ("feed", num_jobs * each)):
        said = counters.update().where(counters.c.name == name).values(value=value)
        store.transact(lambda tx, said=said: tx.conn.execute(said))  # type: ignore[misc]
    if store.dialect == "postgresql":
        # What its autovacuum does; a home on SQLite has no statistics.
        store.transact(lambda tx: tx.conn.exec_driver_sql("ANALYZE"))


def _ledger(row: dict[str, Any], draw: random.Random) -> list[CostRow]:
    """A wait and two days of an attempt of an ended job."""
    if row["ended_at"] is None:
        return []
    owner = CostOwner(row["num"], row["project"], row["owner"], row["num"] % 500, None)
    at, slots = row["submitted_at"], row["num_slots"]
    used = draw.randrange(1, 40_000) * _US
    found = [(None, "", Account.QUEUED, at), (0, row["pool"], Account.STARTING, at + DAY_US)]
    found.append((0, row["pool"], Account.PRODUCTIVE, at + 2 * DAY_US))
    return [
        CostRow(
            *(owner, 1, pool, None),
            AccountRow(begin, begin + used, generation, slots, ((account, used * slots),)),
            nano_usd=0 if generation is None else used * slots,
        )
        for generation, pool, account, begin in found
    ]


def _add_events(tx: Tx, nums: range, each: int) -> None:
    """The events of some jobs that ran at the same time: copies that the database makes itself.

    Each job begins with its submission; the others are copies of the second event of the first job.
    """
    kept = [column.name for column in events.c if column.name not in ("job", "seq", "feed")]
    model, number = events.alias(), jobs_table.alias()
    place = jobs_table.c.num - nums.start
    if nums.start == 1:
        tx.conn.execute(events.update().where(events.c.job == 1).values(feed=-events.c.seq))
    for seqs, source in ((range(1, 2), 1), (range(2, each + 1), 2)):
        # The numbers of jobs serve as numbers of events.
        seq = number.c.num
        rows = (
            select(
                jobs_table.c.num,
                seq,
                (nums.start - 1) * each + (seq - 1) * len(nums) + place + 1,
                *(model.c[name] for name in kept),
            )
            .select_from(jobs_table.join(number, literal(True)).join(model, literal(True)))
            .where(jobs_table.c.num.between(max(nums.start, 2), nums.stop - 1))
            .where(seq.between(seqs.start, seqs.stop - 1))
            .where(model.c.job == 1, model.c.seq == source)
            .order_by(seq, jobs_table.c.num)
        )
        tx.conn.execute(insert(events).from_select(["job", "seq", "feed", *kept], rows))


def _first(tx: Tx) -> dict[str, Any]:
    """A job that was stored as any other."""
    # More slots than the machine has: the waiting copies stay in the queue.
    need = {"nodes": 1, "slots_per_node": 4096}
    spec = validate_spec({"schema": 1, "run": "python train.py", "resources": need})
    facts = facts_of(spec)
    num = jobs.new_num(tx)
    facts = replace(facts, owner="ada", spec=resolved(spec))
    now = round(time.time() * _US)
    commit_new(tx, Submitted(num, spec.to_policy()), facts, now, "bench")
    said = {"message": "the loss is not finite; the step is repeated", "rank": 0, "node_rank": 0}
    commit_events(tx, num, [Note("warned", 1, 0, said)], now, "bench")
    return dict(tx.conn.execute(select(jobs_table)).mappings().one())


def _add_jobs(tx: Tx, job: dict[str, Any], nums: range, draw: random.Random) -> None:
    rows, labels, ledger = [], [], []
    for num in nums:
        # A tenth of a percent waits; the rest is history.
        state = "queued" if draw.random() < 0.001 else draw.choice(_OVER)
        at = job["submitted_at"] - draw.randrange(90 * 86_400) * _US
        over = state in _OVER
        name = f"train-{draw.randrange(500)}"
        row = {
            **job,
            "num": num,
            "name": name,
            "owner": f"user-{draw.randrange(200)}",
            "project": f"project-{draw.randrange(40)}",
            "state": state,
            "priority": draw.randrange(101),
            "num_slots": 2 ** draw.randrange(8),
            "pool": f"pool-{draw.randrange(5)}" if over else None,
            "submitted_at": at,
            "started_at": at + 60 * _US if over else None,
            "ended_at": at + draw.randrange(60, 86_400) * _US if over else None,
            "attained_slot_s": draw.random() * 1e5 if over else 0.0,
            "labels": {"team": f"team-{num % 20}"},
        }
        row["snapshot"] = {**job["snapshot"], "num": num, "state": state}
        rows.append(row)
        ledger += _ledger(row, draw)
        labels.append({"job": num, "name": "team", "value": f"team-{num % 20}"})
    tx.conn.execute(insert(jobs_table), rows)
    tx.conn.execute(insert(job_listing), [_listed(row, draw) for row in rows])
    tx.conn.execute(insert(job_labels), labels)
    cost_rows.add_many(tx, ledger)


def _listed(row: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """What listings read of a job, with values that its copies do not have."""
    over = row["ended_at"] is not None
    same = {column.name: row[column.name] for column in job_listing.c if column.name in row}
    return {
        **same,
        "reason": "completed" if row["state"] == "succeeded" else row["reason_code"],
        "cause": draw.choice(("", "", "oom", "rank_crash")) if over else "",
        "pool": row["pool"] or "",
        "image": f"ghcr.io/acme/train:{draw.randrange(50)}",
        "num_nodes": 1 + draw.randrange(8),
        "slot_seconds": row["attained_slot_s"],
        "nano_usd": draw.randrange(10**12) if over else 0,
        "queue_s": draw.random() * 1e4 if over else None,
        "duration_s": (row["ended_at"] - row["started_at"]) / _US if over else None,
        "metric": "val_acc",
        "goal": "max",
        "best": draw.random() if over else None,
    }


def _calls(
    client: PhalanxClient, num_jobs: int
) -> Iterator[tuple[str, Callable[[random.Random], object]]]:
    yield "list, newest", lambda _: client.jobs()
    deep = None
    for _ in range(3):
        deep = client.jobs(sort="-submitted_at", limit=1000, cursor=deep).cursor
    yield "list, page behind 3,000", lambda _: client.jobs(sort="-submitted_at", cursor=deep)
    yield "filter state", lambda d: client.jobs(states=[d.choice([*_OVER, "queued"])])
    yield "filter state that no job has", lambda _: client.jobs(states=["running"])
    yield "filter owner", lambda d: client.jobs(owner=f"user-{d.randrange(200)}")
    yield (
        "filter project, pool, state",
        lambda d: client.jobs(
            project=f"project-{d.randrange(40)}", pool="pool-1", states=["failed"]
        ),
    )
    yield "filter label", lambda d: client.jobs(labels={"team": f"team-{d.randrange(20)}"})
    yield "filter name with *", lambda d: client.jobs(name=f"*-{d.randrange(500)}")
    yield "filter priority and slots", lambda _: client.jobs(min_priority=99, min_slots=128)
    yield "filter reason and cause", lambda _: client.jobs(reason="completed", cause="oom")
    yield "filter cost and metric", lambda _: client.jobs(min_usd=900, min_metric_value=0.9)
    yield (
        "filter queue time, duration, nodes",
        lambda _: client.jobs(min_queue_s=9000, max_duration_s=3600, min_nodes=8),
    )
    yield (
        "filter image, live states",
        lambda _: client.jobs(image="ghcr.io/acme/train:1*", states=["queued", "running"]),
    )
    for by in SORTS:
        yield f"sort by {by}", lambda _, by=by: client.jobs(sort=f"-{by}")  # type: ignore[misc]
    yield (
        "filter state, sort by slot_seconds",
        lambda _: client.jobs(states=["failed"], sort="-slot_seconds"),
    )
    yield "show", lambda d: client.job(d.randrange(1, num_jobs))
    yield "events", lambda d: client.events(d.randrange(1, num_jobs))
    for by in ("job", "project", "user", "pool", "day", "study", "label:team"):
        yield f"cost by {by}", lambda _, by=by: client.costs.report(by)  # type: ignore[misc]
    yield (
        "cost by job of a project",
        lambda d: client.costs.report("job", project=f"project-{d.randrange(40)}"),
    )


def _measured(client: PhalanxClient, plane: int, num_jobs: int) -> bool:
    draw, kept, process = random.Random(2), True, psutil.Process(plane)
    heads = (
        f"{'call':36} {'p50 ms':>8} {'p99 ms':>8} {'processor':>10} {'floor p50':>10} {'p99':>8}"
    )
    print(f"{heads}   ({_ROUNDS} calls each)")
    for name, call in _calls(client, num_jobs):
        call(draw)
        times, floors, used = [], [], 0.0
        for _ in range(_ROUNDS):
            # Between the calls one that reads a single row: what the machine does besides slows both.
            floors.append(_timed(lambda: client.scheduler_policy()))
            before = sum(process.cpu_times()[:2])
            times.append(_timed(lambda: call(draw)))  # noqa: B023 - called at once
            used += (sum(process.cpu_times()[:2]) - before) / _ROUNDS * 1e3
        (p50, p99), (low, high) = _percentiles(times), _percentiles(floors)
        kept &= p99 <= LIMIT_MS
        said = "" if p99 <= LIMIT_MS else "   over the limit"
        floor = f"{low:10.1f} {high:8.1f}"
        print(f"{name:36} {p50:8.1f} {p99:8.1f} {used:10.1f} {floor}{said}", flush=True)
    return kept


def _timed(call: Callable[[], object]) -> float:
    """How long a call takes, in ms."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def _percentiles(times: list[float]) -> tuple[float, float]:
    """p50 and p99."""
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99)]
