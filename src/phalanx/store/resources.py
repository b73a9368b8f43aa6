"""Read and write pools, projects and node marks, which exclude nodes from scheduling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, select

from phalanx.store import tables
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.tables import node_marks
from phalanx.store.tenancy import audit


@dataclass(frozen=True, slots=True)
class Applied:
    """One pool or project as it was last applied. `body` is its part of the file, whole."""

    name: str
    body: Mapping[str, Any]
    applied_at: int
    applied_by: str


@dataclass(frozen=True, slots=True)
class NodeMark:
    """A mark that excludes a node from scheduling. `state`: drained or quarantined."""

    node: str
    state: str
    reason: str
    at: int
    actor: str


class AppliedTable:
    """The table of pools or of projects."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._all = select(table).order_by(table.c.name)
        self._stamps = select(table.c.name, table.c.applied_at).order_by(table.c.name)

    def now(self, tx: Tx) -> list[Applied]:
        """Everything that is applied, by name."""
        return read(tx, Applied, self._all)

    def stamps(self, tx: Tx) -> tuple[tuple[str, int], ...]:
        """Name and time of everything that is applied, to detect changes."""
        return tuple((name, at) for name, at in tx.conn.execute(self._stamps))

    def put(self, tx: Tx, applied: Sequence[Applied]) -> None:
        """Add these or replace those of the same names."""
        before = {one.name: one.body for one in self.now(tx)} if audit.is_on() else {}
        for one in applied:
            tx.conn.execute(self._table.delete().where(self._table.c.name == one.name))
            tx.conn.execute(self._table.insert(), columns_of(one))
            audit.describe(tx, f"{self._table.name} {one.name}", before.get(one.name), one.body)

    def remove(self, tx: Tx, name: str) -> None:
        """Delete the one of this name."""
        if audit.is_on():
            before = {one.name: one.body for one in self.now(tx)}
            audit.describe(tx, f"{self._table.name} {name}", before.get(name), None)
        tx.conn.execute(self._table.delete().where(self._table.c.name == name))


pools = AppliedTable(tables.pools)
projects = AppliedTable(tables.projects)
data_stores = AppliedTable(tables.data_stores)
"""Stores of data outside the nodes, by URL or absolute path."""
_MARKS = select(node_marks).order_by(node_marks.c.node)


def marks(tx: Tx) -> dict[str, NodeMark]:
    """Every mark, by node."""
    return {one.node: one for one in read(tx, NodeMark, _MARKS)}


def mark_node(tx: Tx, mark: NodeMark) -> None:
    """Put a mark on a node; it replaces an earlier one."""
    _describe_mark(tx, mark.node, mark)
    tx.conn.execute(node_marks.delete().where(node_marks.c.node == mark.node))
    tx.conn.execute(node_marks.insert(), columns_of(mark))


def unmark_node(tx: Tx, node: str) -> None:
    """Delete the mark of a node, if it has one."""
    _describe_mark(tx, node, None)
    tx.conn.execute(node_marks.delete().where(node_marks.c.node == node))


def _describe_mark(tx: Tx, node: str, after: NodeMark | None) -> None:
    if audit.is_on():
        before = marks(tx).get(node)
        shown = [None if one is None else columns_of(one) for one in (before, after)]
        audit.describe(tx, f"node {node}", *shown)
