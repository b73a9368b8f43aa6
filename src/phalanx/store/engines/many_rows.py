"""Run a statement with many rows. SQLAlchemy compiles it once; the rows go to the driver directly.

A control plane writes twenty rows for each job. What SQLAlchemy and the driver do with the values of a row
costs more than what the database does with them. PostgreSQL gets all rows as one text in JSON, in one
statement.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pydantic_core
from sqlalchemy import JSON, Connection, Dialect, Insert, LargeBinary, Update
from sqlalchemy.sql.compiler import SQLCompiler

_KEPT = 512
_PARAMETER = re.compile(r"%\((\w+)\)s")
# For what the faster serializer refuses, such as half a surrogate pair in a text of a user.
_encoded = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
Rows: TypeAlias = Sequence[Mapping[str, Any]]


class JsonText(str):
    """A value of a JSON column that is already serialized."""

    __slots__ = ()


def to_json(value: object) -> str:
    """Serialize a value for a JSON column. Raises TypeError for a value that JSON does not have."""
    if type(value) is JsonText:
        return value
    try:
        return pydantic_core.to_json(value).decode()
    except pydantic_core.PydanticSerializationError:
        return _encoded(value)


def run_many(conn: Connection, statement: Insert | Update, rows: Rows) -> int:
    """Run `statement` once for each row; returns the number of rows of the table that it changed.

    All rows have the same keys: columns, and the named parameters of the statement. An update names no row
    of the table twice. The statement is made once, as a constant of its module.
    """
    if len(rows) < 2:
        return sum(conn.execute(statement, dict(row)).rowcount for row in rows)
    return _prepared(statement, conn.dialect, tuple(rows[0])).run(conn, rows)


@dataclass(frozen=True, slots=True)
class _RowByRow:
    """A statement as text for the driver, and how its values are made of a row."""

    sql: str
    names: tuple[str, ...]  # of the values, in the order of the text
    constants: Mapping[str, Any]  # values that are not in the rows
    processors: tuple[tuple[int, Callable[[Any], Any]], ...]  # place and conversion
    by_name: bool  # the driver takes a mapping

    def run(self, conn: Connection, rows: Rows) -> int:
        """Run it for each row."""
        return int(conn.exec_driver_sql(self.sql, self._values(rows)).rowcount)

    def _values(self, rows: Rows) -> list[Any]:
        if self.constants:
            rows = [{**self.constants, **row} for row in rows]
        read = operator.itemgetter(*self.names)
        found = [list(read(row)) for row in rows]
        for place, process in self.processors:
            for one in found:
                one[place] = process(one[place])
        if self.by_name:
            return [dict(zip(self.names, one, strict=True)) for one in found]
        return [tuple(one) for one in found]


@dataclass(frozen=True, slots=True)
class _AllAtOnce:
    """A statement of PostgreSQL that takes all rows as one text in JSON."""

    sql: str
    constants: Mapping[str, Any]  # values that are not in the rows
    written: tuple[str, ...]  # names of values that may be JSON already

    def run(self, conn: Connection, rows: Rows) -> int:
        """Run it once."""
        if self.constants:
            rows = [{**self.constants, **row} for row in rows]
        if any(type(rows[0][name]) is JsonText for name in self.written):
            text = f"[{','.join(map(self._text, rows))}]"
        else:
            text = to_json(rows)
        return int(conn.exec_driver_sql(self.sql, (text,)).rowcount)

    def _text(self, row: Mapping[str, Any]) -> str:
        """A row in which some values are JSON already."""
        ready = {name for name in self.written if type(row[name]) is JsonText}
        plain = to_json({name: one for name, one in row.items() if name not in ready})
        return plain[:-1] + "".join(f',"{name}":{row[name]}' for name in ready) + "}"


@functools.lru_cache(maxsize=_KEPT)
def _prepared(
    statement: Insert | Update, dialect: Dialect, keys: tuple[str, ...]
) -> _RowByRow | _AllAtOnce:
    compiled = statement.compile(dialect=dialect, column_keys=list(keys))
    assert isinstance(compiled, SQLCompiler)
    positions = compiled.positiontup
    names = tuple(positions or dict.fromkeys(compiled.bind_names.values()))
    constants = {name: one for name, one in compiled.params.items() if name not in keys}
    types = {name: compiled.binds[name].type for name in names}
    if dialect.name == "postgresql" and not any(isinstance(t, LargeBinary) for t in types.values()):
        written = tuple(name for name in names if isinstance(types[name], JSON))
        kinds = {name: types[name].compile(dialect) for name in names}
        return _AllAtOnce(_from_json(compiled.string, kinds), constants, written)
    processors = []
    for place, name in enumerate(names):
        process = types[name].dialect_impl(dialect).bind_processor(dialect)
        if process is not None:
            processors.append((place, process))
    return _RowByRow(compiled.string, names, constants, tuple(processors), positions is None)


def _from_json(sql: str, kinds: Mapping[str, str]) -> str:
    """The statement with the rows of a JSON text in the place of its parameters."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
    rows = f"json_to_recordset(%s::json) AS given ({columns})"
    sql = _PARAMETER.sub(r'given."\1"', sql)
    if sql.startswith("INSERT"):
        into, values = sql.split(" VALUES (", 1)
        return f"{into} SELECT {values.removesuffix(')')} FROM {rows}"  # noqa: S608 - own names
    changes, condition = sql.split(" WHERE ", 1)
    return f"{changes} FROM {rows} WHERE {condition}"
