"""Accelerators of a node: their names, the devices behind its slots, and the variables that select them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.gang.placement import Node

CUDA = "cuda"
ROCM = "rocm"
#: Part of a device's memory that programs other than Phalanx may use before it is not offered.
OUTSIDE_USE = 0.1
#: Variables that select devices, by kind; the last one is set, and the others are removed.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    CUDA: ("CUDA_VISIBLE_DEVICES",),
    ROCM: ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
}
_VENDORS = frozenset(
    ("nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "radeon", "graphics", "device")
)
_FORM = re.compile(r"\d+gb|sxm\d*|pcie|hbm\d\w*|nvl\d*|oam", re.I)
_MIG = "MIG-"
# A driver counts a little less memory than the label on the box.
_MEMORY_TOLERANCE = 0.9


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator, or one MIG instance of one, as its driver describes it now."""

    id: str  # identity that survives restarts: GPU-…, MIG-…, or an index where there is none
    kind: str  # the programming interface: cuda or rocm
    model: str  # short name, such as H100 or H100-1g.10gb
    memory_bytes: int  # memory in all
    free_bytes: int  # memory that no program uses
    link: str = ""  # link to the other devices of the node: nvlink, xgmi or pcie
    problem: str = ""  # why it cannot be used; empty: it can
    #: (process, bytes) of the programs that use it; bytes None: unknown
    users: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device behind a slot as it was last seen; `closed`: why the slot is not offered."""

    node: str
    slot: int
    device: Accelerator | None
    id: str
    closed: str = ""


def model_of(name: str) -> str:
    """Return the short name of a model: `NVIDIA A100-SXM4-80GB` is `A100`."""
    words = re.split(r"[\s/_-]+", name.strip())
    kept = [w for w in words if w.lower() not in _VENDORS and not _FORM.fullmatch(w)]
    short = re.sub(r"[^A-Za-z0-9._-]+", "", "-".join(kept)).strip("._-")
    return short[:100] or "accelerator"


def is_model(declared: str, found: str) -> bool:
    """Return whether a declared accelerator model names a found one; memory sizes are not compared."""
    wanted = "".join(_words(declared))
    words = _words(found)
    joins = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return not wanted or wanted in joins


def _words(name: str) -> list[str]:
    short = model_of(name).lower()
    return [w for w in re.split(r"[^a-z0-9]+", short) if w and not re.fullmatch(r"\d+g", w)]


def mismatch(slot_type: str, memory_bytes: int, devices: Sequence[Accelerator]) -> str:
    """Return how declared hardware differs from the devices found; empty: it does not."""
    for device in devices:
        if slot_type and not is_model(slot_type, device.model):
            return (
                f"is declared with {slot_type}, and its driver finds {device.model} ({device.id})"
            )
        if memory_bytes and device.memory_bytes < memory_bytes * _MEMORY_TOLERANCE:
            return (
                f"is declared with devices of {memory_bytes / 1e9:.0f} GB, and its driver finds "
                f"{device.memory_bytes / 1e9:.0f} GB ({device.id})"
            )
    return ""


def visible(devices: Sequence[Accelerator], env: Mapping[str, str]) -> tuple[Accelerator, ...]:
    """Return the devices that the variables of this process leave to it, in the order they name them.

    As the drivers do, a list ends at its first entry that names no device.
    """
    found: list[Accelerator] = []
    for kind in (CUDA, ROCM):
        ours = [device for device in devices if device.kind == kind]
        for name in reversed(VARIABLES[kind]):
            if name in env and ours:
                ours = _named(ours, env[name])
        found += ours
    return tuple(found)


def _named(devices: Sequence[Accelerator], text: str) -> list[Accelerator]:
    found: list[Accelerator] = []
    for entry in (part.strip() for part in text.split(",")):
        whole = [d for d in devices if not d.id.startswith(_MIG)]
        if entry.isdigit():
            one = whole[int(entry)] if int(entry) < len(whole) else None
        else:
            same = [d for d in devices if entry and d.id.startswith(entry)]
            one = same[0] if len(same) == 1 else None
        if one is None or one in found:
            break
        found.append(one)
    return found


def hides_all(env: Mapping[str, str], kind: str) -> bool:
    """Return whether these variables ask for no device at all, as a job of CPUs may do."""
    return any(env.get(name, "x").strip() in ("", "-1") for name in VARIABLES[kind])


def own_devices(devices: Sequence[str], local_rank: int, per_rank: int) -> tuple[str, ...]:
    """Return the devices of one rank of a node, `per_rank` for each."""
    first = local_rank * per_rank
    return tuple(devices[first : first + per_rank])


def are_instances(devices: Sequence[str]) -> bool:
    """Return whether these are MIG instances, of which a process can use one only."""
    return any(one.startswith(_MIG) for one in devices)


# -- slots -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceSlots:
    """The device behind each slot of the nodes of one machine.

    A device keeps its node and its number for as long as the machine runs: a device that is lost leaves
    its slot closed and moves no other one, so that two jobs never get the same device.
    """

    #: device ids by slot, by node name; the kind of each node's devices stands in `kinds`
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def with_found(self, first: str, devices: Sequence[Accelerator]) -> DeviceSlots:
        """Return the slots with new devices added: those of one model and size on one node.

        The node of the most frequent kind is named `first`, others get the model appended.
        """
        known = {one for ids in self.nodes.values() for one in ids}
        nodes, kinds = dict(self.nodes), dict(self.kinds)
        fresh = [device for device in devices if device.id not in known]
        by_kind: dict[str, list[Accelerator]] = {}
        for device in fresh:
            by_kind.setdefault(_kind(device), []).append(device)
        for kind, ones in sorted(by_kind.items(), key=lambda item: -len(item[1])):
            name = next((node for node, own in kinds.items() if own == kind), None)
            if name is None:
                name = first if first not in nodes else _free(nodes, first, ones[0].model)
            kinds[name] = kind
            nodes[name] = (*nodes.get(name, ()), *(device.id for device in ones))
        return DeviceSlots(nodes, kinds) if fresh else self


def _kind(device: Accelerator) -> str:
    return f"{device.kind}/{device.model}/{round(device.memory_bytes / 2**30)}"


def _free(nodes: Mapping[str, object], first: str, model: str) -> str:
    name, more = f"{first}-{model.lower()}", 2
    while name in nodes:
        name, more = f"{first}-{model.lower()}-{more}", more + 1
    return name


def with_devices(node: Node, states: Sequence[DeviceState]) -> Node:
    """Return a node with the devices behind its slots, and what they say about it."""
    seen = [state.device for state in states if state.device is not None]
    links = {device.link for device in seen}
    return replace(
        node,
        num_slots=len(states),
        devices=tuple(state.id for state in states),
        device_kind=seen[0].kind if seen else node.device_kind,
        closed_slots=tuple((state.slot, state.closed) for state in states if state.closed),
        slot_type=node.slot_type or (seen[0].model if seen else ""),
        device_memory_bytes=node.device_memory_bytes
        or min((device.memory_bytes for device in seen), default=0),
        interconnect=node.interconnect or (links.pop() if len(links) == 1 else ""),
    )


def shared_out(nodes: Sequence[Node], machine: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes that a pool file declares on one machine, with its devices behind their slots.

    Nodes get devices in their order, for all of their slots or for none. A node that declares a model or a
    size and cannot have as many fitting devices is closed, and says why; one that declares none has CPU
    slots. Where the machine has no devices, nothing is checked: the pool is emulated.
    """
    states = [state for one in machine for state in _states_of(one)]
    if not states:
        return tuple(nodes)
    found, begin = [], 0
    for node in nodes:
        own = states[begin : begin + node.num_slots]
        begin += node.num_slots
        seen = [state.device for state in own if state.device is not None]
        said = mismatch(node.slot_type, node.device_memory_bytes, seen)
        if len(own) < node.num_slots:
            own, said = (
                [],
                f"declares {node.num_slots} devices; {len(own)} of {len(states)} are left",
            )
        if said and (node.slot_type or node.device_memory_bytes):
            found.append(replace(node, closed=node.closed or f"it {said}"))
            continue
        numbered = [replace(state, node=node.id, slot=i) for i, state in enumerate(own)]
        # Without devices of its own a node's jobs must not see those of others.
        bare = replace(node, device_kind=machine[0].device_kind)
        found.append(with_devices(bare, numbered) if own else bare)
    return tuple(found)


def _states_of(node: Node) -> list[DeviceState]:
    """The devices behind a machine's slots as its node describes them."""
    closed = dict(node.closed_slots)
    return [
        DeviceState(
            node.id,
            slot,
            Accelerator(
                one,
                node.device_kind,
                node.slot_type,
                node.device_memory_bytes,
                0,
                node.interconnect,
            ),
            one,
            closed.get(slot, ""),
        )
        for slot, one in enumerate(node.devices)
    ]
