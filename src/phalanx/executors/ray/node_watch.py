"""Watch the nodes of a Ray cluster in a background thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_LOG = logging.getLogger(__name__)

# How the names of all placement groups of Phalanx begin.
GROUP_PREFIX = "phalanx-gang"
LOOK_S = 0.5
# Ray's view of free resources lags behind; only what stays foreign for this long is.
FOREIGN_AFTER_S = 3.0
_PROBE_S = 0.3
_PROBES_A_LOOK = 64
_STATES_HELD = ("CREATED", "PENDING", "RESCHEDULING", "PREPARED")


@dataclass(slots=True)
class RayNodeState:
    """One node as last seen."""

    id: str  # Ray's node id, in hexadecimal
    address: str  # IP address
    port: int  # of the raylet
    alive: bool  # in Ray's view
    death: int  # the reason in Ray's `NodeDeathInfo`; 0: none
    resources: dict[str, float]  # everything the node has, by Ray's resource name
    labels: dict[str, str]  # Ray node labels
    #: None: not drained; 0 or less: drained without a deadline
    draining_deadline_ms: int | None = None
    silent: bool = False  # its raylet refuses connections, although Ray counts it as alive
    #: resources in use that no placement group of ours holds
    foreign: dict[str, float] = field(default_factory=dict)


def refuses(address: str, port: int, timeout_s: float = _PROBE_S) -> bool:
    """Whether the machine refuses connections to the port: then the process that listened is dead."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


class NodeWatch:
    """Reads the list of nodes regularly. `nodes` raises TimeoutError when the last list is too old."""

    def __init__(self, look: Callable[[], list[RayNodeState]], stale_s: float = 10.0) -> None:
        self._look = look
        self._stale_s = stale_s
        self._lock = threading.Lock()
        self._seen: dict[str, RayNodeState] = {}
        self._at = 0.0
        self._silent: set[str] = set()
        self._foreign_since: dict[str, float] = {}
        self._next_probe = 0

    def start(self) -> None:
        """Read the list once, then regularly in a thread."""
        self._once()
        threading.Thread(target=self._run, name="nodes", daemon=True).start()

    def nodes(self) -> list[RayNodeState]:
        """All nodes, the dead included."""
        with self._lock:
            if time.monotonic() - self._at > self._stale_s:
                raise TimeoutError(f"Ray has not listed the nodes for {self._stale_s:g} s")
            for one in self._seen.values():
                one.silent = one.id in self._silent
            return list(self._seen.values())

    def node(self, node_id: str) -> RayNodeState | None:
        """One node; None when Ray has forgotten it."""
        with self._lock:
            return self._seen.get(node_id)

    def raylet_is_gone(self, node_id: str) -> bool:
        """Whether the raylet is dead: Ray reports it, or its machine refuses connections to its port.

        The port is tried at every call; a raylet never comes back under its old id.
        """
        node = self.node(node_id)
        if node is None or not node.alive or node_id in self._silent:
            return True
        if refuses(node.address, node.port):
            self._silent.add(node_id)
            return True
        return False

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                self._once()
            except Exception as error:
                _LOG.warning("the list of Ray nodes could not be read: %s", error)

    def _once(self) -> None:
        seen = self._look()
        self._probe([one for one in seen if one.alive])
        now = time.monotonic()
        for one in seen:
            self._settle_foreign(one, now)
        with self._lock:
            self._seen = {one.id: one for one in seen}
            self._at = now

    def _probe(self, nodes: list[RayNodeState]) -> None:
        """Try the ports of raylets, a part of them at a time in a large cluster."""
        if len(nodes) > _PROBES_A_LOOK:
            begin = self._next_probe % len(nodes)
            self._next_probe = begin + _PROBES_A_LOOK
            nodes = (nodes + nodes)[begin : begin + _PROBES_A_LOOK]
        for one in nodes:
            if one.id not in self._silent and refuses(one.address, one.port):
                self._silent.add(one.id)

    def _settle_foreign(self, one: RayNodeState, now: float) -> None:
        if not one.foreign:
            self._foreign_since.pop(one.id, None)
        elif now - self._foreign_since.setdefault(one.id, now) < FOREIGN_AFTER_S:
            one.foreign = {}


def look_at_ray() -> list[RayNodeState]:
    """Read Ray's nodes: their state, drains, and resources used by other programs."""
    import ray
    from ray._private import state

    draining: dict[str, int] = state.state.get_draining_nodes()
    free: dict[str, dict[str, float]] = state.available_resources_per_node()
    ours = _held_by_us(ray.util.placement_group_table())
    found = []
    for one in ray.nodes():
        node_id = one["NodeID"]
        total = dict(one["Resources"])
        foreign: dict[str, float] = {}
        if one["Alive"] and node_id in free:
            held = ours.get(node_id, {})
            for name, amount in total.items():
                used = amount - free[node_id].get(name, 0.0) - held.get(name, 0.0)
                if used > 1e-3:
                    foreign[name] = used
        found.append(
            RayNodeState(
                id=node_id,
                address=one["NodeManagerAddress"],
                port=one["NodeManagerPort"],
                alive=one["Alive"],
                death=int(one.get("DeathReason") or 0),
                resources=total,
                labels=dict(one.get("Labels") or {}),
                draining_deadline_ms=draining.get(node_id),
                foreign=foreign,
            )
        )
    return found


def _held_by_us(table: dict[str, Any]) -> dict[str, dict[str, float]]:
    held: dict[str, dict[str, float]] = {}
    for group in table.values():
        ours = str(group["name"]).startswith(GROUP_PREFIX)
        if not ours or group["state"] not in _STATES_HELD:
            continue
        for index, node_id in group["bundles_to_node_id"].items():
            mine = held.setdefault(node_id, {})
            for name, amount in group["bundles"][index].items():
                mine[name] = mine.get(name, 0.0) + amount
    return held
