"""What the ranks of a generation need to reach one another and the API, and what keeps strangers out."""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.core.contract.reporting import ReportingPlace, reporting_variables
from phalanx.launch import accept_guard
from phalanx.launch.authentication import derive
from phalanx.launch.command import PythonCommand
from phalanx.launch.ports import addresses_of, interface_towards
from phalanx.schemas.frameworks import framework
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import Orders
from phalanx.supervise.processes import ProcessTree

LOOPBACK = "127.0.0.1"


class GangNetwork:
    """The network of one generation, seen from one node.

    A gang of one node uses the loopback interface, so that no other machine can reach its ranks.
    """

    def __init__(self, assignment: Assignment, orders: Orders, folder: Path) -> None:
        """`folder` is that of the generation."""
        self._assignment = assignment
        self.secret_file = folder / "secret"
        self._framework = framework(assignment.gang.role.framework)
        # Other roles reach a role of one node by its address.
        alone = assignment.role is None and assignment.gang.world.num_nodes == 1
        self.orders = (
            orders.model_copy(update={"master_address": LOOPBACK, "peers": []}) if alone else orders
        )
        self.interface = interface_towards(self.orders.master_address)

    def write_secret(self) -> None:
        """Write the secret that the ranks of this generation share on all nodes. Raises OSError.

        All supervisors of an attempt have one token; the secret of a generation is derived from it, and
        that of another generation does not follow from it.
        """
        gang = self._assignment.gang
        words = ("gang", gang.job.label, str(gang.attempt), str(self.orders.generation))
        _write_private(self.secret_file, derive(self._assignment.token.encode(), *words))

    def start_rendezvous(self, processes: ProcessTree) -> None:
        """Start the key-value store at which ranks of some frameworks meet. Raises OSError."""
        if self._framework.needs_store and self._assignment.node_in_world == 0:
            # Only now: most jobs need no HTTP server.
            from phalanx.supervise.ranks import rendezvous

            address = self.orders.master_address, self.orders.master_port
            rendezvous.start(processes, address, self._assignment.node_dir, self.variables())

    def variables(self) -> dict[str, str]:
        """Variables that the job's `env` may replace: interfaces, and the accepted connections."""
        peers = [one for host in self.orders.peers for one in addresses_of(host)]
        ports = [self.orders.master_port]
        found = accept_guard.variables(self._framework.accepts, ports, peers)
        if self._framework.rendezvous and self.interface is not None:
            found |= {"GLOO_SOCKET_IFNAME": self.interface, "TP_SOCKET_IFNAME": self.interface}
        return found


class MetricsReporting:
    """What ranks need to send metrics to the API without the library: a token, and variables."""

    def __init__(self, assignment: Assignment, generation: int, folder: Path) -> None:
        """`folder` is that of the generation."""
        gang = assignment.gang
        place = ReportingPlace(
            gang.job.num,
            gang.attempt,
            generation,
            assignment.node_rank,
            assignment.incarnation,
        )
        self._job = gang.job.num
        self._file = folder / "metrics-token"
        self.token = place.token(assignment.token)

    def variables(self, server: tuple[str, str], rank: int) -> dict[str, str]:
        """The variables of a rank; `server` is the control plane's URL and authority. Raises OSError."""
        url, authority = server
        ca_file = self._file.with_name("metrics-ca.pem") if authority else None
        if not self._file.exists():
            _write_private(self._file, self.token)
            if ca_file is not None:
                _write_private(ca_file, authority)
        trusted = None if ca_file is None else str(ca_file)
        return reporting_variables(url, self._job, rank, self.token, str(self._file), trusted)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "w") as file:
        file.write(text)


def network_is_shared(
    assignment: Assignment, command: PythonCommand | None, guard: Path | None
) -> bool:
    """Whether ranks can listen on the rendezvous port while this supervisor holds it."""
    adapter = framework(assignment.gang.role.framework)
    # The guard makes every listener of the port share it; containers may start without the guard.
    guarded = guard is not None and command is not None and adapter.accepts != ""
    guarded = guarded and assignment.env.get("PHALANX_ACCEPT", adapter.accepts) in ("gang", "all")
    return adapter.shares_port or guarded
