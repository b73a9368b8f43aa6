"""Pages of jobs in every order and with every filter; also with `--database postgresql`."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from phalanx.core.jobs.model import JobState
from phalanx.core.reasons import Reason, ReasonCode
from phalanx.errors import UserError
from phalanx.store import jobs, open_store
from phalanx.store.index import listing
from phalanx.store.listings import jobs as listings
from phalanx.store.listings.jobs import JobFilter, ListingRange
from phalanx.store.schema.listings import STEADY, job_data, job_listing
from phalanx.testing.stores import NOW, add_job, cancel
from phalanx.testing.study_stores import add_study

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
            seen += [one.num for one in found.jobs]
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


class Row:
    """A row of the listing, and what filters and orders see of it."""

    def __init__(self, num: int, draw: random.Random) -> None:
        over = draw.random() < 0.6
        pick, number = draw.choice, draw.randrange
        self.values: dict[str, Any] = {
            "num": num,
            "state": pick(("succeeded", "failed")) if over else "queued",
            "reason": pick(("completed", "oom", "user_error")),
            "pending": pick(("", "waiting_for_slots")),
            "cause": pick(("", "oom", "rank_crash")),
            "project": pick(("vision", "Vision", "speech")),
            "owner": pick(("ada", "bob")),
            "name": pick(("a_b", "a-b", "axb", "a%b", "Ä", "Z", "A_B", "a?b", "a[x]b")),
            "framework": pick(("torch", "jax")),
            "kind": pick(("run", "submit")),
            "pool": pick(("", "p1", "p2")),
            "slot_type": pick(("", "H100")),
            "image": pick(("", "img:1", "img:2", "other")),
            "entry_point": pick(("train.py", "Train.py", "src/train.py", "pkg.train")),
            "algorithm": pick(("", "tpe", "grid")),
            "metric": pick(("", "acc")),
            "best": pick((None, -3.5, 0.0, 0.25)),
            "priority": number(3),
            "num_slots": number(3),
            "num_nodes": number(3),
            "restarts": number(3),
            "submitted_at": NOW + number(4),
            "started_at": pick((None, NOW + number(4))),
            "ended_at": pick((None, NOW + number(4))),
            "queue_s": pick((None, 0.0, 1.5)),
            "duration_s": pick((None, 0.0, 1.5)),
            "slot_seconds": pick((0.0, 7.25)),
            "nano_usd": pick((0, 1, 2_000_000_001)),
            "study": pick((None, 1, 2)),
            "array": pick((None, 1)),
        }
        paths = ("s3://data/a", "s3://Data/a", "s3://data/b", "/mnt/data")
        self.data = dict(zip(("train", "test"), draw.sample(paths, number(3)), strict=False))

    def key(self, by: str) -> tuple[object, int]:
        """Where it stands in an order; a missing value is the smallest."""
        value = self.values[{"usd": "nano_usd", "metric": "best"}.get(by, by)]
        if isinstance(value, str):
            return value.encode(), self.values["num"]
        return -math.inf if value is None else value, self.values["num"]


_RANGES = {
    "priority": "priority",
    "slots": "num_slots",
    "nodes": "num_nodes",
    "restarts": "restarts",
    "submitted": "submitted_at",
    "started": "started_at",
    "ended": "ended_at",
    "queue_s": "queue_s",
    "duration_s": "duration_s",
    "slot_seconds": "slot_seconds",
    "usd": "nano_usd",
    "metric_value": "best",
}


def matching(rows: list[Row], wanted: JobFilter) -> list[Row]:
    """The rows that a filter matches, by a second implementation."""
    return [row for row in rows if all(_conditions(row.values, row.data, wanted))]


def _has_form(text: str, pattern: str) -> bool:
    parts = [re.escape(one) for one in pattern.split("*")]
    return re.fullmatch(".*".join(parts), text) is not None


def _conditions(has: dict[str, Any], data: dict[str, str], wanted: JobFilter) -> Iterator[bool]:
    same = (
        "project",
        "owner",
        "cause",
        "framework",
        "kind",
        "pool",
        "slot_type",
        "metric",
        "study",
    )
    for name in (*same, "array", "algorithm"):
        yield getattr(wanted, name) in (None, has[name])
    yield not wanted.states or has["state"] in wanted.states
    yield wanted.reason in (None, has["reason"], has["pending"])
    yield wanted.trials in (None, has["study"] is not None)
    yield wanted.projects is None or has["project"] in wanted.projects
    for name in ("name", "image", "entry_point"):
        pattern = getattr(wanted, name)
        yield pattern is None or _has_form(has[name], pattern)
    yield wanted.data is None or any(_has_form(one, wanted.data) for one in data.values())
    for one in wanted.ranges:
        value = has[_RANGES[one.of]]
        yield one.least is None or (value is not None and value >= one.least)
        yield one.end is None or (value is not None and value < one.end)
        yield one.most is None or (value is not None and value <= one.most)


def some_filter(draw: random.Random, rows: list[Row]) -> JobFilter:
    """A filter with a few values that some job has."""
    like = draw.choice(rows).values
    given: dict[str, Any] = {}
    words = ("project", "owner", "name", "framework", "pool", "slot_type", "image", "kind")
    words = (*words, "entry_point", "algorithm")
    for name in draw.sample((*words, "reason", "cause", "metric", "study", "array"), 2):
        given[name] = like[name]
    if draw.random() < 0.3:
        given["name"] = draw.choice(("a*b", "*", "a_*", "a%*", "*x*", "A*", "a?*", "*[x]*"))
    if draw.random() < 0.2:
        given["entry_point"] = draw.choice(("*train.py", "T*", "src/*"))
    if draw.random() < 0.3:
        given["data"] = draw.choice(("s3://data/*", "s3://data/a", "*", "S3://*", "/mnt/*"))
    if draw.random() < 0.3:
        given["image"] = "img:*"
    if draw.random() < 0.3:
        given["states"] = (JobState.QUEUED, JobState.FAILED)
    if draw.random() < 0.3:
        given["trials"] = draw.random() < 0.5
    if draw.random() < 0.2:
        given["projects"] = ("vision",)
    of = draw.choice(sorted(_RANGES))
    at = like[_RANGES[of]]
    limits = ({"least": at}, {"end": at}, {"most": at}, {"least": at, "most": at}, {})
    return JobFilter(**given, ranges=(ListingRange(of, **draw.choice(limits)),))


def test_every_order_and_filter_agrees_with_a_second_implementation(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    draw = random.Random(7)
    assert set(_RANGES) == set(listings.RANGES)
    nums = [store.transact(lambda tx: add_job(tx)) for _ in range(40)]
    rows = [Row(num, draw) for num in nums]

    def write(tx: Any) -> None:
        for row in rows:
            here = job_listing.update().where(job_listing.c.num == row.values["num"])
            tx.conn.execute(here.values(**row.values))
            data = [
                {"job": row.values["num"], "name": name, "path": path}
                for name, path in row.data.items()
            ]
            if data:
                tx.conn.execute(job_data.insert(), data)

    store.transact(write)
    cases = [(by, down, JobFilter()) for by in listings.SORTS for down in (True, False)]
    for _ in range(200):
        by = draw.choice(sorted(listings.SORTS))
        cases.append((by, draw.random() < 0.5, some_filter(draw, rows)))
    num_found = 0
    for by, down, wanted in cases:
        expected = sorted(matching(rows, wanted), key=lambda row: row.key(by), reverse=down)
        cursor, seen = None, list[int]()
        while True:
            found = store.view(
                lambda tx, at=cursor, by=by, down=down, wanted=wanted: listings.page(
                    tx, wanted, order=listings.Order(by, down), cursor=at, limit=7
                )
            )
            seen += [one.num for one in found.jobs]
            cursor = found.cursor
            if cursor is None:
                break
        assert seen == [row.values["num"] for row in expected], (by, down, wanted)
        num_found += len(seen) if wanted != JobFilter() else 0
    assert num_found > 150, "the filters match too little to show anything"
    store.close()


def test_the_row_of_a_job_follows_its_life(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    best = {"keep": {"best": {"metric": "acc", "mode": "min"}}}
    num = store.transact(
        lambda tx: add_job(tx, spec={"schema": 1, "image": "img:1", "checkpoint": best})
    )

    def row() -> dict[str, Any]:
        found = store.view(lambda tx: tx.conn.execute(select(job_listing)).mappings().one())
        return dict(found)

    first = row()
    assert (first["image"], first["num_nodes"], first["metric"]) == ("img:1", 1, "acc")
    assert (first["state"], first["queue_s"], first["best"]) == ("queued", None, None)
    waits = Reason(ReasonCode.WAITING_FOR_SLOTS, "no slot is free")
    store.transact(lambda tx: jobs.set_pending_reasons(tx, [(num, waits)]))
    assert row()["pending"] == "waiting_for_slots"
    for value, kept in ((0.5, 0.5), (0.9, 0.5), (math.nan, 0.5), (0.1, 0.1)):
        metrics = {"acc": value, "loss": 0.0}
        store.transact(lambda tx, metrics=metrics: listing.improve(tx, num, metrics))
        assert row()["best"] == kept
    store.transact(lambda tx: listing.improve(tx, num, {"loss": -1.0}))
    store.transact(lambda tx: listing.add_cost(tx, [(num, 3), (num, 4)]))
    facts = store.view(lambda tx: jobs.load(tx, num)).facts
    store.transact(lambda tx: jobs.put_facts(tx, num, replace(facts, name="other", priority=9)))
    store.transact(lambda tx: cancel(tx, num))
    last = row()
    assert (last["best"], last["nano_usd"], last["name"], last["priority"]) == (0.1, 7, "other", 9)
    assert (last["state"], last["reason"], last["pending"]) == ("cancelled", "cancel_requested", "")
    assert last["ended_at"] is not None and last["duration_s"] is None
    stored, (shown,) = store.view(lambda tx: (jobs.load(tx, num), jobs.load_brief(tx, [num])))
    assert shown.job == stored.job and shown.version == stored.version
    store.close()


def test_a_job_is_found_by_what_it_runs_reads_and_searches_with(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    spec = {"schema": 1, "run": "torchrun ./train.py", "data": {"train": "s3://data/" + "x" * 600}}
    study = store.transact(lambda tx: add_study(tx, spec={"search": {"method": "tpe"}}))
    plain = store.transact(lambda tx: add_job(tx, spec=spec))
    trial = store.transact(lambda tx: add_job(tx, spec={"run": ["./a.out"]}, study=study, trial=1))
    gang = {
        "roles": [
            {"command": {"words": ["serve.sh"]}, "leads": False},
            {"command": {"words": ["python learn.py"], "shell": True}, "leads": True},
        ]
    }
    roles = store.transact(lambda tx: add_job(tx, contract=gang))

    def found(**wanted: Any) -> list[tuple[int, str, str]]:
        page = store.view(lambda tx: listings.page(tx, JobFilter(**wanted), limit=9))
        return [(one.num, one.beside.entry_point, one.beside.algorithm) for one in page.jobs]

    assert found(entry_point="train.py") == [(plain, "train.py", "")] == found(data="s3://data/*")
    assert found(algorithm="tpe") == [(trial, "a.out", "tpe")]
    assert found(entry_point="learn.*") == [(roles, "learn.py", "")]
    assert found(data="s3://data") == found(algorithm="grid") == []
    store.close()


def test_the_newest_jobs_and_a_steady_order_read_few_rows(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db" / "phalanx.sqlite")
    if store.dialect != "sqlite":
        pytest.skip("PostgreSQL chooses its indexes by statistics")
    said: list[tuple[str, Any]] = []

    def note(_conn: object, _cursor: object, sql: str, values: object, *_: object) -> None:
        said.append((sql, values))

    event.listen(store._engine, "before_cursor_execute", note)

    def plan(by: str, wanted: JobFilter) -> str:
        said.clear()
        order = listings.Order(by)
        store.view(lambda tx: listings.page(tx, wanted, order=order, limit=2))
        sql, values = next(one for one in said if one[0].startswith("SELECT"))
        rows = store.view(
            lambda tx: tx.conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
        )
        return "; ".join(row.detail for row in rows)

    queued = JobFilter(states=(JobState.QUEUED,))
    assert plan("num", JobFilter()) == plan("num", queued) == "SCAN job_listing"
    for by in STEADY:
        assert f"USING COVERING INDEX ix_job_listing_{by}_num" in plan(by, JobFilter())
        # A walk along the index reads a row elsewhere for each job.
        assert plan(by, queued) == "SCAN job_listing; USE TEMP B-TREE FOR ORDER BY"
    store.close()
