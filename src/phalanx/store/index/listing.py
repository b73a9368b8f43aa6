"""Write the rows that listings of jobs read, in the transactions that change the jobs.

A row repeats columns of `jobs` and adds what is stored elsewhere or only in JSON: nodes, image, times,
money and the best metric. Nothing but listings reads it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import String, bindparam, case, func, or_, select

from phalanx.core.contract.job import RankCommand
from phalanx.core.jobs.model import Job, JobState
from phalanx.store.database import Tx
from phalanx.store.engines.many_rows import run_many
from phalanx.store.schema.listings import job_data, job_listing
from phalanx.store.tables import studies

_HERE = job_listing.c
_US = 1_000_000
_SAME = (
    *("num", "project", "owner", "name", "framework", "kind", "slot_type", "priority", "num_slots"),
    *("submitted_at", "study", "array"),
)
LONGEST = 512
"""Characters of an image, an entry point and a data path that listings know; the rest is cut off."""
_INSERT = job_listing.insert()
_INSERT_DATA = job_data.insert()
_METHOD = studies.c.spec["search"]["method"].as_string()
_METHODS = select(studies.c.num, _METHOD).where(
    studies.c.num.in_(bindparam("_nums", expanding=True))
)
_OF_JOB = _HERE.num == bindparam("_num")
_SAVE = (
    job_listing.update()
    .where(_OF_JOB)
    .values(pool=func.coalesce(bindparam("_pool", type_=String), _HERE.pool))
)
_RENAME = job_listing.update().where(_OF_JOB)
_PENDING = (
    job_listing.update()
    .where(_OF_JOB, _HERE.state == JobState.QUEUED.value)
    .values(pending=bindparam("_pending"))
)
_ADD_COST = (
    job_listing.update()
    .where(_OF_JOB)
    .values(nano_usd=_HERE.nano_usd + bindparam("_nano_usd", type_=_HERE.nano_usd.type))
)
_VALUE: Any = bindparam("_value", type_=_HERE.best.type)
_BETTER = or_(
    _HERE.best.is_(None),
    case((_HERE.goal == "min", _HERE.best > _VALUE), else_=_HERE.best < _VALUE),
)
_IMPROVE = job_listing.update().where(_OF_JOB, _BETTER).values(best=_VALUE)
_SCORE = job_listing.update().where(_OF_JOB).values(best=_VALUE)
_METRIC = select(_HERE.metric).where(_OF_JOB)


def insert(tx: Tx, fresh: Sequence[tuple[Job, Mapping[str, Any]]]) -> None:
    """Insert the rows of new jobs, each with its row of `jobs`."""
    methods = _methods(tx, {row["study"] for _, row in fresh} - {None})
    run_many(tx.conn, _INSERT, [_fresh(job, row, methods) for job, row in fresh])
    data = [
        {"job": job.num, "name": name, "path": str(path)[:LONGEST]}
        for job, row in fresh
        for name, path in (row["spec"].get("data") or {}).items()
    ]
    if data:
        run_many(tx.conn, _INSERT_DATA, data)


def _methods(tx: Tx, nums: Iterable[int]) -> dict[int, str]:
    """The search methods of some studies."""
    wanted = sorted(nums)
    if not wanted:
        return {}
    return {num: method or "" for num, method in tx.conn.execute(_METHODS, {"_nums": wanted})}


def _fresh(job: Job, row: Mapping[str, Any], methods: Mapping[int, str]) -> dict[str, Any]:
    metric, goal = compared_by(row["spec"], row["contract"])
    changing = _changing(job)
    return {
        **{name: row[name] for name in _SAME},
        **changing,
        "pool": changing["pool"] or "",
        "image": str(row["spec"].get("image") or "")[:LONGEST],
        "entry_point": entry_point(row["spec"], row["contract"])[:LONGEST],
        "algorithm": methods.get(row["study"], ""),
        "num_nodes": num_nodes(job),
        "metric": metric,
        "goal": goal,
    }


def entry_point(spec: Mapping[str, Any], contract: Mapping[str, Any] | None) -> str:
    """What the ranks of a job run: those of the leading role, where it has several."""
    roles = (contract or {}).get("roles") or ()
    leading = next((one for one in roles if one.get("leads", True)), None)
    if leading is not None:
        command = leading["command"]
        return RankCommand(tuple(command["words"]), bool(command.get("shell"))).entry_point
    run = spec.get("run")
    return RankCommand.of(run).entry_point if run else ""


def num_nodes(job: Job) -> int:
    """Nodes of the gang at full size, all roles."""
    return job.policy.shape.nodes + sum(role.nodes for role in job.policy.roles)


def compared_by(spec: Mapping[str, Any], contract: Mapping[str, Any] | None) -> tuple[str, str]:
    """The metric that a job is compared by, and `min` or `max`; both empty without one.

    For a trial it is the objective of its study, otherwise the one of `checkpoint.keep.best`.
    """
    trial = (contract or {}).get("trial") or {}
    if trial.get("study") is not None and trial.get("objective"):
        return str(trial["objective"])[:256], ""
    found: Any = spec
    for key in ("checkpoint", "keep", "best"):
        found = (found or {}).get(key)
    if not found:
        return "", ""
    return str(found["metric"])[:256], str(found.get("mode") or "max")


def save(tx: Tx, changed: Iterable[tuple[Job, Job]]) -> None:
    """Write what these jobs, each (before, after), changed of their rows."""
    rows = []
    for before, after in changed:
        row = _changing(after)
        if row != _changing(before):
            row |= {"_num": after.num, "_pool": row.pop("pool")}
            # Only the planner says why a job waits.
            rows.append(row if after.state is JobState.QUEUED else row | {"pending": ""})
    for queued in (True, False):
        same = [row for row in rows if ("pending" not in row) == queued]
        if same:
            run_many(tx.conn, _SAVE, same)


def _changing(job: Job) -> dict[str, Any]:
    times = (job.started_at, job.ended_at)
    over = None not in times
    return {
        "state": job.state.value,
        "reason": job.reason.code.value,
        "cause": "" if job.last_failure is None else job.last_failure.cause.value,
        "pool": None if job.attempt is None else job.attempt.placement.pool,
        "restarts": job.restarts,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "queue_s": job.waited_s if job.attempts else None,
        "duration_s": (job.ended_at - job.started_at) / _US if over else None,  # type: ignore[operator]
        "slot_seconds": job.attained_slot_s,
    }


def rename(tx: Tx, num: int, name: str, priority: int) -> None:
    """Write the settings of a job that listings show."""
    tx.conn.execute(_RENAME, {"_num": num, "name": name, "priority": priority})


def set_size(tx: Tx, job: Job) -> None:
    """Write the number of nodes of a job, and of their slots, after they were changed."""
    size = {"num_nodes": num_nodes(job), "num_slots": job.policy.num_slots}
    tx.conn.execute(_RENAME, {"_num": job.num, **size})


def set_pending(tx: Tx, codes: Sequence[tuple[int, str]]) -> None:
    """Write why queued jobs wait."""
    run_many(tx.conn, _PENDING, [{"_num": num, "_pending": code} for num, code in codes])


def add_cost(tx: Tx, spent: Iterable[tuple[int, int]]) -> None:
    """Add money, each (job, 1e-9 US dollars)."""
    sums = Counter[int]()
    for num, nano_usd in spent:
        sums[num] += nano_usd
    rows = [{"_num": num, "_nano_usd": one} for num, one in sums.items() if one]
    if rows:
        run_many(tx.conn, _ADD_COST, rows)


def improve(tx: Tx, num: int, metrics: Mapping[str, float]) -> None:
    """Write the metric of a checkpoint, where it is the one that its job is compared by and is better."""
    if not metrics:
        return
    value = metrics.get(tx.conn.execute(_METRIC, {"_num": num}).scalar() or "")
    if value is not None and math.isfinite(value):
        tx.conn.execute(_IMPROVE, {"_num": num, "_value": value})


def score(tx: Tx, scores: Iterable[tuple[int | None, float | None]]) -> None:
    """Write the objective of trials, each (job, value)."""
    rows = [{"_num": num, "_value": one} for num, one in scores if num is not None]
    if rows:
        run_many(tx.conn, _SCORE, rows)
