"""Resuming: what a checkpoint holds goes straight into live objects, and is believed only afterwards.

To check every byte first and read it again would take twice as long. So the parts are read where they
are needed, checked on the way, and then all ranks vote. When one of them met a bad byte, some live
objects are half overwritten: everything is put in place once more, from the checkpoint before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Protocol

from phalanx.errors import CheckpointCorrupt, RestoreMismatch
from phalanx.train.state.checkpoint_reader import Restored

Place = Callable[[Restored], None]


class CheckpointSource(Protocol):
    """Where checkpoints come from: the part of a `Saver` that is needed here."""

    def open(self) -> Restored | None:
        """The next one to try, the same on all ranks."""
        ...

    def accept(self, restored: Restored, problem: str) -> bool:
        """Whether all ranks have read theirs without a problem; the same answer on all."""
        ...


class Resumption:
    """One start's way back into a checkpoint. Every rank makes the same calls."""

    def __init__(self, source: CheckpointSource) -> None:
        self.restored: Restored | None = None
        self._source = source
        self._places: list[Place] = []
        self._problem = ""
        self._settled = False
        self._where = "the checkpoint"

    @property
    def where(self) -> str:
        """The checkpoint, for messages."""
        if self.restored is not None:
            self._where = f"checkpoint {self.restored.manifest.name}"
        return self._where

    def open(self) -> None:
        """Find a checkpoint. Collective."""
        self.restored = self._source.open()

    def put(self, place: Place) -> None:
        """Put a part of the state into something live, now, and again where it comes to that.

        Raises RestoreMismatch, and CheckpointCorrupt when the checkpoint rotted after it was accepted.
        """
        if self._settled:
            if self.restored is not None:
                place(self.restored)
            return
        self._places.append(place)
        if self.restored is not None and not self._problem:
            self._try(place, self.restored)

    def _try(self, place: Place, restored: Restored) -> None:
        try:
            place(restored)
        except CheckpointCorrupt as error:
            self._problem = error.message

    def settle(self) -> bool:
        """All ranks have what they need, or all of them go on to an older checkpoint. Collective.

        True when this call settled it, and there is something to resume from. Raises
        CheckpointCorrupt when nothing is left to go on to: the next start begins anew.
        """
        if self._settled:
            return False
        while self.restored is not None:
            if self._source.accept(self.restored, self._problem):
                break
            bad, why = self.restored, self._problem or "other ranks could not read it"
            self._problem = ""
            self.restored = self._source.open()
            if self.restored is None:
                raise CheckpointCorrupt(
                    f"{bad.path}: {why}; there is no other checkpoint to go back to"
                )
            for place in self._places:
                if not self._problem:
                    self._try(place, self.restored)
        self._settled = True
        self._places.clear()
        return self.restored is not None

    def used_up(self, held: Mapping[str, Sized]) -> None:
        """Training begins, with what is `held` by section: nothing of the checkpoint may be left over.

        Raises RestoreMismatch.
        """
        where = self.where
        restored, self.restored = self.restored, None
        if restored is None:
            return
        for name, live in held.items():
            saved = len(restored.state[name])
            if saved != len(live):
                raise RestoreMismatch(
                    f"{where} holds {saved} {name}, the script prepared {len(live)}"
                )
