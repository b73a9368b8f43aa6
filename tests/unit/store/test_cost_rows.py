"""Sums of the cost ledger leave out projects that a caller may not see, from rows and from days."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.cost.ledger import Account, AccountRow
from phalanx.store import open_store
from phalanx.store.cost import days, job_sums, rows
from phalanx.store.cost.rows import CostFilter, CostOwner, CostRow
from phalanx.store.database import Tx

pytestmark = pytest.mark.unit


def a_row(job: int, project: str) -> CostRow:
    used = AccountRow(0, 10, 0, 2, ((Account.PRODUCTIVE, 20),))
    return CostRow(CostOwner(job, project, "ada", None, None), 1, "gpu", None, used, 7)


def test_the_dearest_jobs_are_those_of_all_rows_whenever_these_were_folded(tmp_path: Path) -> None:
    store, draw = open_store(tmp_path / "a.sqlite"), random.Random(1)
    every = [
        replace(a_row(draw.randrange(1, 40), "vision"), nano_usd=draw.randrange(9))
        for _ in range(200)
    ]
    for start in range(0, 200, 50):
        store.transact(lambda tx, at=start: rows.add_many(tx, every[at : at + 50]))
        store.transact(days.fold)

        def compare(tx: Tx) -> None:
            found = {int(key): one for key, one in rows.sums(tx, "job", CostFilter()).items()}
            ranked = sorted(found, key=lambda num: (-found[num].nano_usd, -found[num].held_us, num))
            assert list(job_sums.dearest(tx, CostFilter(), 7).items()) == [
                (num, found[num]) for num in ranked[:7]
            ]
            assert job_sums.of_jobs(tx, list(found)) == found
            whole = rows.sums(tx, "study", CostFilter())
            for by in ("study", "label:team"):
                assert job_sums.by_group(tx, by, CostFilter()) == whole

        store.view(compare)
    store.close()


def test_projects_that_a_caller_may_not_see_are_in_no_sum(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.sqlite")
    found = [a_row(1, "vision"), a_row(2, "speech"), a_row(3, "speech")]

    def sums(tx: Tx) -> list[dict[str, int]]:
        wanted = (CostFilter(projects=("vision",)), CostFilter(projects=()), CostFilter())
        return [
            {key: one.held_us for key, one in source(tx, by, few).items()}
            for source in (rows.sums, days.sums)
            for by in ("project", "user")
            for few in wanted
        ]

    expected = [{"vision": 20}, {}, {"vision": 20, "speech": 40}, {"ada": 20}, {}, {"ada": 60}] * 2
    store.transact(lambda tx: rows.add_many(tx, found))
    assert store.view(sums) == expected
    store.transact(days.fold)
    assert not store.view(days.is_behind)
    assert store.view(sums) == expected
    assert [CostFilter(projects=("vision",)).takes(one) for one in found] == [True, False, False]
    store.close()
