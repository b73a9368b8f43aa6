"""Many rows of one statement are stored as they would be one by one, on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs.events import StopRequested, Submitted
from phalanx.core.jobs.machine import create, decide
from phalanx.core.jobs.model import JobPolicy, StopGoal
from phalanx.errors import StaleRow
from phalanx.store import Store, Tx, jobs, open_store
from phalanx.testing.stores import NOW, facts
from support.databases import PostgresServer

pytestmark = pytest.mark.extras
_numbers = count()
TERMS = JobPolicy(GangShape(1, 1, 1))


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where: Path | str = tmp_path / "phalanx.sqlite"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        where = server.create(f"many_rows_{next(_numbers)}", empty=False)
    with contextlib.closing(open_store(where)) as one:
        yield one


def test_many_jobs_of_one_statement_come_back_as_they_were(store: Store) -> None:
    odd: list[dict[str, object]] = [
        {"name": 'a "b" \\ %s {0} \n ß 😀', "labels": {}, "caller_env": None},
        {"code_digest": "f" * 64, "caller_env": {"A": "b'; --", "B": ""}, "pools": ("x",)},
        {"spec": {"n": 2**60, "f": 1e-300, "t": True, "no": None}, "study": 2**40, "trial": 0},
    ]
    nums = range(1, len(odd) + 1)

    def work(tx: Tx) -> None:
        fresh = [create(Submitted(jobs.new_num(tx), TERMS), NOW) for _ in odd]
        jobs.insert(
            tx,
            [(job, facts(**one), at) for job, one, at in zip(fresh, odd, nums, strict=True)],
        )

    store.transact(work)
    found = store.view(lambda tx: jobs.load_many(tx, list(nums)))
    assert [one.facts for one in found] == [facts(**one) for one in odd]
    assert [one.job for one in found] == [create(Submitted(n, TERMS), NOW) for n in nums]
    assert store.view(lambda tx: jobs.waking(tx, 2)) == [1, 2]
    ended = [decide(one.job, StopRequested(StopGoal.CANCEL), NOW).job for one in found]
    store.transact(
        lambda tx: jobs.save_many(
            tx, [(one, job, None, 1) for one, job in zip(found, ended, strict=True)]
        )
    )
    again = store.view(lambda tx: jobs.load_many(tx, list(nums)))
    assert [one.job for one in again] == ended
    assert [(one.version, one.last_seq) for one in again] == [(2, 2)] * len(odd)
    assert [one.facts for one in again] == [facts(**one) for one in odd]


def test_one_stale_row_of_many_is_found(store: Store) -> None:
    def add(tx: Tx) -> None:
        fresh = [create(Submitted(jobs.new_num(tx), TERMS), NOW) for _ in range(3)]
        jobs.insert(tx, [(job, facts(), None) for job in fresh])

    store.transact(add)
    old = store.view(lambda tx: jobs.load_many(tx, [1, 2, 3]))
    store.transact(lambda tx: jobs.save_many(tx, [(old[1], old[1].job, None, 1)]))
    with pytest.raises(StaleRow):
        store._once(lambda tx: jobs.save_many(tx, [(one, one.job, None, 1) for one in old]))
    versions = store.view(lambda tx: jobs.versions_of(tx, [1, 2, 3]))
    assert versions == {1: 1, 2: 2, 3: 1}
