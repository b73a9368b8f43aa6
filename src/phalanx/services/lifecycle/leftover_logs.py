"""Output that a supervisor did not send, read from its files when it is gone and this machine has them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phalanx.executors.protocol import SupervisorRef
from phalanx.services.platform import Platform
from phalanx.store import telemetry
from phalanx.store.telemetry import LogSegment, StreamKey

_GENERATION = re.compile(r"g(\d{3,9})")
_OUTPUT = re.compile(r"r(\d{5,9})\.(out|err)")
_CHUNK_BYTES = 1 << 20
# More is not read of one supervisor: the slots of its node are free only afterwards.
MOST_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class OutputFile:
    """The file of one output stream."""

    key: StreamKey
    path: Path
    size: int


def collect_logs(platform: Platform, ref: SupervisorRef, now: int) -> None:
    """Store what is missing of the output of a supervisor that is gone, or else how much is missing.

    Repeated, nothing is stored twice. Files that are not on this machine are passed over.
    """
    found = list(_outputs(platform.home.node_dir(ref.job, ref.attempt, ref.node_rank), ref.attempt))
    if not found:
        return
    streams = platform.store.view(lambda tx: telemetry.log_streams_of(tx, ref.job, ref.attempt))
    received = {one.key: one.received for one in streams}
    ends = {one.key: one.size for one in streams}
    left = MOST_BYTES if platform.log_limit is None else min(MOST_BYTES, platform.log_limit)
    for one in found:
        begin = received.get(one.key, 0)
        if one.size > begin:
            begin += _copy(platform, ref.job, one, begin, left, now)
            left -= begin - received.get(one.key, 0)
        if one.size > max(begin, ends.get(one.key) or 0):
            end = LogSegment(0, ref.job, *one.key, one.size, 0, now, b"")
            platform.store.transact(partial(telemetry.end_log, end=end))


def _copy(platform: Platform, job: int, one: OutputFile, begin: int, most: int, now: int) -> int:
    """Store up to `most` bytes of a file from `begin`; returns their number."""
    copied = 0
    with contextlib.suppress(OSError):
        # A rank can write below its supervisor's folder: a link in the place of a file is not followed.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(one.path, flags), "rb") as file:
            file.seek(begin)
            while data := file.read(min(_CHUNK_BYTES, most - copied, one.size - begin - copied)):
                segment = LogSegment(0, job, *one.key, begin + copied, 0, now, data)
                add = partial(telemetry.add_log, fresh=segment, max_bytes=platform.log_limit)
                platform.store.transact(add)
                copied += len(data)
    return copied


def _outputs(node_dir: Path, attempt: int) -> Iterator[OutputFile]:
    """The files with output of all generations, in order."""
    for folder in sorted(node_dir.glob("g*")):
        generation = _GENERATION.fullmatch(folder.name)
        for path in sorted(folder.glob("r*.*")) if generation is not None else ():
            output = _OUTPUT.fullmatch(path.name)
            if output is None or generation is None:
                continue
            with contextlib.suppress(OSError):
                key = (attempt, int(generation[1]), int(output[1]), output[2])
                yield OutputFile(key, path, path.lstat().st_size)
