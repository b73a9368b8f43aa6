"""Estimates of the memory and step time of each layout of the ranks, computed without torch.

Good enough to choose a layout: parameters, gradients and optimizer state are counted, activations
measured in one step of a `ModelProfile`, and times derived from a table of devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from phalanx.core.gang.meshes import Layout
from phalanx.core.training import pipelines
from phalanx.kit.text import nearest

GIB = 1 << 30
_DOUBLINGS = 10
USABLE = 0.9
"""The part of a device's memory available to training; allocators and kernels use the rest."""
UNKNOWN_ACTIVATIONS = 0.4
"""The part of a device's memory reserved for activations that have not been measured."""
EFFICIENCY = 0.4
"""The part of a device's peak arithmetic that training usually reaches."""
CONVOLVING = 0.2
"""The same for convolutions, which are bound more by memory bandwidth."""
LINK_EFFICIENCY = 0.7
NEARLY = 1.05
"""Layouts within this ratio of the fastest count as equal; the one with fewest shards is chosen."""
TOO_LITTLE_S = 0.001
"""Differences of the step time below this do not change the choice."""
WORTH_IT = 0.85
"""Largest ratio of step times at which a layout that needs changes to the script is chosen."""
_TP_TRAFFIC = 8 / 34  # of a transformer block's activations: four reductions of one of its 34 parts
_BACKWARD = 2 / 3  # of the computing, behind which gradients travel


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device: peaks of dense arithmetic in operations per second, links in bytes per second."""

    name: str
    memory_bytes: int
    half_flops: float
    full_flops: float
    link_bytes_s: float
    network_bytes_s: float

    def flops(self, precision: str) -> float:
        """Peak operations per second at the precision of matrix products."""
        return self.full_flops if precision == "fp32" else self.half_flops


# Vendors' data sheets, dense; half precision is bf16, fp16 where a device has no bf16.
DEVICES = {
    one.name: one
    for one in (
        Device("B200", 180 * 10**9, 2250e12, 80e12, 900e9, 50e9),
        Device("H200", 141 * 10**9, 989e12, 67e12, 450e9, 50e9),
        Device("H100", 80 * 10**9, 989e12, 67e12, 450e9, 50e9),
        Device("A100", 80 * 10**9, 312e12, 19.5e12, 300e9, 25e9),
        Device("A100-40GB", 40 * 10**9, 312e12, 19.5e12, 300e9, 25e9),
        Device("L40S", 48 * 10**9, 362e12, 91.6e12, 32e9, 12.5e9),
        Device("V100", 32 * 10**9, 125e12, 15.7e12, 150e9, 12.5e9),
        Device("A10G", 24 * 10**9, 70e12, 31.2e12, 32e9, 6.25e9),
        Device("L4", 24 * 10**9, 121e12, 30.3e12, 32e9, 6.25e9),
        Device("T4", 16 * 10**9, 65e12, 8.1e12, 16e9, 3.1e9),
        Device("cpu", 4 * GIB, 0.1e12, 0.1e12, 5e9, 1.25e9),
    )
}
_WORLD = re.compile(r"(?:(\d+)x)?(\d+)x([A-Za-z][\w-]*)")


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """`nodes` × `slots_per_node` devices of one kind."""

    nodes: int
    slots_per_node: int
    device: Device

    @property
    def num_ranks(self) -> int:
        """Number of ranks: one for each device."""
        return self.nodes * self.slots_per_node

    def __str__(self) -> str:
        nodes = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{nodes}{self.slots_per_node} x {self.device.name}"


def parse_devices(text: str) -> DeviceSet:
    """From `8xH100`, or nodes too: `4x8xA100`. Raises ValueError."""
    found = _WORLD.fullmatch(text.strip())
    if not found:
        raise ValueError(f"must be devices as in 8xH100, or nodes too as in 4x8xA100, not {text!r}")
    names = {name.lower(): name for name in DEVICES}
    name = names.get(found[3].lower())
    if name is None:
        near = nearest(found[3], list(DEVICES))
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"{found[3]} is not known; write one of {', '.join(DEVICES)}{hint}")
    nodes, slots = int(found[1] or 1), int(found[2])
    if nodes < 1 or slots < 1:
        raise ValueError(f"must be at least one device, not {text!r}")
    return DeviceSet(nodes, slots, DEVICES[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Memory and computation of one training step on a single rank without parallelism."""

    parameter_bytes: int  # all parameters
    trainable_bytes: int  # parameters with gradients
    optimizer_bytes: int  # state of the optimizers
    block_bytes: int  # parameters of the largest block that is gathered at once
    buffer_bytes: int = 0  # buffers of the model
    batch: int = 1  # samples of one batch of one rank
    activation_bytes: int | None = None  # of one batch; None: not measured
    flops: float | None = None  # operations of one batch; None: not measured
    convolved: float = 0.0  # part of `flops` in convolutions
    precision: str = "fp32"  # of matrix products
    cast_bytes: int = 0  # half-precision copies that autocast keeps for the backward pass
    tp_part: float = 0.0  # part of the parameters that tensor parallel ranks split
    layer_bytes: tuple[int, ...] = ()  # parameters by layer; empty: no pipeline is possible
    schedule: str = "1f1b"  # pipeline schedule
    micro_batches: int | None = None  # of a pipeline; None: twice the stages


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutEstimate:
    """The needs of one layout: bytes on the largest rank, seconds of a step; None: unknown."""

    layout: Layout  # the layout in question
    parameter_bytes: int  # parameters and buffers
    gradient_bytes: int  # gradients
    optimizer_bytes: int  # optimizer state
    gathered_bytes: int  # gathered shards, gradient buckets and autocast copies
    activation_bytes: int | None  # activations
    compute_s: float | None  # computation
    exposed_s: float  # communication that is not hidden
    bubble: float  # part of the computing time that a pipeline idles
    limit_bytes: int  # usable memory of the device

    @property
    def name(self) -> str:
        """The value of `strategy` for this layout."""
        layout = self.layout
        for name, size in (("ddp", layout.dp), ("fsdp", layout.fsdp)):
            if size == layout.world_size > 1:
                return name
        return str(layout)

    @property
    def total_bytes(self) -> int:
        """Total memory, activations included."""
        kept = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        return kept + self.gathered_bytes + (self.activation_bytes or 0)

    @property
    def fits(self) -> bool:
        """Whether the total is within `limit_bytes`."""
        return self.total_bytes <= self.limit_bytes

    @property
    def step_s(self) -> float | None:
        """Seconds of a whole step; None: unknown."""
        return (
            None if self.compute_s is None else self.compute_s / (1 - self.bubble) + self.exposed_s
        )


def layouts(world: DeviceSet, outline: ModelProfile) -> Iterator[Layout]:
    """Candidate layouts: tensor parallel ranks in a node, shards in a node or over all nodes."""
    num = world.num_ranks
    for tp in _sizes(world.slots_per_node, outline.tp_part > 0):
        for pp in _sizes(num // tp if num % tp == 0 else 1, bool(outline.layer_bytes)):
            left, rest = divmod(num, tp * pp)
            too_few = len(outline.layer_bytes) < pp * pipelines.chunks(outline.schedule)
            if rest or (pp > 1 and too_few):
                continue
            inside = max(1, world.slots_per_node // tp)
            for fsdp in {1, left, inside if left % inside == 0 else 1}:
                yield Layout(dp=left // fsdp, fsdp=fsdp, tp=tp, pp=pp)


def _sizes(most: int, wanted: bool) -> list[int]:
    return [one for one in range(1, most + 1) if most % one == 0] if wanted else [1]


def estimate(layout: Layout, world: DeviceSet, outline: ModelProfile) -> LayoutEstimate:
    """Estimate the memory and step time of a layout."""
    split = outline.tp_part / layout.tp + 1 - outline.tp_part
    kept = split * _heaviest_stage(layout, outline) / layout.fsdp
    sharded = layout.fsdp > 1 or (layout.num_places > 1 and layout.dp < layout.world_size)
    # DDP sums gradients in buckets beside them; shards are gathered two blocks at a time.
    beside = outline.trainable_bytes if layout.dp == layout.world_size > 1 else 0
    gathered = int(2 * outline.block_bytes * split) if sharded else 0
    # Autocast's copies are made of gathered parameters: shards do not divide them.
    beside += int(outline.cast_bytes * kept * layout.fsdp)
    activations = _activations(layout, world, outline, split)
    device = world.device
    limit = USABLE if activations is not None else USABLE - UNKNOWN_ACTIVATIONS
    compute = None
    if outline.flops is not None:
        inverse = outline.convolved / CONVOLVING + (1 - outline.convolved) / EFFICIENCY
        compute = outline.flops * inverse / device.flops(outline.precision)
    pieces = _pieces(layout, world, outline)
    bubble = pipelines.bubble(outline.schedule, layout.pp, pieces) if layout.pp > 1 else 0.0
    return LayoutEstimate(
        layout=layout,
        parameter_bytes=int(outline.parameter_bytes * kept) + outline.buffer_bytes,
        gradient_bytes=int(outline.trainable_bytes * kept),
        optimizer_bytes=int(outline.optimizer_bytes * kept),
        gathered_bytes=gathered + beside,
        activation_bytes=activations,
        compute_s=compute,
        exposed_s=_exposed_s(layout, world, outline, compute or 0.0),
        bubble=bubble,
        limit_bytes=int(device.memory_bytes * limit),
    )


def _heaviest_stage(layout: Layout, outline: ModelProfile) -> float:
    """The part of the parameters in the largest pipeline stage."""
    if layout.pp == 1:
        return 1.0
    num = layout.pp * pipelines.chunks(outline.schedule)
    begins = pipelines.cuts(outline.layer_bytes, num)
    ends = [*begins[1:], len(outline.layer_bytes)]
    weights = [sum(outline.layer_bytes[a:b]) for a, b in zip(begins, ends, strict=True)]
    ranks = [sum(weights[rank :: layout.pp]) for rank in range(layout.pp)]
    return max(ranks) / max(1, sum(outline.layer_bytes))


def _pieces(layout: Layout, world: DeviceSet, outline: ModelProfile) -> int:
    batch = outline.batch * world.num_ranks // layout.num_places
    return pipelines.num_micro_batches(max(1, batch), outline.micro_batches or 2 * layout.pp)


def _activations(
    layout: Layout, world: DeviceSet, outline: ModelProfile, split: float
) -> int | None:
    """Bytes of activations of one rank, for an unchanged global batch; None: unknown."""
    if outline.activation_bytes is None:
        return None
    whole = outline.activation_bytes * world.num_ranks / layout.num_places * split
    if layout.pp == 1:
        return int(whole)
    pieces = _pieces(layout, world, outline)
    # The first stage keeps a micro-batch for every stage behind it; GPipe keeps all.
    under_way = pieces if outline.schedule == "gpipe" else min(pieces, layout.pp)
    return int(whole / layout.pp * under_way / pieces)


def _exposed_s(layout: Layout, world: DeviceSet, outline: ModelProfile, compute_s: float) -> float:
    """Seconds of communication that do not overlap with computation."""
    share = (outline.tp_part / layout.tp + 1 - outline.tp_part) / layout.pp
    moved = outline.trainable_bytes * share

    def takes(num_bytes: float, size: int, inner: int) -> float:
        link = world.device.link_bytes_s
        if size * inner > world.slots_per_node:
            # All ranks of a node that talk to the next node share its adapters' sum.
            each = max(1, world.slots_per_node // inner)
            link = min(link, each * world.device.network_bytes_s)
        return num_bytes * (size - 1) / size / (link * LINK_EFFICIENCY)

    shards = takes(3 * moved, layout.fsdp, layout.tp)
    replicas = takes(2 * moved / layout.fsdp, layout.dp, layout.tp * layout.fsdp)
    hidden = compute_s * (1.0 if layout.fsdp > 1 else _BACKWARD)
    outer = max(0.1 * (shards + replicas), shards + replicas - hidden)
    activations = (outline.activation_bytes or 0) * world.num_ranks / layout.num_places
    return outer + takes(2 * _TP_TRAFFIC * activations / layout.pp, layout.tp, 1)


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """The chosen layout, the reason in words, and all candidates."""

    best: LayoutEstimate
    why: str
    all: tuple[LayoutEstimate, ...]


def recommend(world: DeviceSet, outline: ModelProfile) -> LayoutChoice:
    """The fastest layout that fits; layouts that need changes to the script must be much faster."""
    found = tuple(
        sorted((estimate(one, world, outline) for one in layouts(world, outline)), key=_rank)
    )
    plain = [one for one in found if one.layout.tp == one.layout.pp == 1]
    fitting = [one for one in found if one.fits]
    if not fitting:
        least = min(found, key=lambda one: one.total_bytes)
        text = (
            f"nothing fits into {_gib(least.limit_bytes)} of {world.device.name}: {least.name} needs"
            f" the least, {_gib(least.total_bytes)} a rank; {_enough(world, outline)}"
        )
        return LayoutChoice(least, text, found)
    best = min(fitting, key=_seconds)
    simple = [one for one in plain if one.fits]
    if simple:
        shortest = _seconds(min(simple, key=_seconds))
        limit = max(NEARLY * shortest, shortest + TOO_LITTLE_S)
        fastest = next(one for one in simple if _seconds(one) <= limit)
        worth_it = min(WORTH_IT * _seconds(fastest), _seconds(fastest) - TOO_LITTLE_S)
        much = outline.flops is not None and _seconds(best) < worth_it
        best = best if much else fastest
    return LayoutChoice(best, _reason(best, found, world), found)


def _enough(world: DeviceSet, outline: ModelProfile) -> str:
    """Describe the number of devices that would be enough, if any is."""
    less = "a smaller batch or activation_checkpointing"
    for doubled in range(1, _DOUBLINGS + 1):
        larger = replace(world, nodes=world.nodes << doubled)
        one = estimate(Layout(fsdp=larger.num_ranks), larger, outline)
        if one.fits:
            return f"fsdp over {larger} would fit with {_gib(one.total_bytes)}; or use {less}"
    return f"more devices do not help; use {less}"


def _rank(one: LayoutEstimate) -> tuple[int, int, int]:
    return one.layout.pp, one.layout.tp, one.layout.fsdp


def _seconds(one: LayoutEstimate) -> float:
    return one.exposed_s if one.step_s is None else one.step_s


def _reason(best: LayoutEstimate, found: Sequence[LayoutEstimate], world: DeviceSet) -> str:
    needs = f"{best.name} needs {_gib(best.total_bytes)} of {_gib(best.limit_bytes)} a rank"
    if best.activation_bytes is None:
        needs += " before activations"
    replicas = next((one for one in found if one.layout.dp == world.num_ranks), best)
    if best is replicas:
        return f"{needs}: a whole replica fits, and reducing gradients costs least"
    if not replicas.fits:
        return f"{needs}; whole replicas would need {_gib(replicas.total_bytes)}"
    return f"{needs}, and its communication costs least on {world}"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def with_memory(device: Device, memory_bytes: int) -> Device:
    """The same device with another size of memory."""
    return replace(device, memory_bytes=memory_bytes)
