# ruff: noqa: D102 - the names of the tests say what they promise
"""Contract tests that every database passes.

Subclass `StoreContract` and supply a fixture `reopen`, which opens the same fresh database each time it
is called.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from phalanx.core.contract.records import MetricPoint
from phalanx.core.gang.placement import GangShape
from phalanx.core.jobs.events import JobEvent, StopRequested, Submitted
from phalanx.core.jobs.machine import create, decide, rebuild
from phalanx.core.jobs.model import Job, JobPolicy, JobState, KillAttempt, LaunchAttempt, StopGoal
from phalanx.core.logs.segments import LogSegment
from phalanx.core.training.ledger import Consumed
from phalanx.errors import LeaseLost, NotFound, StaleRow
from phalanx.store import Store, Tx, events, jobs, lineage, outbox, planning, supervisors, telemetry
from phalanx.store.database import take_numbers
from phalanx.store.events import NewEvent
from phalanx.store.jobs import JobFacts
from phalanx.store.lineage import LedgerSlice
from phalanx.store.listings import jobs as listings
from phalanx.store.listings.jobs import JobFilter
from phalanx.store.metrics import arrivals, folding
from phalanx.store.metrics.curves import CurveQuery, curves
from phalanx.store.planning import StoredPolicy
from phalanx.store.tables import jobs as jobs_table

Reopen = Callable[[], Store]
NOW = 1_700_000_000_000_000
_TERMS = JobPolicy(GangShape(1, 1, 1))


def facts(**changes: object) -> JobFacts:
    """Some job."""
    plain: dict[str, object] = {
        **{"project": "vision", "name": "digits", "owner": "ada", "labels": {"team": "vision"}},
        **{"framework": "torch", "kind": "submit", "priority": 50, "pools": ()},
        **{"cpus_per_node": 0, "spec": {"schema": 1}, "code_digest": None},
        **{"caller_cwd": None, "caller_env": None, **changes},
    }
    return JobFacts(**plain)  # type: ignore[arg-type]


def entry(job: Job, event: JobEvent, seq: int) -> NewEvent:
    """An event as the log takes it."""
    reason = {"state": job.state.value, "code": job.reason.code.value, "message": ""}
    kind, data = events.kind_of(type(event)), events.data_of(event)
    return NewEvent(job.num, seq, NOW, kind, None, None, "test", reason, data)


def add_job(tx: Tx, **changes: object) -> int:
    """Insert a job with its first event."""
    event = Submitted(jobs.new_num(tx), _TERMS)
    job = create(event, NOW)
    jobs.insert(tx, [(job, facts(**changes), None)])
    events.append(tx, [entry(job, event, 1)])
    return job.num


def cancel(tx: Tx, num: int) -> None:
    """One more event of a queued job, saved as services do it."""
    stored = jobs.load(tx, num)
    event = StopRequested(StopGoal.CANCEL)
    job = decide(stored.job, event, NOW).job
    jobs.save_many(tx, [(stored, job, None, 1)])
    events.append(tx, [entry(job, event, stored.last_seq + 1)])


def segment(job: int, offset: int, data: bytes, rank: int = 0) -> LogSegment:
    """Some bytes of a log."""
    return LogSegment(0, job, 1, 0, rank, "out", offset, 0, NOW, data)


def saved(path: str, step: int) -> dict[str, object]:
    """The values of a checkpoint that was created at `NOW + step`."""
    values: dict[str, object] = {"step": step, "path": path, "epoch": 0, "created_at": NOW + step}
    return values | {"size_bytes": 9, "took_s": 0.1, "metrics": {"acc": 0.5}}


def restored(position: int) -> dict[str, object]:
    """The values of a restore at a position of the first epoch."""
    values: dict[str, object] = {"step": 3, "epoch": 0, "position": position, "exact": True}
    return values | {"path": "/c/3", "took_s": None, "at": NOW}


class CurveContract:
    """Promises of every store of metrics; a part of `StoreContract`, which has the fixture `store`."""

    def test_what_is_not_finite_survives(self, store: Store) -> None:
        points = [MetricPoint(0, 1, NOW, {"loss": math.nan, "top": math.inf, "ok": 0.5})]
        store.transact(lambda tx: arrivals.add_points(tx, (1, 1, 0), points))
        ((chunk,), _) = store.view(lambda tx: arrivals.chunks_of(tx, 1, after=0, limit=9))
        (point,) = chunk.points
        assert math.isnan(point.values["loss"])
        assert (point.values["top"], point.values["ok"]) == (math.inf, 0.5)
        behind = store.view(lambda tx: arrivals.chunks_of(tx, 1, after=chunk.id, limit=9))
        assert behind == ([], False)

    def test_curves_are_the_same_before_and_after_their_reports_are_folded(
        self, store: Store
    ) -> None:
        def step(number: int) -> MetricPoint:
            return MetricPoint(number % 2, number, NOW, {"loss": math.nan if number == 9 else 1.5})

        def fill(tx: Tx) -> None:
            for start in range(0, 5000, 500):
                arrivals.add_points(tx, (1, 1, 0), [step(start + at) for at in range(500)])
            arrivals.add_points(tx, (1, 1, 1), [MetricPoint(0, 100, NOW, {"loss": -8.0})])

        def read(**wanted: int) -> list[tuple[int, int, list[int], str]]:
            found = store.view(lambda tx: curves(tx, [1], CurveQuery(**wanted)))  # type: ignore[arg-type]
            return [
                (one.rank, one.count, one.samples.steps.tolist(), repr(one.samples.values.tolist()))
                for one in found
            ]

        store.transact(fill)
        whole = {"max_points": 10_000, "exact_up_to": 10_000}
        before, part = read(**whole), read(first=90, last=200)
        while store.transact(partial(folding.fold, job=1)):
            pass
        assert read(**whole) == before and read(first=90, last=200) == part
        for rank, count, steps, values in read(max_points=50):
            assert (count, steps[0], steps[-1]) == (2500, rank, 4998 + rank) and len(steps) <= 50
            assert ("-8.0" if rank == 0 else "nan") in values
        reports, more = store.view(lambda tx: arrivals.chunks_of(tx, 1, after=0, limit=99))
        assert [len(one.points) for one in reports] == [500] * 10 + [1] and not more


class StoreContract(CurveContract):
    """What services rely on, whatever the database."""

    @pytest.fixture
    def store(self, reopen: Reopen) -> Store:
        return reopen()

    def test_a_job_comes_back_as_it_was(self, store: Store) -> None:
        num = store.transact(lambda tx: add_job(tx, caller_env={"A": "b"}, pools=("x", "y")))
        stored = store.view(lambda tx: jobs.load(tx, num))
        assert stored.facts == facts(caller_env={"A": "b"}, pools=("x", "y"))
        assert stored.job == create(Submitted(num, _TERMS), NOW)

    def test_everything_survives_opening_again(self, reopen: Reopen) -> None:
        num = reopen().transact(add_job)
        reopen().transact(lambda tx: cancel(tx, num))
        again = reopen()
        stored = again.view(lambda tx: jobs.load(tx, num))
        assert stored.job.state is JobState.CANCELLED
        assert rebuild(again.view(lambda tx: events.machine_log(tx, num))) == stored.job

    def test_an_error_leaves_nothing_behind(self, store: Store) -> None:
        def work(tx: Tx) -> None:
            add_job(tx)
            raise NotFound("changed my mind")

        with pytest.raises(NotFound):
            store.transact(work)
        assert store.view(lambda tx: events.feed(tx)) == []
        assert store.transact(add_job) == 1

    def test_a_row_that_changed_meanwhile_is_not_overwritten(self, store: Store) -> None:
        num = store.transact(add_job)
        old = store.view(lambda tx: jobs.load(tx, num))
        store.transact(lambda tx: cancel(tx, num))
        with pytest.raises(StaleRow):
            store._once(lambda tx: jobs.save_many(tx, [(old, old.job, None, 1)]))
        assert store.view(lambda tx: jobs.load(tx, num)).job.state is JobState.CANCELLED

    def test_a_batch_with_a_row_that_changed_meanwhile_stores_nothing(self, store: Store) -> None:
        nums = [store.transact(add_job) for _ in range(3)]
        old = store.view(lambda tx: jobs.load_many(tx, nums))
        batch = [(one, one.job, None, 1) for one in old]
        store.transact(lambda tx: jobs.save_many(tx, batch))
        fresh = store.view(lambda tx: jobs.load_many(tx, nums))
        assert [one.version for one in fresh] == [2, 2, 2]
        store.transact(lambda tx: cancel(tx, nums[1]))
        with pytest.raises(StaleRow):
            store._once(lambda tx: jobs.save_many(tx, [(one, one.job, None, 1) for one in fresh]))
        assert [one.version for one in store.view(lambda tx: jobs.load_many(tx, nums))] == [2, 3, 2]

    def test_work_on_a_stale_row_is_done_again(self, store: Store) -> None:
        num = store.transact(add_job)
        tries: list[int] = []

        def work(tx: Tx) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise StaleRow("another writer was faster")
            cancel(tx, num)

        store.transact(work)
        assert len(tries) == 3

    def test_numbers_are_given_once_and_in_the_order_of_commits(self, store: Store) -> None:
        given: list[int] = []

        def worker() -> None:
            for _ in range(10):
                given.append(store.transact(lambda tx: take_numbers(tx, "job")))

        threads = [threading.Thread(target=worker) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(given) == list(range(1, 41))

    def test_the_feed_has_no_gaps_and_a_story_is_in_order(self, store: Store) -> None:
        first, second = store.transact(add_job), store.transact(add_job)
        store.transact(lambda tx: cancel(tx, first))
        feed = store.view(lambda tx: events.feed(tx))
        found = [(one.feed, one.job, one.seq) for one in feed]
        assert found == [(1, first, 1), (2, second, 1), (3, first, 2)]
        assert [one.seq for one in store.view(lambda tx: events.of_job(tx, first, after=1))] == [2]
        assert [one.feed for one in store.view(lambda tx: events.feed(tx, after=2))] == [3]

    def test_listeners_hear_of_commits_only(self, store: Store) -> None:
        heard: list[set[str]] = []
        store.on_commit(lambda touched: heard.append(touched.topics))

        def broken(tx: Tx) -> None:
            tx.touched.topics.add("x")
            raise NotFound("no")

        with pytest.raises(NotFound):
            store.transact(broken)
        store.transact(lambda tx: outbox.add(tx, [(1, LaunchAttempt(1))], NOW))
        assert heard == [{outbox.TOPIC}]

    def test_pages_go_from_the_newest_and_filter(self, store: Store) -> None:
        for team in ("vision", "speech", "vision"):
            store.transact(lambda tx, team=team: add_job(tx, labels={"team": team}))  # type: ignore[misc]
        store.transact(lambda tx: cancel(tx, 1))

        def nums(**wanted: Any) -> list[int]:
            some = JobFilter(**wanted)
            found = store.view(lambda tx: listings.page(tx, some, limit=2))
            return [one.num for one in found.jobs]

        assert nums() == [3, 2]
        assert nums(labels=(("team", "vision"),)) == [3, 1]
        assert nums(states=(JobState.CANCELLED,), owner="ada") == [1]
        assert nums(project="other") == []

    # -- the outbox ---------------------------------------------------------------------

    def _lease(self, store: Store, token: str, now: int) -> list[outbox.LeasedCommand]:
        return store.transact(
            lambda tx: outbox.lease(
                tx, owner="o", token=token, now=now, expires_at=now + 100, limit=10
            )
        )

    def test_a_command_is_executed_by_one_at_a_time(self, store: Store) -> None:
        store.transact(lambda tx: outbox.add(tx, [(1, LaunchAttempt(1)), (1, KillAttempt(1))], NOW))
        taken = self._lease(store, "a", NOW)
        assert [one.kind for one in taken] == ["launch_attempt", "kill_attempt"]
        assert self._lease(store, "b", NOW + 99) == []
        store.transact(lambda tx: outbox.finish(tx, [taken[0]], NOW))
        assert store.view(lambda tx: outbox.launched(tx, [(1, 1), (2, 1)])) == {(1, 1)}

    def test_a_command_of_a_dead_owner_is_taken_over_and_its_result_refused(
        self, store: Store
    ) -> None:
        store.transact(lambda tx: outbox.add(tx, [(1, LaunchAttempt(1))], NOW))
        (old,) = self._lease(store, "a", NOW)
        (new,) = self._lease(store, "b", NOW + 100)
        assert new.tries == 2
        with pytest.raises(LeaseLost):
            store.transact(lambda tx: outbox.finish(tx, [old], NOW))
        store.transact(lambda tx: outbox.finish(tx, [new], NOW))
        assert store.view(outbox.next_at) is None

    def test_a_command_given_back_waits_for_its_time(self, store: Store) -> None:
        store.transact(lambda tx: outbox.add(tx, [(1, LaunchAttempt(1))], NOW))
        (one,) = self._lease(store, "a", NOW)
        store.transact(lambda tx: outbox.retry(tx, one, not_before=NOW + 5, error="later"))
        assert store.view(outbox.next_at) == NOW + 5
        assert self._lease(store, "a", NOW + 4) == []
        assert len(self._lease(store, "a", NOW + 5)) == 1

    def test_a_view_is_one_consistent_snapshot_during_concurrent_commits(
        self, store: Store
    ) -> None:
        def look(tx: Tx) -> list[int]:
            before = jobs.count_live(tx)
            writer = threading.Thread(target=store.transact, args=(add_job,))
            writer.start()
            writer.join()
            return [before, jobs.count_live(tx)]

        assert store.view(look) == [0, 0]
        assert store.view(jobs.count_live) == 1

    # -- bulk --------------------------------------------------------------------------------------

    def test_bytes_of_a_log_are_stored_once_however_they_are_cut(self, store: Store) -> None:
        for offset, data in ((0, b"abc"), (0, b"abc"), (1, b"bcde"), (3, b"de"), (5, b"f")):
            store.transact(lambda tx, o=offset, d=data: telemetry.add_log(tx, segment(1, o, d)))  # type: ignore[misc]
        found = store.view(lambda tx: telemetry.logs_after(tx, 1, cursor=0))
        assert b"".join(one.data for one in found) == b"abcdef"
        assert [one.offset for one in found] == [0, 3, 5]
        assert store.view(
            lambda tx: telemetry.line_start(tx, 1, (1, 0, 0, "out"), start=2, up_to=found[1].id)
        ) == (2, b"cde")

    def test_logs_are_followed_by_cursor_and_read_from_the_end(self, store: Store) -> None:
        for index in range(6):
            piece = segment(1, index, b"x", rank=index % 2)
            store.transact(lambda tx, p=piece: telemetry.add_log(tx, p))  # type: ignore[misc]
        ids = [one.id for one in store.view(lambda tx: telemetry.logs_after(tx, 1, cursor=0))]
        assert ids == sorted(ids)
        behind = store.view(lambda tx: telemetry.logs_after(tx, 1, cursor=ids[3], ranks=[0]))
        assert [one.id for one in behind] == [ids[4]]
        last = store.view(lambda tx: telemetry.last_logs(tx, 1, max_bytes=2))
        assert [one.id for one in last] == ids[4:]

    def test_the_oldest_goes_first_and_only_what_is_old(self, store: Store) -> None:
        def fill(tx: Tx) -> None:
            for index in range(4):
                telemetry.add_log(tx, replace(segment(1, index, b"x"), at=NOW + index))
            for job in (1, 2):
                arrivals.add_points(tx, (job, 1, 0), [MetricPoint(0, 1, NOW, {"loss": 0.5})])

        def drop(limit: int) -> tuple[int, int]:
            return store.transact(
                lambda tx: (
                    telemetry.drop_logs(tx, before=NOW + 3, limit=limit)[0],
                    arrivals.drop_points(tx, [1, 3], limit=limit),
                )
            )

        store.transact(fill)
        assert [drop(2), drop(2), drop(2)] == [(2, 1), (1, 0), (0, 0)]
        assert [one.at for one in store.view(lambda tx: telemetry.logs_after(tx, 1, cursor=0))] == [
            NOW + 3
        ]
        assert store.view(lambda tx: arrivals.with_points(tx, [1, 2])) == [2]
        assert store.transact(lambda tx: arrivals.drop_points(tx, [], limit=9)) == 0

    def test_the_policy_that_was_set_last_is_kept_until_it_is_removed(self, reopen: Reopen) -> None:
        store = reopen()
        assert store.view(planning.stored_policy) is None
        for at, name in enumerate(("fair", "fifo")):
            chosen = StoredPolicy(name, NOW + at, "user")
            store.transact(partial(planning.put_policy, one=chosen))
        again = reopen()
        assert again.view(planning.stored_policy) == StoredPolicy("fifo", NOW + 1, "user")
        again.transact(planning.remove_policy)
        assert reopen().view(planning.stored_policy) is None
        assert again.database_id == store.database_id

    def test_lineage_is_kept_by_generation(self, store: Store) -> None:
        def work(tx: Tx) -> tuple[bool, bool]:
            for _ in range(2):
                lineage.add_checkpoint(tx, (1, 1, 0), saved("/c/3", 3))
            lineage.mark_checkpoint(tx, 1, "/c/3", "quarantined")
            for hi in (5, 9):
                lineage.put_ledger(tx, LedgerSlice(1, 1, 0, 0, 100, (Consumed(0, 0, hi, 1),)))
            begun = lineage.GenerationRow(1, 1, 0, up_at=NOW)
            lineage.put_generation(tx, begun, lineage.find_generation(tx, (1, 1, 0)))
            stepped = replace(begun, first_step=1)
            lineage.put_generation(tx, stepped, lineage.find_generation(tx, (1, 1, 0)))
            return tuple(lineage.add_restore(tx, (1, 1, 1), restored(96)) for _ in range(2))  # type: ignore[return-value]

        assert store.transact(work) == (True, False)
        (checkpoint,) = store.view(lambda tx: lineage.checkpoints_of(tx, 1))
        assert (checkpoint.state, checkpoint.metrics) == ("quarantined", {"acc": 0.5})
        (row,) = store.view(lambda tx: lineage.ledger_of(tx, 1))
        assert row.rows == (Consumed(0, 0, 9, 1),)
        (generation,) = store.view(lambda tx: lineage.generations_of(tx, 1))
        assert (generation.up_at, generation.first_step) == (NOW, 1)
        (restore,) = store.view(lambda tx: lineage.restores_of(tx, 1))
        assert restore.position == 96

    def test_metrics_of_a_checkpoint_need_not_be_finite(self, store: Store) -> None:
        values = {"loss": math.nan, "best": -math.inf, "acc": 0.5}
        row = saved("/c/3", 3) | {"metrics": values}
        assert store.transact(lambda tx: lineage.add_checkpoint(tx, (1, 1, 0), row))
        (found,) = store.view(lambda tx: lineage.checkpoints_of(tx, 1))
        assert math.isnan(found.metrics["loss"]) and found.metrics["best"] == -math.inf

    def test_what_is_known_of_jobs_that_hold_slots(self, store: Store) -> None:
        def work(tx: Tx) -> tuple[int, int]:
            holds, waits = add_job(tx), add_job(tx)
            for num in (holds, waits):
                for at, state in ((1, "valid"), (2, "valid"), (3, "quarantined")):
                    lineage.add_checkpoint(tx, (num, 1, 0), saved(f"/c/{at}", at))
                    lineage.mark_checkpoint(tx, num, f"/c/{at}", state)
                for attempt in (1, 2):
                    lineage.add_restore(tx, (num, attempt, 0), restored(0))
                fresh = {(num, 1, 0, 0): "old"}
                fresh |= {(num, 2, rank, 0): f"hash-{num}" for rank in range(2)}
                supervisors.expect(tx, fresh)
                supervisors.update(tx, (num, 1, 0, 0), released_at=NOW, epoch=9, num_epochs=9)
                # The supervisor of node rank 1 was replaced.
                supervisors.update(tx, (num, 2, 1, 0), epoch=1, num_epochs=9)
                supervisors.expect(tx, {(num, 2, 1, 1): f"next-{num}"})
                supervisors.update(tx, (num, 2, 1, 1), released_at=NOW, epoch=2, num_epochs=9)
                supervisors.update(tx, (num, 2, 0, 0), epoch=3, num_epochs=9)
            held = jobs_table.update().where(jobs_table.c.num == holds)
            tx.conn.execute(held.values(state="running", attempts=2, code_digest="c" * 64))
            over = jobs_table.update().where(jobs_table.c.num == waits)
            tx.conn.execute(over.values(code_digest="d" * 64, ended_at=NOW))
            return holds, waits

        holds, _ = store.transact(work)
        assert store.view(lineage.last_saves) == {holds: (NOW + 2, 0.1)}
        assert store.view(lineage.restoring) == {holds}
        assert store.view(supervisors.released) == {(holds, 2, 1, 1)}
        assert store.view(supervisors.epochs_now) == {holds: (2, 9)}
        newest = store.view(lambda tx: supervisors.of_attempt(tx, holds, 2))
        assert [one.key[2:] for one in newest] == [(0, 0), (1, 1)]

        def silent(live: int) -> set[int]:
            return store.view(lambda tx: supervisors.silent_attempts(tx, holds, live))

        # None has connected yet; the one that was replaced has ended, the other one lives.
        for rank in range(2):
            store.transact(partial(supervisors.update, key=(holds, 2, rank, 0), first_seen_at=NOW))
            assert silent(2) == ({2} if rank else set())

        def known(tx: Tx) -> list[bool]:
            return [supervisors.knows_token(tx, one) for one in (f"hash-{holds}", "old", "new")]

        assert store.view(known) == [True, True, False]
        digests = {"c" * 64, "d" * 64}
        assert store.view(lambda tx: jobs.code_in_use(tx, since=NOW)) == digests
        assert store.view(lambda tx: jobs.code_in_use(tx, since=NOW + 1)) == {"c" * 64}
