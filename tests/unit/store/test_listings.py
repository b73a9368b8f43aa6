"""Pages of jobs in every order, while jobs are added; also with `--database postgresql`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event

from phalanx.core.jobs.model import JobState
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


def test_listings_of_sqlite_read_the_index_that_has_every_column(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    if store.dialect != "sqlite":
        pytest.skip("PostgreSQL chooses its indexes by statistics")
    said: list[tuple[str, object]] = []

    def note(_conn: object, _cursor: object, sql: str, values: object, *_: object) -> None:
        said.append((sql, values))

    event.listen(store._engine, "before_cursor_execute", note)
    queued = JobFilter(states=(JobState.QUEUED,), project="vision")
    # The one of states would read a row of the table for each job of the state.
    for order in (listings.NEWEST, listings.Order("submitted_at"), listings.Order("slot_seconds")):
        said.clear()
        store.view(lambda tx, by=order: listings.page(tx, queued, order=by, limit=2))
        sql, values = next(one for one in said if one[0].startswith("SELECT"))
        plan = store.view(
            lambda tx, sql=sql, values=values: tx.conn.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {sql}", values
            ).all()
        )
        assert "USING COVERING INDEX ix_jobs_listing" in plan[0].detail, order
    store.close()
