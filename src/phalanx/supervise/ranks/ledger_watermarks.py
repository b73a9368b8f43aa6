"""Watermarks: the file offset up to which each ledger report reads, written before it is sent.

A supervisor may be killed at any moment. The control plane has the number of the last report that it
stored; with the watermarks that number gives the place in the ranks' files where the unreported part
begins, so that a later supervisor can report the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.contract import records
from phalanx.core.contract.records import Record
from phalanx.core.training.ledger import Consumed
from phalanx.launch.files import write_file

NAME = "ledger.watermarks"
# The same file, as older supervisors name it.
_OLD_NAME = "ledger.notes"
_REWRITE_BYTES = 256 << 10
_MOST_BYTES = 64 << 20
_MOST_LEFT = 20_000


@dataclass(frozen=True, slots=True)
class LedgerWatermark:
    """Report `seq` and those before it hold every row before `ends`, except those in `left`.

    `ends` are places in the report files, by rank. `saves` are times and records of checkpoints before
    `ends` that are reported after `seq`.
    """

    seq: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)
    left: tuple[Consumed, ...] = ()
    saves: tuple[tuple[int, Record], ...] = ()


class WatermarkLog:
    """Where the watermarks of one generation are written; this one writes none."""

    def begin(self) -> None:
        """Create the file: the generation's folder exists, and nothing was reported yet."""

    def write(self, mark: LedgerWatermark) -> None:
        """Write a watermark before its report is sent."""

    def close(self) -> None:
        """Close the file: nothing more will be reported."""


class WatermarkFile(WatermarkLog):
    """One line for each watermark, in the generation's `folder`.

    `acked` returns the number of the last report that was stored; `last` is the watermark to continue
    from. A file that cannot be written is removed: then nothing is reported later, which is better than
    to report rows twice.
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
        """Whether the file could be created."""
        return self._descriptor is not None

    def write(self, mark: LedgerWatermark) -> None:
        """See `WatermarkLog`."""
        if self._descriptor is None:
            return
        line = _line(mark)
        self._kept.append((mark.seq, line))
        acked = self._acked()
        while len(self._kept) > 1 and self._kept[1][0] <= acked:
            self._kept.popleft()
        try:
            if len(mark.left) > _MOST_LEFT:
                raise OSError("too much is left over")
            if self._size > self._rewrite_at:
                self._rewrite()
            elif os.write(self._descriptor, line) != len(line):
                raise OSError("a full disk")
        except OSError:
            self._remove()
        self._size += len(line)

    def _rewrite(self) -> None:
        """Drop the watermarks before the last one that was stored. Raises OSError."""
        data = b"".join(line for _, line in self._kept)
        write_file(self._path, data)
        self.close()
        self.begin()
        self._size = len(data)
        self._rewrite_at = max(_REWRITE_BYTES, 2 * self._size)

    def _remove(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """See `WatermarkLog`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _line(mark: LedgerWatermark) -> bytes:
    cells = [[row.epoch, row.lo, row.hi, row.times] for row in mark.left]
    saves = [records.to_json(record, at) for at, record in mark.saves]
    body = {"seq": mark.seq, "ends": mark.ends, "left": cells, "saves": saves}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def read_watermarks(folder: Path) -> list[LedgerWatermark] | None:
    """The watermarks of a generation, oldest first; None where they cannot be read."""
    path = folder / NAME
    try:
        with open(path if path.exists() else folder / _OLD_NAME, "rb") as file:
            data = file.read(_MOST_BYTES)
        return [_mark(line) for line in data.splitlines()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _mark(line: bytes) -> LedgerWatermark:
    body = json.loads(line)
    ends = {int(rank): int(end) for rank, end in body["ends"].items()}
    left = tuple(Consumed(*(int(cell) for cell in cells)) for cells in body["left"])
    return LedgerWatermark(
        int(body["seq"]),
        ends,
        left,
        tuple(one for one in map(records.from_json, body["saves"]) if one is not None),
    )


def last_stored(watermarks: list[LedgerWatermark], acked: int) -> LedgerWatermark:
    """The newest watermark with a report that the control plane has stored."""
    return max(
        (one for one in watermarks if one.seq <= acked),
        key=lambda one: one.seq,
        default=LedgerWatermark(),
    )
