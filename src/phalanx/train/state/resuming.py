"""Restoring of a checkpoint directly into live objects, with verification while it is read.

Verifying all bytes before reading them again would take twice as long. Each part is therefore
verified as it is read, and then all ranks vote. If a rank found corruption, some live objects are
partly overwritten: every part is restored again, from the previous checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized

from phalanx.errors import CheckpointCorrupt, CheckpointUnavailable, RestoreMismatch
from phalanx.train.state.checkpoint_reader import Restored
from phalanx.train.state.saving import Saver

Place = Callable[[Restored], None]


class Resumption:
    """The restore of one checkpoint at the start of a run. Every rank makes the same calls."""

    def __init__(self, source: Saver) -> None:
        self.restored: Restored | None = None
        self._source = source
        self._places: list[Place] = []
        self._problem = ""
        self._settled = False
        self._where = "the checkpoint"

    @property
    def where(self) -> str:
        """Return the checkpoint's name for messages."""
        if self.restored is not None:
            self._where = f"checkpoint {self.restored.manifest.name}"
        return self._where

    def ready(self) -> None:
        """Wait for the checkpoints that the job has committed. Collective. Raises CheckpointMissing."""
        self._source.ready()

    def open(self) -> None:
        """Open the checkpoint to resume from, if there is one. Collective. Raises CheckpointMissing."""
        self.restored = self._source.open()

    def put(self, place: Place) -> None:
        """Restore a part of the state into a live object, and again if `settle` falls back.

        Raises RestoreMismatch, or CheckpointCorrupt if it became corrupt after its acceptance.
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
        except (CheckpointCorrupt, CheckpointUnavailable) as error:
            self._problem = error.message

    def settle(self) -> bool:
        """Accept the checkpoint on all ranks, or fall back to an older one. Collective.

        Returns True when this call accepted a checkpoint. Raises CheckpointCorrupt when no older
        checkpoint is left: the next start then begins without one.
        """
        if self._settled:
            return False
        while self.restored is not None:
            if self._source.accept(self.restored, self._problem):
                break
            bad, why = self.restored, self._problem or "other ranks could not read the checkpoint"
            self._problem = ""
            self.restored = self._source.open()
            if self.restored is None:
                raise CheckpointCorrupt(
                    f"{bad.place}: {why}; there is no other checkpoint to resume from"
                )
            for place in self._places:
                if not self._problem:
                    self._try(place, self.restored)
        self._settled = True
        self._places.clear()
        return self.restored is not None

    def used_up(self, held: Mapping[str, Sized]) -> None:
        """Check before training that every object in the checkpoint was restored, and release it.

        `held` has the live objects by section. Raises RestoreMismatch.
        """
        where = self.where
        restored, self.restored = self.restored, None
        if restored is None:
            return
        for name, live in held.items():
            saved = len(restored.state[name])
            if saved != len(live):
                raise RestoreMismatch(
                    f"{where} holds {saved} {name}, but the script prepared {len(live)}"
                )
