"""The interface of framework adapters, and their registry.

How to add one: `docs/dev/frameworks.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.core.contract.gang import RankContract
from phalanx.core.contract.job import RankCommand, RoleContract
from phalanx.core.gang.devices import are_instances, own_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkAdapter:
    """How ranks of one framework are started. Subclasses override the methods that differ."""

    name: str  # value of `framework` in a spec
    #: ranks receive the variables of a torch rendezvous
    rendezvous: bool = True
    #: one rank on each node, which starts the framework's own processes
    one_rank_per_node: bool = False
    #: ranks gain by being forked from a process that has imported torch
    forkable: bool = False
    #: the supervisor of node rank 0 serves a key-value store at which the ranks meet
    needs_store: bool = False
    #: which listening sockets of ranks refuse strangers, see `launch/accept_guard.c`: `gang`, `all`, or
    #: empty for none
    accepts: str = "gang"
    #: rank 0 listens on the rendezvous port with SO_REUSEPORT, so that its supervisor can hold it
    shares_port: bool = False
    #: may be used in gangs with several roles
    in_roles: bool = False
    #: the nodes of one world may differ
    on_unequal_nodes: bool = True
    #: `training.strategy` lays out the ranks that the platform starts
    lays_out_ranks: bool = True
    #: keys of the spec's section `training` that have an effect; None: all
    training_keys: frozenset[str] | None = None
    #: checkpoints may be compressed, encrypted and copied to an object store
    stores_checkpoints: bool = True

    def ranks_per_node(self, slots_per_node: int, slots_per_rank: int) -> int:
        """Processes that the platform starts on each node."""
        if self.one_rank_per_node:
            return 1
        return max(1, slots_per_node // slots_per_rank)

    def devices(
        self, devices: Sequence[str], local_rank: int, role: RoleContract
    ) -> tuple[Sequence[str], int]:
        """The devices that a rank sees, of those of its node, and which of them is its first.

        With one slot for each rank all ranks see those of the node: scripts choose theirs by LOCAL_RANK,
        as under torchrun, unless the spec isolates devices. With several, and of MIG instances, each rank
        sees its own alone.
        """
        isolated = role.isolate_devices or role.slots_per_rank > 1 or are_instances(devices)
        shared = self.rendezvous and not isolated
        if self.one_rank_per_node or shared:
            return devices, 0 if self.one_rank_per_node else local_rank
        return own_devices(devices, local_rank, role.slots_per_rank), 0

    def command(self, role: RoleContract, cpus: int) -> RankCommand:
        """What each rank runs: the role's command, or a program that prepares the rank for it.

        `cpus` are the CPUs of the node for its ranks.
        """
        return role.command

    def defaults(
        self, rank: RankContract[Any], role: RoleContract, interface: str | None
    ) -> Mapping[str, str]:
        """Variables that the user's `env` may set otherwise."""
        return {}

    def environment(self, rank: RankContract[Any], role: RoleContract) -> Mapping[str, str]:
        """Variables of the framework that the user cannot change."""
        return {}


REGISTRY: dict[str, FrameworkAdapter] = {}
"""Every framework by name; `register` adds to it."""


def register(adapter: FrameworkAdapter) -> None:
    """Add a framework. Raises ValueError where another one has its name."""
    if REGISTRY.setdefault(adapter.name, adapter) is not adapter:
        raise ValueError(f"a framework {adapter.name} is registered already")
