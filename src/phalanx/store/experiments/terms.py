"""Write the words that queries find runs by, in the transactions that write the specs which have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import select

from phalanx.store.database import Tx
from phalanx.store.engines.many_rows import run_many
from phalanx.store.schema.experiments import run_terms

TAG, GROUP, NOTE, COMMIT = "tag", "group", "note", "commit"
LONGEST = 500
"""Characters of a description that queries look into."""
_HERE = run_terms.c
_INSERT = run_terms.insert()


def put(tx: Tx, fresh: Iterable[tuple[int, Mapping[str, Any], Mapping[str, Any] | None]]) -> None:
    """Store the words of new jobs, each (job, spec, contract)."""
    rows = [
        {"job": job, "kind": kind, "value": value}
        for job, spec, contract in fresh
        for kind, value in (*_of_spec(spec), *_of_contract(contract))
    ]
    if rows:
        run_many(tx.conn, _INSERT, rows)


def replace(tx: Tx, job: int, spec: Mapping[str, Any]) -> None:
    """Store the words of a changed spec in place of those of before."""
    tx.conn.execute(run_terms.delete().where(_HERE.job == job, _HERE.kind != COMMIT))
    put(tx, [(job, spec, None)])


def _of_spec(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for tag in spec.get("tags") or ():
        yield TAG, str(tag)
    if spec.get("group"):
        yield GROUP, str(spec["group"])
    if spec.get("description"):
        yield NOTE, str(spec["description"]).replace("\0", "")[:LONGEST]


def _of_contract(contract: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    source = (contract or {}).get("source") or {}
    if source.get("commit"):
        yield COMMIT, str(source["commit"])


def commits(tx: Tx, jobs: Sequence[int]) -> dict[int, str]:
    """The Git commits of some jobs, of those that have one; at most 1000 jobs."""
    mine = _HERE.job.in_(list(jobs)) & (_HERE.kind == COMMIT)
    return {
        job: value for job, value in tx.conn.execute(select(_HERE.job, _HERE.value).where(mine))
    }
