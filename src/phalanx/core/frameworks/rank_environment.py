"""The variables of one rank: the user's, the contract's, and those of its framework."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.contract.environment import to_environment
from phalanx.core.contract.gang import GangContract, GenerationOrders, RankContract, RolePlace
from phalanx.core.contract.job import RoleContract
from phalanx.core.contract.trial import param_variables
from phalanx.core.frameworks.adapter import FrameworkAdapter
from phalanx.core.gang import networks
from phalanx.core.gang.devices import VARIABLES, hides_all
from phalanx.core.gang.placement import omp_num_threads
from phalanx.core.gang.roles import WORKER
from phalanx.core.tracing.identity import TRACEPARENT, TRACESTATE

# What a rank without a rendezvous receives besides the variables of Phalanx.
_PLACE = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", TRACEPARENT, TRACESTATE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetting:
    """What a node adds to the variables of its ranks."""

    #: the environment below that of the ranks: the user's, and the job's `env`
    env: Mapping[str, str]
    #: CPUs that the ranks share
    cpus: int
    #: the network interface towards rank 0, where the framework needs it
    interface: str | None = None
    #: the node's devices for its ranks, and their kind; an empty kind leaves the variables as they are
    devices: Sequence[str] = ()
    device_kind: str = ""
    #: the role that the node serves, in a gang with several roles
    place: RolePlace | None = None


def rank_environment(
    adapter: FrameworkAdapter,
    gang: GangContract,
    orders: GenerationOrders,
    rank: RankContract[Any],
    node: NodeSetting,
) -> dict[str, str]:
    """The whole environment of one rank.

    The user's variables lie below ours: a spec cannot break the rendezvous, but may set OMP_NUM_THREADS.
    """
    env = {**_network(gang.role), **node.env}
    threads = omp_num_threads(rank.local_world_size, node.cpus)
    if threads is not None:
        env.setdefault("OMP_NUM_THREADS", str(threads))
    own = to_environment(rank)
    if adapter.rendezvous:
        own |= _torch(gang, rank, node.place)
    else:
        own = {k: v for k, v in own.items() if k.startswith("PHALANX_") or k in _PLACE}
    env.update(own)
    if gang.trial is not None:
        env.update(param_variables(gang.trial.params))
    if node.place is not None:
        env.update(_role(node.place, rank, orders))
    for name, value in adapter.defaults(rank, gang.role, node.interface).items():
        env.setdefault(name, value)
    env.update(adapter.environment(rank, gang.role))
    return select_devices(env, adapter, gang.role, rank.local_rank, node)


def select_devices(
    env: dict[str, str],
    adapter: FrameworkAdapter,
    role: RoleContract,
    local_rank: int,
    node: NodeSetting,
) -> dict[str, str]:
    """The variables with the rank's devices; a job that asks for none keeps that.

    The user's own choice of devices is replaced: it cannot know which ones the job was given.
    """
    if not node.device_kind or hides_all(node.env, node.device_kind):
        return env
    seen, first = adapter.devices(node.devices, local_rank, role)
    *others, ours = VARIABLES[node.device_kind]
    kept = {name: value for name, value in env.items() if name not in others}
    kept[ours] = ",".join(seen)
    if seen:
        kept["PHALANX_LOCAL_DEVICE"] = str(first)
    return kept


def _network(role: RoleContract) -> dict[str, str]:
    """Variables for the interconnect that a spec names."""
    wish = (role.training or {}).get("network")
    if not isinstance(wish, Mapping):
        return {}
    return networks.variables(wish.get("preset"), wish.get("interface"), wish.get("debug"))


def _torch(gang: GangContract, rank: RankContract[Any], place: RolePlace | None) -> dict[str, str]:
    """What torchrun sets besides the variables of the contract."""
    nodes = str(gang.world.num_nodes)
    first = 0 if place is None else place.role_first_rank
    size = None if place is None else place.role_size
    return {
        "GROUP_RANK": str(rank.node_rank),
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_NAME": WORKER if place is None else place.name,
        "ROLE_RANK": str(rank.rank - first),
        "ROLE_WORLD_SIZE": str(rank.world_size if size is None else size),
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": str(rank.local_world_size),
        "PET_NODE_RANK": str(rank.node_rank),
        "PET_MASTER_ADDR": rank.master_address,
        "PET_MASTER_PORT": str(rank.master_port),
        "TORCHELASTIC_RUN_ID": f"{rank.job}-a{rank.attempt:03d}-g{rank.generation:03d}",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # torch would look for its own store in an agent that is not there; and a store that
        # outlives a generation deadlocks the next one.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _role(place: RolePlace, rank: RankContract[Any], orders: GenerationOrders) -> dict[str, str]:
    masters = {one.name: f"{one.address}:{one.port}" for one in orders.masters}
    return {
        "PHALANX_ROLE": place.name,
        "PHALANX_GANG_RANK": str(place.first_rank + rank.rank),
        "PHALANX_GANG_SIZE": str(place.gang_size),
        "PHALANX_ROLES": json.dumps(masters),
        "PHALANX_LEAD_CHECKPOINT_DIR": place.lead_dir,
    }
