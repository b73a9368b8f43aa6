"""The frameworks that come with Phalanx; importing this module registers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.contract.gang import RankContract
from phalanx.core.contract.job import RankCommand, RoleContract
from phalanx.core.frameworks.adapter import FrameworkAdapter, register
from phalanx.core.gang.devices import own_devices


def _program(name: str, *options: str) -> list[str]:
    return ["python", "-m", f"phalanx.train.frameworks.{name}", *options]


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxFramework(FrameworkAdapter):
    """JAX: `jax.distributed.initialize()` without arguments finds the gang in Open MPI's variables.

    It reads no others for the number of processes and the place among them.
    """

    def devices(
        self, devices: Sequence[str], local_rank: int, role: RoleContract
    ) -> tuple[Sequence[str], int]:
        """All devices of the node, unless they are isolated: `JAX_LOCAL_DEVICE_IDS` names the rank's."""
        if role.isolate_devices:
            return own_devices(devices, local_rank, role.slots_per_rank), 0
        return devices, local_rank * role.slots_per_rank

    def defaults(
        self, rank: RankContract[Any], role: RoleContract, interface: str | None
    ) -> Mapping[str, str]:
        """The devices of the rank."""
        first = 0 if role.isolate_devices else rank.local_rank * role.slots_per_rank
        devices = range(first, first + role.slots_per_rank)
        return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, devices))}

    def environment(self, rank: RankContract[Any], role: RoleContract) -> Mapping[str, str]:
        """The coordinator, and the place of the rank."""
        address = f"{rank.master_address}:{rank.master_port}"
        return {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_COORDINATOR_PORT": str(rank.master_port),
            "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
            "OMPI_COMM_WORLD_SIZE": str(rank.world_size),
            "OMPI_COMM_WORLD_RANK": str(rank.rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank.local_rank),
            # By default, the coordinator listens on every interface.
            **({"JAX_COORDINATOR_BIND_ADDRESS": address} if rank.one_node else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodFramework(FrameworkAdapter):
    """Horovod, as `horovodrun --gloo` starts it; the rendezvous listens on the port of rank 0."""

    def defaults(
        self, rank: RankContract[Any], role: RoleContract, interface: str | None
    ) -> Mapping[str, str]:
        """A long timeout: the platform notices deaths, and a slow rank must not end the others."""
        patient = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
        return patient | ({} if interface is None else {"HOROVOD_GLOO_IFACE": interface})

    def environment(self, rank: RankContract[Any], role: RoleContract) -> Mapping[str, str]:
        """The store, and the place of the rank.

        The ranks with one local rank on all nodes that have it are a group of their own: `CROSS`.
        """
        cross = [rank.node_rank] if rank.world is None else rank.world.nodes_with(rank.local_rank)
        return {
            "HOROVOD_RANK": str(rank.rank),
            "HOROVOD_SIZE": str(rank.world_size),
            "HOROVOD_LOCAL_RANK": str(rank.local_rank),
            "HOROVOD_LOCAL_SIZE": str(rank.local_world_size),
            "HOROVOD_CROSS_RANK": str(cross.index(rank.node_rank)),
            "HOROVOD_CROSS_SIZE": str(len(cross)),
            "HOROVOD_HOSTNAME": f"node{rank.node_rank}",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": rank.master_address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rank.master_port),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowFramework(FrameworkAdapter):
    """TensorFlow: a program gathers the addresses of all workers for `TF_CONFIG`."""

    def devices(
        self, devices: Sequence[str], local_rank: int, role: RoleContract
    ) -> tuple[Sequence[str], int]:
        """All devices of the node: the program divides them."""
        return devices, local_rank * role.slots_per_rank

    def command(self, role: RoleContract, cpus: int) -> RankCommand:
        """The script under the program that sets `TF_CONFIG`."""
        slots = str(role.slots_per_rank)
        return role.command.under(_program("tensorflow", "--slots-per-rank", slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiFramework(FrameworkAdapter):
    """MPI: one process on each node starts this node's part of `mpirun`."""

    def command(self, role: RoleContract, cpus: int) -> RankCommand:
        """The script under the program that starts `mpirun`."""
        slots = str(role.slots_per_node // role.slots_per_rank)
        return role.command.under(_program("mpi", "--slots", slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class RayFramework(FrameworkAdapter):
    """Ray: one process on each node starts the raylet; the script runs on the first."""

    def command(self, role: RoleContract, cpus: int) -> RankCommand:
        """The script under the program that starts a Ray cluster of the gang."""
        return role.command.under(_program("ray", "--cpus", str(max(cpus, role.slots_per_node))))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaFramework(FrameworkAdapter):
    """Optuna: one process on each node; studies are kept with the job and go on after a restart."""

    def command(self, role: RoleContract, cpus: int) -> RankCommand:
        """The script under the program that keeps its studies."""
        return role.command.under(_program("optuna"))


for _adapter in (
    FrameworkAdapter(name="torch", forkable=True, in_roles=True),
    JaxFramework(
        name="jax",
        in_roles=True,
        training_keys=frozenset({"scale_lr", "warmup_steps", "network"}),
        stores_checkpoints=False,
    ),
    TensorFlowFramework(name="tensorflow", shares_port=True),
    HorovodFramework(
        name="horovod", forkable=True, in_roles=True, needs_store=True, shares_port=True
    ),
    MpiFramework(
        name="mpi", one_rank_per_node=True, accepts="all", shares_port=True, on_unequal_nodes=False
    ),
    RayFramework(
        name="ray", one_rank_per_node=True, lays_out_ranks=False, accepts="all", shares_port=True
    ),
    OptunaFramework(
        name="optuna",
        one_rank_per_node=True,
        rendezvous=False,
        lays_out_ranks=False,
        accepts="",
        on_unequal_nodes=False,
    ),
    FrameworkAdapter(name="none", in_roles=True, rendezvous=False, accepts=""),
):
    register(_adapter)
