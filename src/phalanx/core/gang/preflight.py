"""Preflight check of a gang: whether the facts that its ranks report are consistent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The facts that one rank reports for the preflight check."""

    rank: int  # rank in its role
    world_size: int  # ranks of the role
    local_rank: int  # rank on its node
    local_world_size: int  # ranks on its node
    node_rank: int  # rank of its node
    host: str  # host name
    pid: int  # process id
    versions: Mapping[str, str] = field(default_factory=dict)  # of software that must be the same
    devices: int = 0  # number of GPUs that it sees
    wants: int | None = None  # number of the GPU that it uses; None: its local rank
    device: str = ""  # identity of the GPU that it uses
    address: str = ""  # of its node
    port: int = 0  # listening there; 0: another rank of the node listens

    @property
    def index(self) -> int:
        """The number of the GPU that it uses."""
        return self.local_rank if self.wants is None else self.wants

    @property
    def place(self) -> str:
        """The rank with its host."""
        return f"rank {self.rank} ({self.host})"


def problems(facts: Sequence[RankFacts]) -> list[str]:
    """The problems of a gang, the most specific first; empty if there are none."""
    found: list[str] = []
    for check in (_world, _nodes, _versions, _devices, _shared_devices):
        found += check(facts)
    return found


def summary(found: Sequence[str]) -> str:
    """The first problem, and the number of others, in one line."""
    more = len(found) - 1
    return found[0] + (f" (and {more} more)" if more > 0 else "")


def _odd(facts: Sequence[RankFacts], what: Callable[[RankFacts], str], name: str) -> list[str]:
    """Describe the ranks that differ from the majority in one property."""
    values = Counter(map(what, facts))
    if len(values) < 2:
        return []
    # As many on both sides: the side of rank 0 counts as usual.
    usual = max(values, key=lambda one: (values[one], one == what(facts[0])))
    odd = [one for one in facts if what(one) != usual]
    by_value: dict[str, list[RankFacts]] = {}
    for one in odd:
        by_value.setdefault(what(one), []).append(one)
    return [
        f"{_places(ones)} {'has' if len(ones) == 1 else 'have'} {name} {value}, the others {usual}"
        for value, ones in by_value.items()
    ]


def _places(ones: Sequence[RankFacts]) -> str:
    if len(ones) == 1:
        return ones[0].place
    ranks = ", ".join(str(one.rank) for one in ones[:8]) + (", …" if len(ones) > 8 else "")
    hosts = sorted({one.host for one in ones})
    return f"ranks {ranks} ({', '.join(hosts[:4])}{', …' if len(hosts) > 4 else ''})"


def _world(facts: Sequence[RankFacts]) -> list[str]:
    return _odd(facts, lambda one: str(one.world_size), "WORLD_SIZE")


def _nodes(facts: Sequence[RankFacts]) -> list[str]:
    nodes: dict[int, list[RankFacts]] = {}
    for one in facts:
        nodes.setdefault(one.node_rank, []).append(one)
    found = []
    for node, ranks in sorted(nodes.items()):
        hosts = sorted({one.host for one in ranks})
        if len(hosts) > 1:
            found.append(f"node rank {node} is used by several hosts: {', '.join(hosts)}")
            continue
        locals_ = sorted(one.local_rank for one in ranks)
        if locals_ != list(range(ranks[0].local_world_size)):
            found.append(
                f"node rank {node} ({hosts[0]}) has local ranks {', '.join(map(str, locals_))}, not"
                f" 0 to {ranks[0].local_world_size - 1}: the host list or LOCAL_RANK is wrong"
            )
    return found


def _versions(facts: Sequence[RankFacts]) -> list[str]:
    names = sorted({name for one in facts for name in one.versions})
    found: list[str] = []
    for name in names:
        found += _odd(facts, lambda one, name=name: one.versions.get(name, "none"), name)  # type: ignore[misc]
    return found


def _devices(facts: Sequence[RankFacts]) -> list[str]:
    if not any(one.devices for one in facts):
        return []
    return [
        f"{one.place} sees {one.devices} GPUs, and needs more than {one.index}:"
        " check CUDA_VISIBLE_DEVICES, the driver and slots_per_node"
        for one in facts
        if one.devices <= one.index and one.devices != 1
    ]


def _shared_devices(facts: Sequence[RankFacts]) -> list[str]:
    users: dict[tuple[str, str], list[RankFacts]] = {}
    for one in facts:
        if one.device:
            users.setdefault((one.host, one.device), []).append(one)
    return [
        f"{_places(ones)} use the same GPU {device}: check CUDA_VISIBLE_DEVICES"
        for (_, device), ones in users.items()
        if len(ones) > 1
    ]
