"""Tags of resources: a text that differs when what their changing routes change differs.

What happens by itself, such as the progress of a job or the next due time of a schedule, leaves a tag as
it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, select

from phalanx.core.codec import encode
from phalanx.store.database import Tx
from phalanx.store.engines.many_rows import to_json
from phalanx.store.planning import scaling_bounds
from phalanx.store.tables import (
    accounts,
    cost_budgets,
    facts,
    group_members,
    job_templates,
    jobs,
    node_marks,
    pools,
    projects,
    role_grants,
    schedules,
    secrets,
    studies,
)


class Resource(StrEnum):
    """What has a tag."""

    JOB = "job"
    STUDY = "study"
    SCHEDULE = "schedule"
    TEMPLATE = "template"
    PROJECT = "project"
    POOL = "pool"
    NODE = "node"
    ACCOUNT = "account"
    GROUP = "group"
    BUDGET = "budget"
    SECRET = "secret"
    POLICY = "policy"


SETTINGS = (
    *("name", "description", "labels", "tags", "group", "priority", "pool", "max_duration"),
    "budget",
)
"""The settings of a job that its tag names, with their names in the spec; `nodes` is one more."""
Values = Mapping[str, str]
"""The variables of a path. `project` is empty for the whole platform."""


def settings_tag(spec: Mapping[str, Any]) -> str:
    """The tag of a job with this spec."""
    nodes = nodes_in(spec)
    named = {} if nodes is None else {"nodes": nodes}
    return _digest(named | {name: spec.get(name) for name in SETTINGS})


def nodes_in(spec: Mapping[str, Any]) -> Any:
    """The number or range of nodes in a spec; None where it says nothing."""
    return (spec.get("resources") or {}).get("nodes")


def tag_of(tx: Tx, kind: Resource, values: Values) -> str | None:
    """The tag of a resource; None: it does not exist. A write transaction locks its rows."""
    query = _QUERIES[kind](values)
    rows = tx.conn.execute(query if tx.read_only else query.with_for_update()).all()
    if not rows and kind not in _ALWAYS:
        return None
    if kind is Resource.JOB:
        return settings_tag(rows[0].spec)
    found: list[list[object]] = [list(row) for row in rows]
    if kind in _BESIDE:
        found += _BESIDE[kind](tx, values)
    return _digest(found)


def _digest(found: object) -> str:
    return hashlib.sha256(to_json(found).encode()).hexdigest()[:16]


def _number(text: str) -> int:
    """A number of a path; 0, which nothing has, for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _some(
    table: object, names: Sequence[str], *terms: ColumnElement[bool], by: Sequence[str] = ()
) -> Select[tuple[object, ...]]:
    columns = table.c  # type: ignore[attr-defined]
    query = select(*(columns[name] for name in names)).where(*terms)
    return query.order_by(*(columns[name] for name in by))


def _roles(tx: Tx, values: Values) -> list[list[object]]:
    subject = role_grants.c.subject == values["name"]
    query = _some(role_grants, ("project", "role"), subject, by=("project",))
    return [list(row) for row in tx.conn.execute(query)]


def _bounds(tx: Tx, values: Values) -> list[list[object]]:
    found = scaling_bounds(tx).get(values["name"])
    return [] if found is None else [[encode(found)]]


# Rows of other tables that belong to a resource.
_BESIDE: dict[Resource, Callable[[Tx, Values], list[list[object]]]] = {
    Resource.ACCOUNT: _roles,
    Resource.POOL: _bounds,
}
# A node without a mark, the policy of the start, and the pools and projects that no file names have no row
# and still a state. A group without members does not exist.
_ALWAYS = {Resource.NODE, Resource.POLICY, Resource.POOL, Resource.PROJECT}
_SCHEDULE = ("principal", "owner", "cron", "timezone", "catch_up", "catch_up_limit", "overlap")
_BUDGET = ("nano_usd", "slot_us", "period", "warn", "pause_percent")
_QUERIES: dict[Resource, Callable[[Values], Select[tuple[object, ...]]]] = {
    Resource.JOB: lambda v: _some(jobs, ("spec",), jobs.c.num == _number(v["num"])),
    Resource.STUDY: lambda v: _some(
        studies, ("state", "max_trials", "parallel"), studies.c.num == _number(v["num"])
    ),
    Resource.SCHEDULE: lambda v: _some(
        schedules,
        (*_SCHEDULE, "paused", "request", "code_digest", "changed_at"),
        schedules.c.project == v["project"],
        schedules.c.name == v["schedule"],
    ),
    Resource.TEMPLATE: lambda v: _some(
        job_templates,
        ("version", "created_at"),
        job_templates.c.project == v["project"],
        job_templates.c.name == v["template"],
        by=("version",),
    ),
    Resource.PROJECT: lambda v: _some(projects, ("body",), projects.c.name == v["name"]),
    Resource.POOL: lambda v: _some(pools, ("body",), pools.c.name == v["name"]),
    Resource.NODE: lambda v: _some(
        node_marks, ("state", "reason", "at"), node_marks.c.node == v["name"]
    ),
    Resource.ACCOUNT: lambda v: _some(
        accounts, ("created_at", "identity", "disabled_at"), accounts.c.id == v["name"]
    ),
    Resource.GROUP: lambda v: _some(
        group_members,
        ("member", "from_login"),
        group_members.c.group_id == v["name"],
        by=("member",),
    ),
    Resource.BUDGET: lambda v: _some(
        cost_budgets, _BUDGET, cost_budgets.c.scope == v["scope"], cost_budgets.c.name == v["name"]
    ),
    Resource.SECRET: lambda v: _some(
        secrets,
        ("version", "set_at", "source"),
        secrets.c.project == v["project"],
        secrets.c.name == v["secret"],
    ),
    Resource.POLICY: lambda v: _some(facts, ("value",), facts.c.name == "scheduler_policy"),
}
