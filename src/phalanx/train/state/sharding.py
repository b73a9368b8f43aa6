"""Division of a checkpoint's tensors over the ranks that write them, and reading of any part.

Every tensor of the state has a number; a part of it is a region: a start and a shape. Replicated
tensors are split by rows, so that ranks write about equally much; a rank writes the shards that it
holds; rank 0 writes everything else. A reader looks regions up by tensor number, whichever rank
wrote them, so a state is restored bit for bit at any world size and under any strategy.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from phalanx.checkpoint.digest import canonical, digest_of
from phalanx.checkpoint.tensorfile import ByteSource, TensorEntry, TensorRegion
from phalanx.checkpoint.verified_reads import VerifiedFile
from phalanx.errors import CheckpointCorrupt, NotSupported
from phalanx.train.state.regions import StoredPart, index_in, stored_overlaps
from phalanx.train.state.tree import dtype_name, dtype_of

CUT_FROM_BYTES = 64 << 10
_HUGE_FROM_BYTES = 4 << 20
_HELD_BYTES = 64 << 20  # most bytes of temporary buffers before the pending reads are run


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A part of a live tensor that this rank writes."""

    tensor: torch.Tensor
    part: TensorRegion


def region_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (shape, start) of the region of a tensor that this rank holds."""
    if not isinstance(tensor, DTensor):
        return tuple(tensor.shape), (0,) * tensor.dim()
    shape, start = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(shape), tuple(start)


def replicated(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> frozenset[int]:
    """Return the addresses of tensors equal on all ranks: reduced parameters and their state.

    Buffers are not included: between two forward passes they differ between ranks.
    """
    found = {one for model in models for one in model.parameters() if one.requires_grad}
    tensors: list[torch.Tensor] = [one for one in found if not isinstance(one, DTensor)]
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if parameter in found and not isinstance(parameter, DTensor):
                tensors += [one for one in state.values() if isinstance(one, torch.Tensor)]
    return frozenset(one.data_ptr() for one in tensors if one.numel())


def pieces_of(
    leaves: Sequence[torch.Tensor], common: frozenset[int], place: tuple[int, int]
) -> list[TensorPart]:
    """Return the parts that the rank at `place` (rank, number of ranks) writes.

    `common` is the result of `replicated`. The ranks are those that hold the same layers; a meta
    tensor is held by other ranks. Raises NotSupported for partial sums.
    """
    rank, world = place
    cut = [_cut(leaf, common) for leaf in leaves]
    total = sum(_size(leaf) for leaf, one in zip(leaves, cut, strict=True) if one)
    window = (total * rank // world, total * (rank + 1) // world)
    pieces: list[TensorPart] = []
    begin = 0
    for number, leaf in enumerate(leaves):
        shape = tuple(leaf.shape)
        if leaf.is_meta:
            continue
        if isinstance(leaf, DTensor):
            pieces += _held(number, leaf)
        elif cut[number]:
            row = _size(leaf) // shape[0]
            lo, hi = (min(max(0, -((begin - at) // row)), shape[0]) for at in window)
            if lo < hi:
                start = (lo, *(0 for _ in shape[1:]))
                pieces.append(TensorPart(leaf[lo:hi], TensorRegion(number, shape, start)))
            begin += _size(leaf)
        elif rank == 0:
            pieces.append(TensorPart(leaf, TensorRegion(number, shape, (0,) * len(shape))))
    return pieces


def _cut(leaf: torch.Tensor, common: frozenset[int]) -> bool:
    if isinstance(leaf, DTensor) or leaf.is_meta or _size(leaf) < CUT_FROM_BYTES:
        return False
    return leaf.dim() > 0 and leaf.data_ptr() in common and leaf.is_contiguous()


def _held(number: int, leaf: DTensor) -> list[TensorPart]:
    if not _first_copy(leaf):
        return []
    where: Sequence[int] = leaf.device_mesh.get_coordinate() or []
    for at, placement in zip(where, leaf.placements, strict=True):
        if placement.is_partial():
            raise NotSupported("a tensor of unreduced sums cannot be saved")
        if placement.is_replicate() and at != 0:
            return []
    local = leaf.to_local()
    shape, start = region_of(leaf)
    if not local.numel():
        return []
    return [TensorPart(local.reshape(shape), TensorRegion(number, tuple(leaf.shape), start))]


def _first_copy(leaf: DTensor) -> bool:
    """Return whether no lower rank has the same shard: a tensor may use a part of the mesh only."""
    mesh = leaf.device_mesh
    root = mesh._get_root_mesh()
    # Ranks of other pipeline stages hold other tensors, not copies of this one.
    mine = {*(mesh.mesh_dim_names or ()), "pp"}
    where = zip(root.get_coordinate() or (), root.mesh_dim_names or (), strict=False)
    return all(at == 0 for at, name in where if name not in mine)


def _size(leaf: torch.Tensor) -> int:
    return leaf.numel() * leaf.element_size()


def signature(leaves: Sequence[torch.Tensor], common: frozenset[int]) -> str:
    """Return a digest, equal on ranks of the same layers exactly when their parts fit together."""
    rows = [
        [number, list(leaf.shape), dtype_name(leaf.dtype), isinstance(leaf, DTensor)]
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, DTensor) or _cut(leaf, common)
    ]
    return digest_of(canonical({"rows": rows}))


def outline(leaves: Sequence[torch.Tensor]) -> str:
    """Return a digest, equal on ranks of different stages exactly when their parts fit together."""
    rows = [[list(leaf.shape), dtype_name(leaf.dtype)] for leaf in leaves]
    return digest_of(canonical({"rows": rows}))


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor; large ones use huge pages, which speed up first access."""
    num = math.prod(shape)
    size = num * dtype.itemsize
    if size < _HUGE_FROM_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=dtype, count=num).reshape(tuple(shape))


class BatchedReads:
    """A batch of reads that `run` executes together, so that a file's chunks are read only once."""

    def __init__(self) -> None:
        self._wanted: dict[int, tuple[ByteSource, list[tuple[int, memoryview]]]] = {}
        self._after: list[Callable[[], object]] = []
        self._held_bytes = 0

    def want(self, source: ByteSource, at: int, into: memoryview) -> None:
        """Queue a read of the bytes from `at` of `source` into `into`."""
        if into.nbytes:
            self._wanted.setdefault(id(source), (source, []))[1].append((at, into))

    def then(self, action: Callable[[], object], held: torch.Tensor) -> None:
        """Queue an action for after `held` is filled; runs the batch when buffers are too large."""
        self._after.append(action)
        self._held_bytes += _size(held)
        if self._held_bytes > _HELD_BYTES:
            self.run()

    def run(self) -> None:
        """Execute all queued reads. Raises CheckpointCorrupt; targets may then be partly filled."""
        for source, wanted in self._wanted.values():
            if isinstance(source, VerifiedFile):
                source.read_scattered(wanted)
            else:
                for at, into in wanted:
                    source.read_into(at, into)
        for action in self._after:
            action()
        self._wanted, self._after, self._held_bytes = {}, [], 0


@dataclass(slots=True)
class StoredTensor:
    """A tensor stored in one or several files and read on demand.

    Data read through a `BatchedReads` is valid after its `run`.
    """

    where: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[StoredPart] = field(default_factory=list)

    def read(self) -> torch.Tensor:
        """Return the whole tensor in new memory. Raises CheckpointCorrupt."""
        return self.read_region(self.shape, (0,) * len(self.shape))

    def read_region(self, shape: Sequence[int], start: Sequence[int]) -> torch.Tensor:
        """Return one region in new memory. Raises CheckpointCorrupt."""
        filling = BatchedReads()
        target = self._box(shape, start, filling)
        filling.run()
        return target

    def read_like(self, live: Any, filling: BatchedReads) -> torch.Tensor:
        """Return the tensor in new memory, sharded like `live` if that has the same shape.

        Raises CheckpointCorrupt.
        """
        if not isinstance(live, DTensor) or tuple(live.shape) != self.shape:
            return self._box(self.shape, (0,) * len(self.shape), filling)
        local = self._box(*region_of(live), filling)
        if live.device.type != "cpu":
            filling.run()
        return DTensor.from_local(
            local.to(live.device),
            live.device_mesh,
            live.placements,
            run_check=False,
            shape=live.shape,
            stride=live.stride(),
        )

    def read_onto(self, live: torch.Tensor, filling: BatchedReads) -> torch.Tensor:
        """Read the saved values into `live`, directly if it is contiguous on the CPU; returns it.

        `live` has the same shape and dtype; a meta tensor stays one. Raises CheckpointCorrupt.
        """
        if live.is_meta:
            return live
        local = (live.to_local() if isinstance(live, DTensor) else live).detach()
        shape, start = region_of(live)
        plain = local.device.type == "cpu" and local.is_contiguous() and not local.is_neg()
        if plain and tuple(local.shape) == shape:
            self._fill(local, shape, start, filling)
        else:
            box = self._box(shape, start, filling)
            filling.then(lambda: local.copy_(box.reshape(local.shape)), box)
        return live

    def _box(
        self, shape: Sequence[int], start: Sequence[int], filling: BatchedReads
    ) -> torch.Tensor:
        target = empty(shape, self.dtype)
        self._fill(target, shape, start, filling)
        return target

    def _fill(
        self,
        target: torch.Tensor,
        shape: Sequence[int],
        start: Sequence[int],
        filling: BatchedReads,
    ) -> None:
        for source, row, at, size in stored_overlaps(self.parts, start, shape, self.where):
            inside = index_in(start, at, size)
            self._fill_part(target[inside] if inside else target, source, row, at, filling)

    def _fill_part(
        self,
        target: torch.Tensor,
        source: ByteSource,
        row: TensorEntry,
        at: Sequence[int],
        filling: BatchedReads,
    ) -> None:
        """Read a part of a stored part: the region that begins `at`, in the shape of `target`."""
        if tuple(target.shape[1:]) == tuple(row.shape[1:]) and target.is_contiguous():
            stride = math.prod(row.shape[1:]) * self.dtype.itemsize
            first = (at[0] - row.part.start[0]) * stride if at else 0
            filling.want(source, row.at + first, _bytes_of(target))
            return
        saved = empty(row.shape, self.dtype)
        inside = index_in(row.part.start, at, target.shape)
        filling.want(source, row.at, _bytes_of(saved))
        filling.then(lambda: target.copy_(saved[inside]), saved)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


def stored_tensors(
    files: Iterable[tuple[ByteSource, Sequence[TensorEntry]]], where: str
) -> dict[int, StoredTensor]:
    """Return a checkpoint's tensors by number. Raises CheckpointCorrupt if parts do not match."""
    found: dict[int, StoredTensor] = {}
    for source, row in ((source, row) for source, rows in files for row in rows):
        try:
            dtype = dtype_of(row.dtype)
        except (AttributeError, ValueError, TypeError) as error:
            raise CheckpointCorrupt(f"{where}: {error}") from error
        part = row.part
        known = found.setdefault(part.id, StoredTensor(where, part.of, dtype))
        fits = len(part.start) == len(part.of) == len(row.shape)
        size = math.prod(row.shape) * dtype.itemsize
        if (known.shape, known.dtype) != (part.of, dtype) or not fits or size != row.size_bytes:
            raise CheckpointCorrupt(f"{where}: the parts of tensor {part.id} do not fit together")
        known.parts.append((source, row))
    return found
