"""Staging buffers: copies of the state that a background save writes while training continues.

The memory is reused by later saves, since the first access to new pages takes longer than the copy.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from phalanx.checkpoint.tensorfile import TensorBytes, TensorRegion
from phalanx.train.state.sharding import TensorPart, empty
from phalanx.train.state.tree import blob_of

_ALIGN = 64
_WARMED_BYTES = 32 << 20  # at a time, so that other threads run in between


class NoStaging:
    """Staging without a copy, for saves that training waits for."""

    def take(self, pieces: Sequence[TensorPart]) -> list[TensorBytes]:
        """Return the bytes of the live tensors."""
        return [blob_of(piece.tensor, piece.part) for piece in pieces]


class Staging:
    """One buffer for all parts of this rank, laid out again only when their shapes change."""

    def __init__(self) -> None:
        self._layout: list[tuple[torch.dtype, tuple[int, ...], TensorRegion]] = []
        self._room = torch.empty(0, dtype=torch.uint8)
        self._copies: list[torch.Tensor] = []
        self._blobs: list[TensorBytes] = []

    def warm(self, pieces: Sequence[TensorPart]) -> None:
        """Allocate the memory for copies of `pieces` before the first save; copies nothing.

        Meant for a thread: the first access to new memory takes longer than a copy into it.
        """
        self._lay_out(pieces)
        room = self._room.numpy()
        for at in range(0, room.size, _WARMED_BYTES):
            room[at : at + _WARMED_BYTES : mmap.PAGESIZE] = 0

    def take(self, pieces: Sequence[TensorPart]) -> list[TensorBytes]:
        """Copy the parts; the returned bytes stay unchanged until the next call."""
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
            self._room = torch.empty(0, dtype=torch.uint8)  # frees the old one first
            self._room = empty((room,), torch.uint8)
        at = 0
        for piece, size in zip(pieces, sizes, strict=True):
            flat = self._room[at : at + size].view(piece.tensor.dtype)
            self._copies.append(flat.reshape(tuple(piece.tensor.shape)))
            self._blobs.append(blob_of(self._copies[-1], piece.part))
            at += size + -size % _ALIGN
