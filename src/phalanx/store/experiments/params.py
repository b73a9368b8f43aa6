"""Read and write the parameters of runs. Rows are written once; of equal names, the last source counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select

from phalanx.core.contract.trial import Param
from phalanx.core.experiments.parameters import ParamSource, RunParam, effective
from phalanx.store.database import Tx
from phalanx.store.engines.many_rows import run_many
from phalanx.store.schema.experiments import run_params

_HERE = run_params.c
_INSERT = run_params.insert()
_BATCH = 500


def put(tx: Tx, fresh: Iterable[tuple[int, Sequence[RunParam]]], now: int) -> None:
    """Store the parameters of new runs, each (job, parameters) with those of all sources."""
    rows = []
    for job, found in fresh:
        counts = effective(found)
        rows += [_row(job, one, now, counts[one.name] is one) for one in found]
    if rows:
        run_many(tx.conn, _INSERT, rows)


def put_of_script(tx: Tx, job: int, found: Sequence[RunParam], now: int) -> None:
    """Store parameters that a script names, which it has not named before: they count from now on."""
    names = sorted({one.name for one in found})
    for start in range(0, len(names), _BATCH):
        some = _HERE.name.in_(names[start : start + _BATCH])
        tx.conn.execute(run_params.update().where(_HERE.job == job, some).values(counts=0))
    if found:
        run_many(tx.conn, _INSERT, [_row(job, one, now, True) for one in found])


def _row(job: int, one: RunParam, now: int, counts: bool) -> dict[str, Any]:
    return {
        "job": job,
        "name": one.name,
        "source": one.source.value,
        "value": one.text,
        "kind": _kind(one.value),
        "number": one.number,
        "counts": int(counts),
        "at": now,
    }


def _kind(value: Param) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def of_script(tx: Tx, job: int) -> list[RunParam]:
    """The parameters that the script of a run has named."""
    return _read(tx, _HERE.job == job, _HERE.source == ParamSource.SCRIPT.value).get(job, [])


def of_job(tx: Tx, job: int) -> list[RunParam]:
    """All parameters of a run, of every source, by name."""
    return _read(tx, _HERE.job == job).get(job, [])


def counting(tx: Tx, jobs: Sequence[int], most: int) -> dict[int, dict[str, Param]]:
    """The values that count of some runs, by name; at most `most` of each run."""
    found: dict[int, dict[str, Param]] = {}
    for start in range(0, len(jobs), _BATCH):
        some = _HERE.job.in_(list(jobs[start : start + _BATCH]))
        for job, params in _read(tx, some, _HERE.counts == 1).items():
            found[job] = {one.name: one.value for one in params[:most]}
    return found


def _read(tx: Tx, *terms: Any) -> Mapping[int, list[RunParam]]:
    columns = (_HERE.job, _HERE.name, _HERE.source, _HERE.value, _HERE.kind)
    query = select(*columns).where(*terms).order_by(_HERE.job, _HERE.name)
    found: dict[int, list[RunParam]] = {}
    for job, name, source, value, kind in tx.conn.execute(query):
        plain = value if kind == "text" else json.loads(value)
        found.setdefault(job, []).append(RunParam(name, plain, ParamSource(source)))
    return found
