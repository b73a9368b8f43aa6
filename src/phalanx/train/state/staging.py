"""Copies of the state that a save in the background writes from, while training goes on.

The memory is kept from save to save: touching new pages costs several times as much as the copy.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from phalanx.checkpoint.tensorfile import TensorBytes, TensorRegion
from phalanx.train.state.sharding import TensorPart, empty
from phalanx.train.state.tree import blob_of

_ALIGN = 64
_WARMED_BYTES = 32 << 20  # at a time: others want to run in between


class NoStaging:
    """No copy: for saves that training waits for."""

    def take(self, pieces: Sequence[TensorPart]) -> list[TensorBytes]:
        """The bytes where they are."""
        return [blob_of(piece.tensor, piece.part) for piece in pieces]


class Staging:
    """One room for all pieces of this rank, laid out anew only when they change shape."""

    def __init__(self) -> None:
        self._layout: list[tuple[torch.dtype, tuple[int, ...], TensorRegion]] = []
        self._room = torch.empty(0, dtype=torch.uint8)
        self._copies: list[torch.Tensor] = []
        self._blobs: list[TensorBytes] = []

    def warm(self, pieces: Sequence[TensorPart]) -> None:
        """Have the memory for copies of `pieces`, so that the first save finds it; copies nothing.

        Meant for a thread: new memory costs many times what copying into it does.
        """
        self._lay_out(pieces)
        room = self._room.numpy()
        for at in range(0, room.size, _WARMED_BYTES):
            room[at : at + _WARMED_BYTES : mmap.PAGESIZE] = 0

    def take(self, pieces: Sequence[TensorPart]) -> list[TensorBytes]:
        """Copy; the bytes stay as they are until the next call."""
        self._lay_out(pieces)
        for copy, piece in zip(self._copies, pieces, strict=True):
            copy.copy_(piece.tensor)
        return self._blobs

    def _lay_out(self, pieces: Sequence[TensorPart]) -> None:
        layout = [(piece.tensor.dtype, tuple(piece.tensor.shape), piece.part) for piece in pieces]
        if layout == self._layout:
            return
        self._layout = layout
        sizes = [piece.tensor.numel() * piece.tensor.element_size() for piece in pieces]
        room = sum(size + -size % _ALIGN for size in sizes)
        self._copies, self._blobs = [], []
        if room > self._room.numel():
            self._room = torch.empty(0, dtype=torch.uint8)  # the old one goes first
            self._room = empty((room,), torch.uint8)
        at = 0
        for piece, size in zip(pieces, sizes, strict=True):
            flat = self._room[at : at + size].view(piece.tensor.dtype)
            self._copies.append(flat.reshape(tuple(piece.tensor.shape)))
            self._blobs.append(blob_of(self._copies[-1], piece.part))
            at += size + -size % _ALIGN
