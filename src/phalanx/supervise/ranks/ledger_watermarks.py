"""How much of the ranks' ledgers was handed over: written down before it is sent.

A supervisor may be killed at any moment, and nobody else knows then which rows it had sent. The control
plane knows the number of the last report that it stored; with these watermarks that gives the
place in the ranks' files where the unreported part begins.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from phalanx.core.training.ledger import Consumed
from phalanx.launch.durable import write_file

NAME = "ledger.watermarks"
# The same file, as older supervisors name it.
_OLD_NAME = "ledger.notes"
_REWRITE_BYTES = 256 << 10
_MOST_BYTES = 64 << 20
_MOST_LEFT = 20_000


@dataclass(frozen=True, slots=True)
class LedgerWatermark:
    """Report `seq` and those before it hold every row before `ends`, but for those in `left`.

    `ends` are places in the report files, by rank. `saves` are records of checkpoints before `ends` whose
    reports come after `seq`.
    """

    seq: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)
    left: tuple[Consumed, ...] = ()
    saves: tuple[dict[str, Any], ...] = ()


class WatermarkLog(Protocol):
    """Where deliveries of one generation are written down."""

    def begin(self) -> None:
        """The generation's folder is there: nothing was handed over yet."""
        ...

    def write(self, delivery: LedgerWatermark) -> None:
        """It is about to be sent."""
        ...

    def close(self) -> None:
        """Nothing more will be handed over."""
        ...


class NoWatermarkLog:
    """Nobody will ask."""

    def begin(self) -> None:
        """Nothing."""

    def write(self, delivery: LedgerWatermark) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class WatermarkFile:
    """One line for each delivery, in the generation's `folder`.

    `acked` tells the number of the last report that was stored; `last` is the delivery to go on from. A
    file that cannot be written is taken away: without it nothing is ever handed over again, which is
    better than to hand it over twice.
    """

    def __init__(
        self, folder: Path, acked: Callable[[], int], last: LedgerWatermark | None = None
    ) -> None:
        self._path = folder / NAME
        self._acked = acked
        self._kept = deque([] if last is None else [(last.seq, _line(last))])
        self._descriptor: int | None = None
        self._size = 0
        self._rewrite_at = _REWRITE_BYTES

    def begin(self) -> None:
        """See `WatermarkLog`."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._path, flags, 0o600)

    @property
    def opened(self) -> bool:
        """Whether what is written will be found."""
        return self._descriptor is not None

    def write(self, delivery: LedgerWatermark) -> None:
        """See `WatermarkLog`."""
        if self._descriptor is None:
            return
        line = _line(delivery)
        self._kept.append((delivery.seq, line))
        acked = self._acked()
        while len(self._kept) > 1 and self._kept[1][0] <= acked:
            self._kept.popleft()
        try:
            if len(delivery.left) > _MOST_LEFT:
                raise OSError("too much is left over")
            if self._size > self._rewrite_at:
                self._rewrite()
            elif os.write(self._descriptor, line) != len(line):
                raise OSError("a full disk")
        except OSError:
            self._take_away()
        self._size += len(line)

    def _rewrite(self) -> None:
        """Nobody goes on from before the last delivery that was stored. Raises OSError."""
        data = b"".join(line for _, line in self._kept)
        write_file(self._path, data)
        self.close()
        self.begin()
        self._size = len(data)
        self._rewrite_at = max(_REWRITE_BYTES, 2 * self._size)

    def _take_away(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """See `WatermarkLog`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _line(delivery: LedgerWatermark) -> bytes:
    cells = [[row.epoch, row.lo, row.hi, row.times] for row in delivery.left]
    said = {
        "seq": delivery.seq, "ends": delivery.ends, "left": cells, "saves": delivery.saves,
    }  # fmt: skip
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def read_watermarks(folder: Path) -> list[LedgerWatermark] | None:
    """The deliveries of a generation, oldest first; None where they are not known."""
    path = folder / NAME
    try:
        with open(path if path.exists() else folder / _OLD_NAME, "rb") as file:
            data = file.read(_MOST_BYTES)
        return [_delivery(line) for line in data.splitlines()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _delivery(line: bytes) -> LedgerWatermark:
    said = json.loads(line)
    ends = {int(rank): int(end) for rank, end in said["ends"].items()}
    left = tuple(Consumed(*(int(cell) for cell in cells)) for cells in said["left"])
    return LedgerWatermark(int(said["seq"]), ends, left, tuple(dict(one) for one in said["saves"]))


def last_stored(watermarks: list[LedgerWatermark], acked: int) -> LedgerWatermark:
    """The newest of them that the control plane has stored."""
    return max(
        (one for one in watermarks if one.seq <= acked),
        key=lambda one: one.seq,
        default=LedgerWatermark(),
    )
