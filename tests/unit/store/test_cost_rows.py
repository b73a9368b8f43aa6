"""Sums of the cost ledger leave out projects that a caller may not see, from rows and from days."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.cost.ledger import Account, AccountRow
from phalanx.store import open_store
from phalanx.store.cost import days, rows
from phalanx.store.cost.rows import CostFilter, CostOwner, CostRow
from phalanx.store.database import Tx

pytestmark = pytest.mark.unit


def a_row(job: int, project: str) -> CostRow:
    used = AccountRow(0, 10, 0, 2, ((Account.PRODUCTIVE, 20),))
    return CostRow(CostOwner(job, project, "ada", None, None), 1, "gpu", None, used, 7)


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
