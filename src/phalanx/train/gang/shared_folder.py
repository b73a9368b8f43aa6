"""Whether the ranks see one folder of checkpoints, found out before the first save."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from phalanx.errors import CheckpointUnavailable, PlatformError, UserError
from phalanx.kit.text import random_hex
from phalanx.train.gang.context import RankInfo

PATIENCE_S = 0.5
"""How long a rank looks for the file of rank 0: other nodes may see it late."""
_LOOK_EVERY_S = 0.02
_SHOWN = 8


class Collectives(Protocol):
    """The collectives that the agreement needs."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Return every rank's bytes on rank 0."""
        ...

    def broadcast(self, text: str) -> str:
        """Return rank 0's text."""
        ...


def strangers(
    folder: Path,
    info: RankInfo,
    channel: Collectives,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Return the ranks that do not see the folder of rank 0. Collective; the same on all ranks.

    Rank 0 writes a file of a new name, and the others look for it. A folder that rank 0 cannot write
    counts as shared: the first save reports it.
    """
    if info.local_world_size == info.world_size:
        return []
    token = folder / f".shared-{random_hex(8)}"
    told = ""
    if info.is_main:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            token.write_bytes(b"")
            told = token.name
    name = channel.broadcast(told)
    sees = not name or _appears(folder / name, pause, now)
    rows = channel.gather(b"1" if sees else b"0")
    apart = [str(rank) for rank, row in enumerate(rows) if row == b"0"]
    found = channel.broadcast(",".join(apart[:_SHOWN]))
    if info.is_main:
        with contextlib.suppress(OSError):
            token.unlink(missing_ok=True)
    return [int(one) for one in found.split(",") if one]


def _appears(path: Path, pause: Callable[[float], None], now: Callable[[], float]) -> bool:
    until = now() + PATIENCE_S
    while True:
        try:
            if path.exists():
                return True
        except OSError:
            return False
        if now() >= until:
            return False
        pause(_LOOK_EVERY_S)


def refusal(folder: Path, apart: Sequence[int], info: RankInfo) -> PlatformError:
    """Return the error for ranks that share neither a folder nor an object store.

    A job that has run before may wait for a file system that is mounted late: it is tried again.
    """
    ranks = ", ".join(str(rank) for rank in apart)
    text = (
        f"rank {ranks} does not see the folder of checkpoints of rank 0, {folder}"
        if len(apart) == 1
        else f"ranks {ranks} do not see the folder of checkpoints of rank 0, {folder}"
    )
    hint = (
        "set checkpoint.store to a prefix of an object store (s3://bucket/prefix), or put the folder"
        " on a file system that all nodes share"
    )
    before = info.generation > 0 or info.attempt > 1
    return CheckpointUnavailable(text, hint) if before else UserError(text, hint)
