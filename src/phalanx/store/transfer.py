"""Copy a whole SQLite database of this release into an empty PostgreSQL one, in one transaction.

Every table is compared by the number and a digest of its rows before the transaction commits. The digest is
the sum of the digests of the rows, so it does not depend on their order.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from sqlalchemy import JSON, Boolean, Connection, Float, Table, Text, cast, select

from phalanx.errors import Conflict, InvariantBroken, StoreError
from phalanx.store import migrate
from phalanx.store.database import Store, Tx
from phalanx.store.engines.many_rows import to_json
from phalanx.store.schema import metadata

_PAGE = 2000
_MADE_WITH_THE_TABLES = {"counters", "facts"}
# What is known of control planes of PostgreSQL; a SQLite file has no rows of these.
_NOT_COPIED = {"leases", "replicas"}
_COPIED = [table for table in metadata.sorted_tables if table.name not in _NOT_COPIED]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table after the copy: the number of its rows and their digest, equal on both sides."""

    name: str
    rows: int
    digest: str


def copy_database(source: Path, target: Store) -> list[CopiedTable]:
    """Copy every row of a SQLite file. Raises Conflict when the target holds rows of another home.

    A target that holds exactly these rows already is left as it is, so that an import which was interrupted
    behind its commit can be repeated. Raises StoreError for a row that PostgreSQL does not take; nothing
    is changed then.
    """
    with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as conn:
        conn.execute("BEGIN")

        def work(tx: Tx) -> list[CopiedTable]:
            used = [table.name for table in _COPIED if _is_used(tx.conn, table)]
            if used and not _same_database(conn, tx.conn):
                raise Conflict(
                    f"the target is not empty: it has rows in {', '.join(used)}",
                    "name an empty database: createdb DATABASE",
                )
            if not used:
                for table in _COPIED:
                    _fill(conn, tx.conn, table)
            return [_compared(conn, tx.conn, table) for table in _COPIED]

        return target.transact(work)


def _is_used(conn: Connection, table: Table) -> bool:
    if table.name in _MADE_WITH_THE_TABLES:
        return False
    return conn.execute(select(1).select_from(table).limit(1)).first() is not None


def _same_database(source: sqlite3.Connection, target: Connection) -> bool:
    query = f"SELECT value FROM facts WHERE name = '{migrate.DATABASE_ID}'"  # noqa: S608
    there = target.exec_driver_sql(query).scalar_one()
    return bool(source.execute(query).fetchone()[0] == there)


def _rows(source: sqlite3.Connection, table: Table) -> Iterator[tuple[Any, ...]]:
    """The rows of a table as PostgreSQL takes them; JSON stays the text that it is."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    kinds = [column.type for column in table.columns]
    cursor = source.execute(f"SELECT {names} FROM {table.name}")  # noqa: S608
    while page := cursor.fetchmany(_PAGE):
        for row in page:
            yield tuple(_value(kind, value) for kind, value in zip(kinds, row, strict=True))


def _value(kind: object, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Boolean):
        return bool(value)
    if isinstance(kind, JSON) and not isinstance(value, str):
        return to_json(value)  # SQLite keeps a JSON text that is a number as a number
    return float(value) if isinstance(kind, Float) else value


def _fill(source: sqlite3.Connection, target: Connection, table: Table) -> None:
    if (
        table.name in _MADE_WITH_THE_TABLES
    ):  # the others are empty, and the audit log refuses a delete
        target.execute(table.delete())
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    raw: Any = target.connection.driver_connection
    import psycopg

    try:
        with raw.cursor() as cursor, cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
            for row in _rows(source, table):
                copy.write_row(row)
    except (psycopg.DataError, UnicodeError) as error:
        said = str(error).splitlines()[0]
        raise StoreError(f"a row of the table {table.name} cannot be copied: {said}") from error


def _compared(source: sqlite3.Connection, target: Connection, table: Table) -> CopiedTable:
    here = _digest(_rows(source, table))
    columns = [
        cast(column, Text) if isinstance(column.type, JSON) else column for column in table.columns
    ]
    answer = target.execute(select(*columns), execution_options={"yield_per": _PAGE})
    there = _digest(tuple(row) for row in answer)
    if here != there:
        raise InvariantBroken(f"the copy of the table {table.name} differs: {here} and {there}")
    return CopiedTable(table.name, here[0], here[1])


def _digest(rows: Iterator[Sequence[Any]]) -> tuple[int, str]:
    count = total = 0
    for row in rows:
        count += 1
        total += xxhash.xxh3_128_intdigest(repr(tuple(row)).encode(errors="surrogatepass"))
    return count, f"{total % (1 << 128):032x}"
