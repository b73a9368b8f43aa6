"""One step that joins segments of output into packs, job by job, and deletes files of packs that are gone.

The rows of packs are stored first, then their files, and then the segments are deleted in the transaction
in which readers begin to use the packs. A process that is killed leaves rows without use; a later step
deletes their files.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from phalanx.core.logs.packs import LogPack, packed
from phalanx.core.logs.segments import LogSegment, OpenLine, StreamKey
from phalanx.errors import DataUnavailable, NotFound, StoreCorrupt
from phalanx.kit.text import random_hex
from phalanx.services.objects.log_files import compressed
from phalanx.services.platform import Platform
from phalanx.store import telemetry
from phalanx.store.database import Tx
from phalanx.store.logs import packs
from phalanx.store.logs.packs import PackRow, StreamPart
from phalanx.store.telemetry import LogStream

PACK_BYTES = 1 << 20
"""Output in one pack; the last segment may exceed it."""
PACKS = 8
"""The most packs that one call makes, with one transaction before their files and one behind them."""
PACK_SEGMENTS = 4096
LOOSE_BYTES = 2 * PACK_BYTES
"""Output of a job in segments from which on the oldest of it is packed."""
IDLE_US = 600 * 1_000_000
"""Time without new output after which all of a job's output is packed …"""
IDLE_BYTES = 64 << 10
"""… unless it is less than this: a file for a few lines costs more than rows."""
_ABANDONED_US = 3600 * 1_000_000
_JOBS, _ROUNDS, _FILES = 20, 2, 500
_LOG = logging.getLogger(__name__)


def logs_step(platform: Platform, now: int) -> bool:
    """Pack what is due; returns whether more is left."""
    _delete_files(platform, now)
    nums = platform.store.view(
        lambda tx: packs.due(
            tx,
            least_bytes=LOOSE_BYTES,
            idle_bytes=IDLE_BYTES,
            idle_since=now - IDLE_US,
            limit=_JOBS,
        )
    )
    done = 0
    for num in nums:
        for _ in range(_ROUNDS):
            platform.may_act()
            if not pack_job(platform, num, now):
                break
            done += 1
    return done > 0


def pack_job(platform: Platform, num: int, now: int) -> bool:
    """Make packs of the oldest segments of a job, `PACKS` at most; returns whether any was made."""

    def look(tx: Tx) -> tuple[list[LogSegment], list[PackRow], Mapping[StreamKey, LogStream]]:
        limits = {"max_bytes": PACKS * PACK_BYTES, "max_segments": PACK_SEGMENTS}
        found = packs.oldest_segments(tx, num, **limits)
        streams = telemetry.streams_of(tx, num, {one.key for one in found})
        return found, packs.newest(tx, num), streams

    segments, last, streams = platform.store.view(look)
    if not segments:
        return False
    made = list(_made(num, _parts(segments), _open_lines(platform, last), streams))
    rows, names = [one.row for one in made], [one.row.name for one in made]
    platform.store.transact(lambda tx: packs.begin(tx, [(one.row, one.bits) for one in made], now))
    written = _write(platform, made)
    sizes = [one.num_segments for one in made[:written]]
    done = 0
    if written:
        done = platform.store.transact(lambda tx: packs.finish(tx, rows[:written], sizes, now))
    if done < len(made):
        platform.store.transact(lambda tx: packs.give_up(tx, names[done:], now))
        # The rows may be gone, with their job: no later step finds the files then.
        with contextlib.suppress(DataUnavailable):
            platform.log_files.remove(num, names[done:])
    return done > 0


def _parts(segments: Sequence[LogSegment]) -> Iterator[list[LogSegment]]:
    """The segments of one pack after the other."""
    part, size = list[LogSegment](), 0
    for one in segments:
        part.append(one)
        size += len(one.data)
        if size >= PACK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class _MadePack:
    """A pack that is not stored yet."""

    row: PackRow
    num_segments: int
    bits: bytes
    data: bytes = field(repr=False)  # of its file


def _made(
    num: int,
    parts: Iterable[Sequence[LogSegment]],
    opened: Mapping[StreamKey, OpenLine],
    streams: Mapping[StreamKey, LogStream],
) -> Iterator[_MadePack]:
    """The packs of consecutive segments, after lines that are open."""
    from phalanx.core.logs.grams import bitmap

    packed_to: dict[StreamKey, int] = {}
    for segments in parts:
        firsts: dict[StreamKey, int] = {}
        for one in segments:
            firsts.setdefault(one.key, one.offset)
        before = {
            key: telemetry.told(streams[key], offset, packed_to.get(key, 0))
            for key, offset in firsts.items()
        }
        pack = packed(num, segments, opened)
        data, bits = compressed(pack), bitmap(pack.body)
        row = _row(pack, segments, before, len(data), bits)
        yield _MadePack(row, len(segments), bits, data)
        opened = pack.open_lines()
        packed_to |= {part.key: part.end for part in row.streams}


def _write(platform: Platform, made: Sequence[_MadePack]) -> int:
    """Write the files of packs in their order, and return how many could be written."""
    for number, one in enumerate(made):
        try:
            platform.log_files.write(one.row.job, one.row.name, one.data)
        except (DataUnavailable, NotFound) as error:  # the second: there is no such bucket
            _LOG.warning("%s", error)
            return number
    return len(made)


def _open_lines(platform: Platform, last: Sequence[PackRow]) -> Mapping[StreamKey, OpenLine]:
    """The lines that are open behind the last pack; none where it cannot be read."""
    for one in last:
        try:
            return platform.log_files.read(one.job, one.name).open_lines()
        except (NotFound, DataUnavailable, StoreCorrupt) as error:
            _LOG.warning("lines that begin in an earlier pack are searched in parts: %s", error)
    return {}


def _row(
    pack: LogPack,
    segments: Sequence[LogSegment],
    before: Mapping[StreamKey, int],
    file_bytes: int,
    bits: bytes,
) -> PackRow:
    from phalanx.core.logs.level_lines import count_levels, possible_signs

    levels: dict[str, int] = {}
    signs = possible_signs(bits)
    parts = []
    opened_at = [one.opened.at for one in pack.streams if one.opened is not None]
    for stream in pack.streams:
        for run in stream.runs():
            for level, number in count_levels(pack.body, run.begin, run.end, signs).items():
                levels[level.word] = levels.get(level.word, 0) + number
        if stream.segments:
            begin = min(one.offset for one in stream.segments)
            end = max(one.offset + one.end - one.begin for one in stream.segments)
            lost = sum(one.dropped for one in stream.segments)
            parts.append(StreamPart(stream.key, before[stream.key], begin, end, lost))
    return PackRow(
        name=f"{segments[0].id:020d}-{random_hex(8)}",
        job=pack.job,
        first_id=segments[0].id,
        last_id=segments[-1].id,
        first_at=min([one.at for one in segments] + opened_at),
        last_at=max(one.at for one in segments),
        num_bytes=sum(len(one.data) for one in segments),
        file_bytes=file_bytes,
        num_lines=sum(one.data.count(b"\n") for one in segments),
        levels=levels,
        streams=tuple(parts),
    )


def _delete_files(platform: Platform, now: int) -> None:
    """Delete files of packs that nothing reads, and then their rows."""
    found = platform.store.view(
        lambda tx: packs.left_over(tx, before=now - _ABANDONED_US, limit=_FILES)
    )
    for num, ones in groupby(sorted(found), key=lambda one: one[0]):
        names = [name for _, name in ones]
        platform.may_act()
        # From here on a process that was slow cannot finish one of them any more.
        doomed = platform.store.transact(partial(packs.abandon, names=names, now=now))
        try:
            platform.log_files.remove(num, doomed)
        except DataUnavailable as error:
            _LOG.warning("%s", error)
            continue
        platform.store.transact(partial(packs.forget, names=doomed))
