"""Open a SQLite or PostgreSQL database and run transactions in it.

Only this module treats the two differently: how a transaction begins, and which errors are
temporary. All other modules use the same SQL.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Select, bindparam, create_engine, event, select
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from phalanx.errors import StaleRow, StoreCorrupt, StoreError, StoreUnavailable, UserError
from phalanx.store import migrate
from phalanx.store.engines import postgresql, sqlite_file
from phalanx.store.engines.many_rows import to_json
from phalanx.store.engines.notifications import CHANNEL, NOTIFY, ChangeListener, payload
from phalanx.store.engines.totals import AddedTotals
from phalanx.store.tables import counters, facts

T = TypeVar("T")
# How long a write waits for a lock of another process, for its turn among those of this process, and any
# statement for a connection. Each is short beside the timeout of a client's request.
_BUSY_TIMEOUT_S = 3.0
_TURN_TIMEOUT_S = postgresql.LOCK_TIMEOUT_S
_POOL: dict[str, Any] = {"pool_size": 10, "max_overflow": 60, "pool_timeout": 5.0}
# Options of a consistent snapshot: by default each statement of PostgreSQL sees later commits.
_SNAPSHOT: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
# Limit on retries of a transaction that conflicts with another writer.
_RETRIES = 20
# Statements that run for each report or trial are made once: to make one costs more than to run it.
_TAKE = (
    counters.update()
    .where(counters.c.name == bindparam("_name"))
    .values(value=counters.c.value + bindparam("_count"))
    .returning(counters.c.value)
)
_DAMAGE = ("malformed", "not a database", "disk image", "no such table", "no such column")


@dataclass(slots=True)
class Touched:
    """The changes of one transaction; listeners receive them after the commit.

    `rows` are the new values by key, so that caches need not read them again; `feed` is the first
    and the last number of its events in the global feed.
    """

    jobs: set[int] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    rows: dict[int, object] = field(default_factory=dict)
    feed: tuple[int, int] | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)  # for the audit log
    totals: AddedTotals = field(default_factory=AddedTotals)  # of metrics


@dataclass(slots=True)
class Precondition:
    """What must hold when the first write transaction of a request begins; `check` raises otherwise."""

    check: Callable[[Tx], None]
    met: bool = False  # a transaction has committed under it


PRECONDITION: ContextVar[Precondition | None] = ContextVar("phalanx_precondition", default=None)
"""That of the request that the running thread serves."""


@dataclass(frozen=True, slots=True)
class Tx:
    """One open transaction."""

    conn: Connection
    touched: Touched = field(default_factory=Touched)
    read_only: bool = False


class Listener(Protocol):
    """A callback that runs after every commit with changes, in the committing thread."""

    def __call__(self, touched: Touched, /) -> None:
        """Process the changes of one commit."""
        ...


class Store:
    """A database that many threads may use at once."""

    def __init__(self, engine: Engine, file: Path | None = None) -> None:
        self._engine = engine
        self._file = file
        self._opened = None if file is None else _identity(file)
        self.database_id = self.view(_database_id)
        # SQLite allows one writer at a time; this lock is fairer and cheaper than its busy handler.
        self._writing = threading.RLock()
        self._listeners: list[Listener] = []
        self._trouble: list[str] = []  # shared with the fenced stores
        self._fence: Callable[[Tx], None] | None = None
        self._append_audit: Callable[[Tx], None] = lambda tx: None
        self._others: ChangeListener | None = None

    def check_place(self) -> None:
        """Raise StoreUnavailable when the file of the database has been deleted or replaced.

        Open connections would go on with the deleted file, and what they store would be lost.
        """
        if self._file is not None and _identity(self._file) != self._opened:
            said = f"the database {self._file} was deleted or replaced while it was in use"
            raise StoreUnavailable(said, "put it back, or restore a backup, and start again")

    def revision(self) -> str | None:
        """The revision of the stored schema. Raises StoreError."""
        with translated():
            return migrate.stored_revision(self._engine)

    @property
    def trouble(self) -> str | None:
        """Why the last write failed; None after a successful one."""
        return next(iter(self._trouble), None)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    def on_commit(self, listener: Listener) -> None:
        """Call `listener` after every commit that touched something."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def fenced(self, fence: Callable[[Tx], None]) -> Store:
        """The same store with a check that begins every write, and refuses it by raising LeaseLost."""
        other = copy.copy(self)
        other._fence = fence
        return other

    def audit_with(self, append: Callable[[Tx], None]) -> None:
        """Call `append` at the end of every write transaction, inside of it."""
        self._append_audit = append

    def transact(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one write transaction, and repeat it when a row has changed meanwhile.

        `work` must have no effect outside the transaction. An exception of `work` rolls back and
        propagates. Raises StoreUnavailable, StoreCorrupt or StoreError when the database fails.
        """
        for _ in range(_RETRIES):
            try:
                return self._once(work)
            except StaleRow:
                continue
        return self._once(work)

    def _once(self, work: Callable[[Tx], T]) -> T:
        required = PRECONDITION.get()
        try:
            self.check_place()
            with self.turn(), translated(), self._engine.begin() as conn:
                self._begin(conn, "BEGIN IMMEDIATE")
                tx = Tx(conn)
                if self._fence is not None:
                    self._fence(tx)
                if required is not None and not required.met:
                    required.check(tx)
                result = work(tx)
                self._append_audit(tx)
                tx.touched.totals.store(conn)
                self._announce(tx)
                self.check_place()
        except StoreUnavailable as error:
            self._trouble[:] = [str(error)]
            raise
        self._trouble.clear()
        if required is not None:
            required.met = True
        if tx.touched.jobs or tx.touched.topics:
            for listener in self._listeners:
                listener(tx.touched)
        return result

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude the other writers of this process, for a database that allows one at a time.

        Also for long computations. SQLite's driver releases the GIL at every row: a writer would
        wait for a computing thread once per row. Raises StoreUnavailable after a while.
        """
        if self.dialect != "sqlite":
            yield
            return
        if not self._writing.acquire(timeout=_TURN_TIMEOUT_S):
            raise StoreUnavailable("the database is busy: another write takes long", "try again")
        try:
            yield
        finally:
            self._writing.release()

    def view(self, work: Callable[[Tx], T]) -> T:
        """Run `work` in one read-only transaction on a consistent snapshot of the database."""
        self.check_place()
        with translated(), self._engine.connect() as conn:
            if self.dialect == "postgresql":
                conn = conn.execution_options(**_SNAPSHOT)
            with conn.begin():
                self._begin(conn, "BEGIN")
                return work(Tx(conn, read_only=True))

    def _begin(self, conn: Connection, how: str) -> None:
        """Begin a transaction of SQLite: its driver opens none.

        Not by a listener of the engine: with one, each statement costs a sixth more.
        """
        if self.dialect == "sqlite":
            conn.exec_driver_sql(how)

    def _announce(self, tx: Tx) -> None:
        """Let the commit notify the other processes on this database."""
        touched = tx.touched
        if self._others is not None and (touched.jobs or touched.topics):
            said = payload(self._others.origin, touched.jobs, touched.topics)
            tx.conn.execute(NOTIFY, {"channel": CHANNEL, "said": said})

    def follow_others(self, on_gap: Callable[[], None]) -> None:
        """Call the listeners also after commits of other processes, which name no rows.

        `on_gap` is called where notifications may have been missed. Does nothing on SQLite.
        """
        if self.dialect != "postgresql":
            return

        def changed(jobs: set[int], topics: set[str]) -> None:
            for listener in self._listeners:
                listener(Touched(jobs, topics))

        self._others = ChangeListener(self._engine, changed, on_gap)
        self._others.start()

    @property
    def hears_others(self) -> bool:
        """Whether the listeners are called after every commit of any process."""
        return self._others is None or self._others.hears

    def close(self) -> None:
        """Close all connections."""
        if self._others is not None:
            self._others.close()
            self._others = None
        self._engine.dispose()


def open_store(where: Path | str) -> Store:
    """Open the database at a SQLite path or a SQLAlchemy URL; create or migrate it as needed.

    Raises StoreCorrupt for a damaged or foreign file, which is not changed; NotSupported for SQLite on a
    network file system and an old PostgreSQL; StoreUnavailable when the database cannot be reached;
    UserError for a wrong URL.
    """
    engine = engine_at(where)
    try:
        if engine.dialect.name == "postgresql":
            postgresql.check(engine)
        with translated():
            migrate.to_head(engine)
        in_file = isinstance(where, Path) and engine.dialect.name == "sqlite"
        return Store(engine, Path(where) if in_file else None)
    except BaseException:
        engine.dispose()
        raise


def engine_at(where: Path | str) -> Engine:
    """The engine of a database; nothing is created or migrated."""
    if isinstance(where, Path):
        sqlite_file.check(where)
        return _sqlite(f"sqlite:///{where}")
    if where.startswith("sqlite"):
        return _sqlite(where)
    return postgresql.engine(where, to_json, _POOL)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _database_id(tx: Tx) -> str:
    """The random id that this database got when it was made."""
    query = select(facts.c.value).where(facts.c.name == migrate.DATABASE_ID)
    return str(tx.conn.execute(query).scalar_one())


def _sqlite(url: str) -> Engine:
    engine = create_engine(
        url,
        connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_S},
        json_serializer=to_json,
        **_POOL,
    )
    engine.dialect.statement_compiler = sqlite_file.HintedCompiler

    @event.listens_for(engine, "connect")
    def _connected(raw: Any, record: Any) -> None:
        raw.isolation_level = None  # the driver must not open transactions implicitly
        cursor = raw.cursor()
        # FULL: an acknowledged commit survives a power failure, not only a kill.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Convert errors of the database and its driver to errors of `phalanx.errors`."""
    try:
        yield
    except PoolTimeout as error:
        raise StoreUnavailable("the database has no free connection", "try again") from error
    except IntegrityError as error:
        raise StoreError(f"the database rejected a row: {error.orig}") from error
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
    full = "is full" in text or "No space left" in text
    hint = "free some space" if full else "try again"
    return StoreUnavailable(f"the database cannot be used: {text}", hint)


def _damaged(error: DBAPIError) -> StoreError:
    text = str(error.orig)
    if any(word in text for word in _DAMAGE):
        return StoreCorrupt(f"the database is damaged: {text}", sqlite_file.RESCUE)
    return StoreError(f"the database rejected a statement: {text}")


def raise_counter(tx: Tx, name: str, least: int) -> None:
    """Let the next number of a counter be higher than `least`."""
    update = counters.update().where(counters.c.name == name, counters.c.value < least)
    tx.conn.execute(update.values(value=least))


def probe(tx: Tx) -> None:
    """Write a row, to find out whether the database can be written."""
    tx.conn.execute(
        counters.update().where(counters.c.name == "job").values(value=counters.c.value)
    )


def take_numbers(tx: Tx, name: str, count: int = 1) -> int:
    """Allocate `count` numbers in commit order and return the first.

    A database sequence is not enough: its numbers become visible out of order.
    """
    last = tx.conn.execute(_TAKE, {"_name": name, "_count": count}).scalar_one()
    return int(last) - count + 1


def read(
    tx: Tx, kind: type[T], query: Select[Any], values: Mapping[str, Any] | None = None
) -> list[T]:
    """Return the rows of a query as `kind`, a dataclass with a field for each column.

    `values` are those of the query's named parameters.
    """
    return [kind(**row) for row in tx.conn.execute(query, values).mappings()]


def plain_numbers(values: Mapping[str, float | str]) -> dict[str, float | str]:
    """Numbers for a JSON column. JSON has no NaN and no infinity: they are stored as text."""
    return {
        key: one if isinstance(one, str) or math.isfinite(one) else str(one)
        for key, one in values.items()
    }


def numbers_of(values: Mapping[str, float | str]) -> dict[str, float]:
    """The numbers that `plain_numbers` made."""
    return {key: float(one) for key, one in values.items()}


def columns_of(row: Any) -> dict[str, Any]:
    """The fields of a dataclass, for a table with columns of the same names."""
    return {one.name: getattr(row, one.name) for one in fields(row)}
