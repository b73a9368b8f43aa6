"""Leases, replicas and notifications on a real PostgreSQL server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import Conflict, LeaseLost, NotSupported, StoreCorrupt
from phalanx.store import Store, Touched, Tx, migrate, open_store
from phalanx.store.engines import postgresql
from phalanx.store.leadership import leases, replicas
from phalanx.store.leadership.leases import LOOPS, Lease
from phalanx.store.leadership.replicas import ReplicaRow
from support.databases import PostgresServer
from support.waiting import wait_until

pytestmark = pytest.mark.extras
_numbers = count()
LONG_S = 600.0


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create(f"leadership_{next(_numbers)}", empty=False)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with contextlib.closing(open_store(url)) as one:
        yield one


def expire(store: Store) -> None:
    """What the passing of time does to the lease."""
    store.transact(lambda tx: tx.conn.exec_driver_sql("UPDATE leases SET expires_at = 1"))


def writes(store: Store, lease: Lease) -> bool:
    """Whether a write of the owner of this lease is accepted."""
    seen: list[Tx] = []
    try:
        store.fenced(lambda tx: leases.check(tx, lease)).transact(seen.append)
    except LeaseLost:
        return False
    return bool(seen)


OPS = st.lists(
    st.tuples(st.sampled_from(["take", "renew", "write", "give up", "time"]), st.integers(0, 2)),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(ops=OPS)
def test_only_the_last_owner_writes_and_only_in_its_time(
    postgres: PostgresServer, ops: Any
) -> None:
    """Any order of takes, renewals, ends and passing time, compared with a model of three processes."""
    store = _shared(postgres)
    store.transact(lambda tx: tx.conn.exec_driver_sql("DELETE FROM leases"))
    held: dict[int, Lease] = {}
    owner: int | None = None  # of a lease that has not run out
    last = 0
    for op, who in ops:
        mine = held.get(who)
        if op == "time":
            expire(store)
            owner = None
        elif op == "take":
            taken = store.transact(lambda tx, n=who: leases.take(tx, LOOPS, str(n), LONG_S))
            assert (taken is not None) == (owner is None)
            if taken is not None:
                assert taken.token == last + 1
                held[who], owner, last = taken, who, taken.token
        elif mine is None:
            continue
        elif op == "write":
            assert writes(store, mine) == (owner == who and mine.token == last)
        elif op == "renew":
            try:
                store.transact(lambda tx, one=mine: leases.renew(tx, one, LONG_S))
                assert owner == who
            except LeaseLost:
                assert owner != who
        else:
            store.transact(lambda tx, one=mine: leases.give_up(tx, one))
            owner = None if owner == who else owner
        known = store.view(lambda tx: leases.holder(tx, LOOPS))
        assert (None if known is None else int(known.owner)) == owner


_opened: list[Store] = []


def _shared(postgres: PostgresServer) -> Store:
    """One store for all examples of a property."""
    if not _opened:
        _opened.append(open_store(postgres.create("leases_of_all", empty=False)))
    return _opened[0]


@pytest.fixture(autouse=True, scope="module")
def _close_shared(postgres: PostgresServer) -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def test_a_new_owner_waits_for_the_write_that_is_under_way(url: str, store: Store) -> None:
    """The row lock of the check orders them: with the guard off, a write lands after the takeover."""
    with contextlib.closing(open_store(url)) as other:
        lease = store.transact(lambda tx: leases.take(tx, LOOPS, "a", LONG_S))
        assert lease is not None
        order: list[str] = []
        inside, go_on = threading.Event(), threading.Event()

        def work(tx: Tx) -> None:
            inside.set()
            assert go_on.wait(30)
            order.append("write")

        def take() -> None:
            other.transact(lambda tx: leases.take(tx, LOOPS, "b", LONG_S))
            order.append("taken")

        fenced = store.fenced(lambda tx: leases.check(tx, lease))
        writer = threading.Thread(target=fenced.transact, args=[work])
        writer.start()
        assert inside.wait(30)
        expire(other)  # a renewal would pass as well: neither waits for the write
        taker = threading.Thread(target=take)
        taker.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: other.view(lambda tx: tx.conn.exec_driver_sql(waiting).scalar()) == 1)
        go_on.set()
        writer.join(30)
        taker.join(30)
        assert order == ["write", "taken"]
        assert not writes(store, lease)


def test_a_lease_from_before_the_clock_was_set_back_is_taken(store: Store) -> None:
    """Otherwise nothing would lead until the clock has caught up."""
    lease = store.transact(lambda tx: leases.take(tx, LOOPS, "a", 8.0))
    assert lease is not None
    ahead = f"UPDATE leases SET expires_at = {leases.NOW} + 3600000000"
    store.transact(lambda tx: tx.conn.exec_driver_sql(ahead))
    assert store.transact(lambda tx: leases.take(tx, LOOPS, "b", 8.0)) == Lease(LOOPS, 2)
    assert not writes(store, lease)


def test_a_process_that_rests_in_a_transaction_does_not_keep_the_lease(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "IDLE_TIMEOUT_S", 0.2)
    with contextlib.closing(open_store(url)) as store, contextlib.closing(open_store(url)) as other:
        lease = store.transact(lambda tx: leases.take(tx, LOOPS, "a", LONG_S))
        assert lease is not None
        inside, go_on = threading.Event(), threading.Event()
        told: list[BaseException] = []

        def work(tx: Tx) -> None:
            inside.set()
            assert go_on.wait(30)

        def frozen() -> None:
            try:
                store.fenced(lambda tx: leases.check(tx, lease)).transact(work)
            except Exception as error:
                told.append(error)

        thread = threading.Thread(target=frozen)
        thread.start()
        assert inside.wait(30)
        expire(other)
        assert other.transact(lambda tx: leases.take(tx, LOOPS, "b", LONG_S)) is not None
        go_on.set()
        thread.join(30)
        assert len(told) == 1, "its commit must fail"
        assert not writes(store, lease)


def test_commits_of_one_process_wake_the_listeners_of_another(url: str, store: Store) -> None:
    heard: list[tuple[set[int], set[str]]] = []
    own: list[Touched] = []
    gaps: list[int] = []
    with contextlib.closing(open_store(url)) as other:
        other.on_commit(lambda touched: heard.append((touched.jobs, touched.topics)))
        other.follow_others(lambda: gaps.append(1))
        store.on_commit(own.append)
        store.follow_others(lambda: None)
        wait_until(lambda: other.hears_others and store.hears_others)

        def touch(nums: set[int]) -> None:
            def work(tx: Tx) -> None:
                tx.touched.jobs |= nums
                tx.touched.topics.add("queue")

            store.transact(work)

        touch({7})
        wait_until(lambda: heard == [({7}, {"queue"})])
        assert len(own) == 1, "a process does not hear itself"
        touch(set(range(10**6, 10**6 + 2000)))  # too many for one notification
        wait_until(lambda: len(gaps) == 2)
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' "
            "AND datname = current_database()"
        )
        store.transact(lambda tx: tx.conn.exec_driver_sql(end).all())
        wait_until(lambda: len(gaps) == 3 and other.hears_others)
        touch({8})
        wait_until(lambda: heard[-1] == ({8}, {"queue"}))


def replica(**given: Any) -> ReplicaRow:
    plain: dict[str, Any] = {
        **{
            "id": "a",
            "name": "here:1",
            "url": "http://h:1",
            "version": "1",
            "schema": migrate.HEAD,
        },
        **{"home": "one", "machine": "boot", "started_at": 1},
    }
    return ReplicaRow(**{**plain, **given})


def test_only_replicas_that_can_replace_one_another_join(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(one: ReplicaRow) -> None:
        store.transact(lambda tx: replicas.join(tx, one, LONG_S))

    join(replica())
    join(replica(id="b", name="here:2"))
    assert [one.id for one in store.view(replicas.live)] == ["a", "b"]
    with pytest.raises(Conflict, match="another home"):
        join(replica(id="c", home="other"))
    with pytest.raises(Conflict, match="slots of another machine"):
        join(replica(id="c", machine="other"))
    store.transact(lambda tx: tx.conn.exec_driver_sql("UPDATE replicas SET expires_at = 1"))
    join(replica(id="c", home="other"))
    assert [one.id for one in store.view(replicas.live)] == ["c"]
    assert store.transact(lambda tx: replicas.beat(tx, "c", LONG_S))
    assert not store.transact(lambda tx: replicas.beat(tx, "a", LONG_S)), "it has to join again"
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT_S", 0.05)
    with contextlib.closing(open_store(url)) as quick:
        old = store._engine.connect()  # a release without replicas keeps this lock
        old.exec_driver_sql(f"SELECT pg_advisory_lock({postgresql.CONTROL_PLANE_LOCK})")
        with pytest.raises(Conflict, match="without replicas"):
            quick.transact(lambda tx: replicas.join(tx, replica(id="d", home="other"), LONG_S))
        old.close()


def test_two_releases_share_a_database_that_the_later_one_has_upgraded(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(statement: str) -> None:
        store.transact(lambda tx: tx.conn.exec_driver_sql(statement))

    execute("UPDATE alembic_version SET version_num = '9999'")
    open_store(url).close()  # the later release has only added something
    execute("UPDATE facts SET value = '9999' WHERE name = 'oldest_user'")
    with pytest.raises(NotSupported, match="schema 9999 or later"):
        open_store(url)
    with pytest.raises(NotSupported):
        store.view(lambda tx: migrate.check_usable(tx.conn))
    execute("DELETE FROM facts WHERE name = 'oldest_user'")
    with pytest.raises(StoreCorrupt, match="'9999'"):
        open_store(url)


def test_an_upgrade_that_would_end_living_replicas_is_refused(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.transact(lambda tx: replicas.join(tx, replica(schema="0001"), LONG_S))
    store.transact(
        lambda tx: tx.conn.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    )
    with pytest.raises(Conflict, match="would end here:1"):
        open_store(url)
    assert store.revision() == "0001"
