"""The log store: output a second into packs on one core, and a rare text and an expression in a gigabyte.

The output is that of a training job with loggers: lines with a time, a level, a step and numbers at random,
and now and then a warning. Eight ranks print in turns, 256 KiB at a time, as supervisors send it.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.control.throughput import database

from phalanx.core.logs.segments import LogSegment
from phalanx.services.logs.packing import pack_job
from phalanx.services.logs.search import LogSearch, SearchLimits, search
from phalanx.services.objects.log_files import LogFiles
from phalanx.store import open_store, telemetry

PACKED_MB_PER_S = 50.0
RARE_MS, EXPRESSION_S = 100.0, 2.0
_RANKS, _PIECE, _DISTINCT = 8, 256 << 10, 64 << 20
_RARE = "collective timed out at 0x7f3a"
_EXPRESSION = r"loss (nan|inf)\b"
_ROUNDS = 5


def report(databases: tuple[str, ...], num_mb: int) -> bool:
    """Measure and print; whether packing and searching are within their bars on every database."""
    kept = True
    for name in databases:
        with (
            tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder,
            database(name, Path(folder)) as (url, _),
        ):
            store = open_store(url or Path(folder) / "db" / "x.sqlite")
            files = LogFiles(Path(folder) / "logs")
            platform = SimpleNamespace(store=store, log_files=files, may_act=lambda: None)
            try:
                kept &= _packed(platform, name, num_mb)
                kept &= _searched(platform, name, num_mb)
            finally:
                store.close()
    return kept


def _lines() -> Iterator[bytes]:
    rng = random.Random(20261128)
    step = 0
    while True:
        step += 1
        at = f"2026-11-28 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}"
        numbers = f"loss {rng.random():.5f} lr {rng.random() / 1000:.2e} grad {rng.random():.3f}"
        yield f"{at},{rng.randrange(1000):03} INFO train: step {step} {numbers}\n".encode()
        if step % 500 == 0:
            yield f"{at},000 WARNING data: worker {rng.randrange(16)} waits for its disk\n".encode()


def _pieces(num_mb: int) -> Iterator[bytes]:
    """Pieces of output, which begin again after `_DISTINCT` bytes; the rare text is in one of them."""
    made: list[bytes] = []
    lines = _lines()
    for number in range(num_mb * (1 << 20) // _PIECE):
        if number < _DISTINCT // _PIECE:
            piece = bytearray()
            while len(piece) < _PIECE:
                piece += next(lines)
            made.append(bytes(piece))
        found = made[number % len(made)]
        yield found + f"{_RARE}\n".encode() if number == num_mb * 2 else found


def _packed(platform: Any, name: str, num_mb: int) -> bool:
    """Store output as rows and pack it; only the packing is measured."""
    taken, num_bytes, ends = 0.0, 0, [0] * _RANKS
    for number, piece in enumerate(_pieces(num_mb)):
        rank = number % _RANKS
        fresh = LogSegment(0, 1, 1, 0, rank, "out", ends[rank], 0, number, piece)
        platform.store.transact(lambda tx, fresh=fresh: telemetry.add_log(tx, fresh))
        ends[rank] += len(piece)
        num_bytes += len(piece)
        if number % 64 == 63:
            began = time.process_time()
            while pack_job(platform, 1, number):
                pass
            taken += time.process_time() - began
    speed = num_bytes / 1e6 / taken
    files = sum(one.stat().st_size for one in platform.log_files.root.glob("*/*"))
    print(
        f"{name}: {num_bytes / 1e6:,.0f} MB of output packed with {speed:.1f} MB a second of processor "
        f"time (bar {PACKED_MB_PER_S:.0f}), to {files / num_bytes:.1%} of its size"
    )
    return speed >= PACKED_MB_PER_S


def _searched(platform: Any, name: str, num_mb: int) -> bool:
    """Count the lines with a rare text, and those that an expression matches which no line does."""
    rare = [_search(platform, LogSearch(text=_RARE), 1) for _ in range(_ROUNDS)]
    regex = _search(platform, LogSearch(expression=_EXPRESSION), 0)
    share = num_mb / 1024
    print(
        f"{name}: in {num_mb:,} MiB a rare text is found in {min(rare)[0] * 1e3:.0f} ms, "
        f"{min(rare)[1] * 1e3:.0f} ms of processor time (bar {RARE_MS * share:.0f}), and all is read for "
        f"an expression in {regex[0]:.2f} s, {regex[1]:.2f} s of processor time "
        f"(bar {EXPRESSION_S * share:.2f})"
    )
    return min(rare)[0] * 1e3 <= RARE_MS * share and regex[0] <= EXPRESSION_S * share


def _search(platform: Any, wanted: LogSearch, expected: int) -> tuple[float, float]:
    """The time, and that of the processor, of a search that ends."""
    limits = SearchLimits(lines=0, search_s=600.0, read_bytes=1 << 40)
    began, used = time.monotonic(), time.process_time()
    found = search(platform, 1, wanted, (0, 0), limits, time.monotonic, is_over=True)
    taken = time.monotonic() - began, time.process_time() - used
    assert (found.count, found.stopped, found.unreadable_bytes) == (expected, False, 0)
    return taken
