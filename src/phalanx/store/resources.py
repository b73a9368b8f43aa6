"""Read and write pools, projects and node marks, which exclude nodes from scheduling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, select

from phalanx.store.database import Tx
from phalanx.store.tables import node_marks, pools, projects


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


def pools_now(tx: Tx) -> list[Applied]:
    """All applied pools, by name."""
    return _all(tx, pools)


def projects_now(tx: Tx) -> list[Applied]:
    """All applied projects, by name."""
    return _all(tx, projects)


def pool_stamps(tx: Tx) -> tuple[tuple[str, int], ...]:
    """Name and time of every applied pool, to detect changes."""
    return _stamps(tx, pools)


def project_stamps(tx: Tx) -> tuple[tuple[str, int], ...]:
    """Name and time of every applied project, to detect changes."""
    return _stamps(tx, projects)


def put_pools(tx: Tx, applied: Sequence[Applied]) -> None:
    """Add these pools or replace those of the same names."""
    _put(tx, pools, applied)


def put_projects(tx: Tx, applied: Sequence[Applied]) -> None:
    """Add these projects or replace those of the same names."""
    _put(tx, projects, applied)


def remove_pool(tx: Tx, name: str) -> None:
    """Delete one pool."""
    tx.conn.execute(pools.delete().where(pools.c.name == name))


def remove_project(tx: Tx, name: str) -> None:
    """Delete the limits of one project."""
    tx.conn.execute(projects.delete().where(projects.c.name == name))


def marks(tx: Tx) -> dict[str, NodeMark]:
    """Every mark, by node."""
    query = select(node_marks).order_by(node_marks.c.node)
    return {row["node"]: NodeMark(**row) for row in tx.conn.execute(query).mappings()}


def mark_node(tx: Tx, mark: NodeMark) -> None:
    """Put a mark on a node; it replaces an earlier one."""
    unmark_node(tx, mark.node)
    row = {"node": mark.node, "state": mark.state, "reason": mark.reason}
    tx.conn.execute(node_marks.insert(), {**row, "at": mark.at, "actor": mark.actor})


def unmark_node(tx: Tx, node: str) -> None:
    """Delete the mark of a node, if it has one."""
    tx.conn.execute(node_marks.delete().where(node_marks.c.node == node))


def _stamps(tx: Tx, table: Table) -> tuple[tuple[str, int], ...]:
    query = select(table.c.name, table.c.applied_at).order_by(table.c.name)
    return tuple((name, at) for name, at in tx.conn.execute(query))


def _all(tx: Tx, table: Table) -> list[Applied]:
    query = select(table).order_by(table.c.name)
    return [Applied(**row) for row in tx.conn.execute(query).mappings()]


def _put(tx: Tx, table: Table, applied: Sequence[Applied]) -> None:
    for one in applied:
        tx.conn.execute(table.delete().where(table.c.name == one.name))
        row = {"name": one.name, "body": dict(one.body)}
        tx.conn.execute(
            table.insert(), {**row, "applied_at": one.applied_at, "applied_by": one.applied_by}
        )
