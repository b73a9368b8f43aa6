"""Pages of jobs in every order, while jobs are added; also with `--database postgresql`."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.store import open_store
from phalanx.store.listings import jobs as listings
from phalanx.store.listings.jobs import JobFilter
from phalanx.testing.stores import add_job, cancel

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("descending", [True, False])
def test_pages_have_every_job_once_while_jobs_are_added(tmp_path: Path, descending: bool) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    for team in "abcde":
        store.transact(lambda tx, team=team: add_job(tx, labels={"team": team}))
    store.transact(lambda tx: cancel(tx, 2))
    for by in sorted(listings.SORTS):
        order, cursor, seen = listings.Order(by, descending), None, list[int]()
        while True:
            found = store.view(
                lambda tx, at=cursor, order=order: listings.page(
                    tx, JobFilter(), order=order, cursor=at, limit=2
                )
            )
            seen += [one.job.num for one in found.jobs]
            cursor = found.cursor
            if cursor is None:
                break
            if len(seen) == 2:
                store.transact(lambda tx: add_job(tx))
        assert len(set(seen)) == len(seen) and set(seen) >= {1, 2, 3, 4, 5}, by
    store.close()


def test_a_cursor_is_for_its_own_order_and_text_is_no_cursor(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    for _ in range(3):
        store.transact(lambda tx: add_job(tx))

    def page(order: listings.Order, cursor: str | None) -> listings.JobsPage:
        return store.view(
            lambda tx: listings.page(tx, JobFilter(), order=order, cursor=cursor, limit=1)
        )

    cursor = page(listings.NEWEST, None).cursor
    with pytest.raises(UserError, match="of a listing by '-num', not by 'name'"):
        page(listings.Order.parse("name"), cursor)
    for wrong in ("x", "eyJ9", "WyItbnVtIl0", "WyItbnVtIiwieCJd", "WyItbnVtIix0cnVlXQ"):
        with pytest.raises(UserError, match="not a cursor"):
            page(listings.NEWEST, wrong)
    with pytest.raises(UserError, match="cannot be sorted by 'spec'"):
        listings.Order.parse("-spec")
    store.close()
