"""Open a database and run transactions in it.

SQLite by path and PostgreSQL by URL differ only here: how a transaction begins, and which errors mean
"later". All else is the same SQL.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    OperationalError,
)

from phalanx.errors import StaleRow, StoreCorrupt, StoreError, StoreUnavailable, UserError
from phalanx.store import migrate, sqlite_file
from phalanx.store.tables import counters

T = TypeVar("T")
_READ_ONLY = "phalanx_read_only"
_BUSY_TIMEOUT_S = 10.0
# PostgreSQL would show every statement what has been committed by then.
_ONE_PICTURE: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}
# Two writers that meet on one row: how often the later one decides again before it gives up.
_RETRIES = 20
# One encoder for all values: none of them holds itself, and blanks would only be stored.
_encoded = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_DAMAGE = ("malformed", "not a database", "disk image", "no such table", "no such column")


class JsonText(str):
    """A value of a JSON column that its writer has turned into text already."""

    __slots__ = ()


def to_json(value: object) -> str:
    """What is stored of a value in a JSON column."""
    return value if type(value) is JsonText else _encoded(value)


@dataclass(slots=True)
class Touched:
    """What one transaction changed: who waits for it is woken after the commit.

    `rows` are values by key as they now stand, for caches that would otherwise read them again;
    `feed` is the first and the last number that its events have in the global feed.
    """

    jobs: set[int] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    rows: dict[int, object] = field(default_factory=dict)
    feed: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Tx:
    """One open transaction."""

    conn: Connection
    touched: Touched = field(default_factory=Touched)
    read_only: bool = False


class Listener(Protocol):
    """Called after every commit that changed something, in the thread that committed."""

    def __call__(self, touched: Touched, /) -> None:
        """Wake whoever waits for what was touched."""
        ...


class Store:
    """One database. Safe to use from many threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # SQLite takes one writer at a time: waiting here is fair and cheap, its busy handler is neither.
        self._writing = threading.RLock()
        self._listeners: list[Listener] = []
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why the last write could not be stored; None once one has been."""
        return self._trouble

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    def on_commit(self, listener: Listener) -> None:
        """Call `listener` after every commit that touched something."""
        self._listeners.append(listener)

    def transact(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one write transaction; again from the start when a row had changed under it.

        `work` must have no effect outside the transaction. Raises what it raises, with nothing stored;
        StoreUnavailable, StoreCorrupt or StoreError for the database's own trouble.
        """
        for _ in range(_RETRIES):
            try:
                return self._once(work)
            except StaleRow:
                continue
        return self._once(work)

    def _once(self, work: Callable[[Tx], T]) -> T:
        try:
            with self.turn(), translated(), self._engine.begin() as conn:
                tx = Tx(conn)
                result = work(tx)
        except StoreUnavailable as error:
            self._trouble = str(error)
            raise
        self._trouble = None
        if tx.touched.jobs or tx.touched.topics:
            for listener in self._listeners:
                listener(tx.touched)
        return result

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Alone among the writers of this process, with a database that has one at a time anyway.

        For work that needs the processor for long as well. SQLite's driver gives Python's lock away at
        every row: a writer beside a thread that computes would wait for it once a row.
        """
        if self.dialect != "sqlite":
            yield
            return
        with self._writing:
            yield

    def view(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on one consistent picture of the database; it must not write."""
        with translated(), self._engine.connect() as conn:
            conn = conn.execution_options(**{_READ_ONLY: True}, **_ONE_PICTURE[self.dialect])
            with conn.begin():
                return work(Tx(conn, read_only=True))

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()


def open_store(where: Path | str) -> Store:
    """The database at a SQLite path or a SQLAlchemy URL, created or migrated as needed.

    Raises StoreCorrupt for a damaged or foreign file, which is left as it is; NotSupported for SQLite on
    a network file system; StoreUnavailable when the database cannot be reached.
    """
    if isinstance(where, Path):
        sqlite_file.check(where)
        engine = _sqlite(f"sqlite:///{where}")
    elif where.startswith("sqlite"):
        engine = _sqlite(where)
    else:
        engine = create_engine(_with_driver(where), pool_pre_ping=True, json_serializer=to_json)
    try:
        with translated():
            migrate.to_head(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)


def _with_driver(url: str) -> str:
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url.removeprefix(plain)
    return url


def _sqlite(url: str) -> Engine:
    engine = create_engine(
        url,
        connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_S},
        json_serializer=to_json,
    )

    @event.listens_for(engine, "connect")
    def _connected(raw: Any, record: Any) -> None:
        raw.isolation_level = None  # the driver must not open transactions of its own accord
        cursor = raw.cursor()
        # FULL: a commit that was answered survives a power cut, not only a kill.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(conn: Connection) -> None:
        read_only = conn.get_execution_options().get(_READ_ONLY, False)
        conn.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the database and its driver as our own."""
    try:
        yield
    except IntegrityError as error:
        raise StoreError(f"the database refused a row: {error.orig}") from error
    except OperationalError as error:
        raise _operational(error) from error
    except (OverflowError, DataError) as error:
        raise UserError("a number or a text is larger than the database can hold") from error
    except DatabaseError as error:
        raise _damaged(error) from error
    except DBAPIError as error:
        raise StoreError(f"the database failed: {error.orig}") from error


def _operational(error: DBAPIError) -> StoreError:
    text = str(error.orig)
    if any(word in text for word in _DAMAGE):
        return _damaged(error)
    if "serialize access" in text or "deadlock detected" in text:
        return StaleRow(text)
    hint = "free some space" if "full" in text else "try again"
    return StoreUnavailable(f"the database cannot be used: {text}", hint)


def _damaged(error: DBAPIError) -> StoreError:
    text = str(error.orig)
    if any(word in text for word in _DAMAGE):
        return StoreCorrupt(f"the database is damaged: {text}", sqlite_file.RESCUE)
    return StoreError(f"the database refused: {text}")


def take_numbers(tx: Tx, name: str, count: int = 1) -> int:
    """The first of `count` fresh numbers, in the order in which writers commit.

    A database sequence would not do: its numbers become visible out of order.
    """
    update = (
        counters.update()
        .where(counters.c.name == name)
        .values(value=counters.c.value + count)
        .returning(counters.c.value)
    )
    last = tx.conn.execute(update).scalar_one()
    return int(last) - count + 1


def last_number(tx: Tx, name: str) -> int:
    """The last number given out, 0 before the first."""
    value = tx.conn.execute(select(counters.c.value).where(counters.c.name == name)).scalar()
    return int(value or 0)
