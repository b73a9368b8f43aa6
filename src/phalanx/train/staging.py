"""Copies of the state that a save in the background writes from, while training goes on.

The memory is kept from save to save: touching new pages costs several times as much as the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from phalanx.checkpoint.tensorfile import Blob, Part
from phalanx.train.sharding import Piece, empty
from phalanx.train.tree import blob_of

_ALIGN = 64


class Direct:
    """No copy: for saves that training waits for."""

    def take(self, pieces: Sequence[Piece]) -> list[Blob]:
        """The bytes where they are."""
        return [blob_of(piece.tensor, piece.part) for piece in pieces]


class Staging:
    """One room for all pieces of this rank, laid out anew only when they change shape."""

    def __init__(self) -> None:
        self._layout: list[tuple[torch.dtype, tuple[int, ...], Part]] = []
        self._room = torch.empty(0, dtype=torch.uint8)
        self._copies: list[torch.Tensor] = []
        self._blobs: list[Blob] = []

    def take(self, pieces: Sequence[Piece]) -> list[Blob]:
        """Copy; the bytes stay as they are until the next call."""
        layout = [(piece.tensor.dtype, tuple(piece.tensor.shape), piece.part) for piece in pieces]
        if layout != self._layout:
            self._lay_out(pieces)
            self._layout = layout
        for copy, piece in zip(self._copies, pieces, strict=True):
            copy.copy_(piece.tensor)
        return self._blobs

    def _lay_out(self, pieces: Sequence[Piece]) -> None:
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
