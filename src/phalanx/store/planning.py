"""Planner state that must survive a crash: reservations, usage, the chosen policy, scaling of pools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, select

from phalanx.core.codec import decode, encode
from phalanx.core.gang.placement import Placement
from phalanx.core.scaling.model import PoolScaling, ScalingBounds
from phalanx.core.scheduling.model.planner_state import Reservation, Usage
from phalanx.store.database import Tx, columns_of, read
from phalanx.store.tables import facts, project_usage, reservations
from phalanx.store.tenancy import audit

PREEMPTION = "preemption"
MOVE = "move"
_POLICY = "scheduler_policy"
_RESERVATIONS = select(reservations).order_by(reservations.c.job)
_USAGE = select(project_usage).order_by(project_usage.c.project)
_DELETE_USAGE = project_usage.delete().where(
    project_usage.c.project.in_(bindparam("_projects", expanding=True))
)
_INSERT_USAGE = project_usage.insert()
_SCALING = "scaling"
_STORED_SCALING = select(facts.c.value).where(facts.c.name == _SCALING)
_BOUNDS = "scaling_bounds"
_STORED_BOUNDS = select(facts.c.value).where(facts.c.name == _BOUNDS)
_STORED_POLICY = select(facts.c.value).where(facts.c.name == _POLICY)


@dataclass(frozen=True, slots=True)
class StoredReservation:
    """A stored reservation and its kind.

    `preemption`: other jobs leave these nodes for the owner. `move`: the owner itself leaves and comes
    back at `placement`, at another place or in another size.
    """

    reservation: Reservation
    kind: str
    placement: Placement | None
    created_at: int


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """The planning policy that was set while the control plane ran, and when and by what."""

    policy: str
    set_at: int  # µs UTC
    set_by: str


def reservations_now(tx: Tx) -> dict[int, StoredReservation]:
    """Return every reservation by its owner."""
    found = {}
    for row in tx.conn.execute(_RESERVATIONS).mappings():
        placement = None if row["placement"] is None else decode(Placement, row["placement"])
        reservation = decode(Reservation, row["body"])
        found[row["job"]] = StoredReservation(
            reservation, row["kind"], placement, row["created_at"]
        )
    return found


def put_reservation(tx: Tx, one: StoredReservation) -> None:
    """Store a reservation; it replaces an earlier one of the same owner."""
    remove_reservations(tx, [one.reservation.job])
    placement = None if one.placement is None else encode(one.placement)
    row = {"job": one.reservation.job, "kind": one.kind, "body": encode(one.reservation)}
    tx.conn.execute(
        reservations.insert(), {**row, "placement": placement, "created_at": one.created_at}
    )


def remove_reservations(tx: Tx, owners: Iterable[int]) -> None:
    """Delete the reservations of these jobs."""
    gone = list(owners)
    if gone:
        tx.conn.execute(reservations.delete().where(reservations.c.job.in_(gone)))


def usage_now(tx: Tx) -> dict[str, Usage]:
    """Read the past usage of every project that ever held slots."""
    return {one.project: one for one in read(tx, Usage, _USAGE)}


def put_usage(tx: Tx, rows: Mapping[str, Usage]) -> None:
    """Write these projects' usage."""
    if not rows:
        return
    tx.conn.execute(_DELETE_USAGE, {"_projects": list(rows)})
    tx.conn.execute(_INSERT_USAGE, [columns_of(one) for one in rows.values()])


def stored_policy(tx: Tx) -> StoredPolicy | None:
    """Read the policy that was set; None: that of the start is in effect."""
    value = tx.conn.execute(_STORED_POLICY).scalar_one_or_none()
    return None if value is None else decode(StoredPolicy, json.loads(value))


def put_policy(tx: Tx, one: StoredPolicy) -> None:
    """Set the policy; it replaces an earlier one."""
    audit.describe(tx, "policy", _name_of(stored_policy(tx)), one.policy)
    tx.conn.execute(facts.delete().where(facts.c.name == _POLICY))
    tx.conn.execute(facts.insert(), {"name": _POLICY, "value": json.dumps(encode(one))})


def remove_policy(tx: Tx) -> None:
    """Forget the policy that was set."""
    audit.describe(tx, "policy", _name_of(stored_policy(tx)), None)
    tx.conn.execute(facts.delete().where(facts.c.name == _POLICY))


def scaling_states(tx: Tx) -> dict[str, PoolScaling]:
    """Read the scaling state of every pool that its cluster's autoscaler grows."""
    value = tx.conn.execute(_STORED_SCALING).scalar_one_or_none()
    if value is None:
        return {}
    return {name: decode(PoolScaling, one) for name, one in json.loads(value).items()}


def put_scaling_states(tx: Tx, found: Mapping[str, PoolScaling]) -> None:
    """Replace the scaling state of all pools. Each is bounded: it keeps its newest decisions."""
    text = json.dumps({name: encode(one) for name, one in sorted(found.items())})
    tx.conn.execute(facts.delete().where(facts.c.name == _SCALING))
    tx.conn.execute(facts.insert(), {"name": _SCALING, "value": text})


def scaling_bounds(tx: Tx) -> dict[str, ScalingBounds]:
    """Read the bounds of pools that were set beside their pool files."""
    # All pools share the row: a writer must see what another one has written.
    query = _STORED_BOUNDS if tx.read_only else _STORED_BOUNDS.with_for_update()
    value = tx.conn.execute(query).scalar_one_or_none()
    if value is None:
        return {}
    return {name: decode(ScalingBounds, one) for name, one in json.loads(value).items()}


def put_scaling_bounds(tx: Tx, pool: str, bounds: ScalingBounds | None) -> None:
    """Set the bounds of one pool; None: those of its pool file count again."""
    found = scaling_bounds(tx)
    before = found.pop(pool, None)
    if before == bounds:
        return
    audit.describe(tx, f"bounds of pool {pool}", _audited(before), _audited(bounds))
    after = found if bounds is None else {**found, pool: bounds}
    text = json.dumps({name: encode(one) for name, one in sorted(after.items())})
    tx.conn.execute(facts.delete().where(facts.c.name == _BOUNDS))
    tx.conn.execute(facts.insert(), {"name": _BOUNDS, "value": text})


def _audited(one: ScalingBounds | None) -> dict[str, object] | None:
    if one is None:
        return None
    return {"min": one.min_nodes, "max": one.max_nodes, "off": one.is_off}


def _name_of(one: StoredPolicy | None) -> str | None:
    return None if one is None else one.policy
