"""Output that a supervisor did not send, read from its files when it is gone and this machine has them."""

from __future__ import annotations

import contextlib
import os
from functools import partial

from phalanx.executors.protocol import SupervisorStatus
from phalanx.launch.capture import OutputFile, output_files
from phalanx.services.platform import Platform
from phalanx.store import telemetry
from phalanx.store.telemetry import LogSegment, StreamKey

_CHUNK_BYTES = 1 << 20
# More is not read of one supervisor: the slots of its node are free only afterwards.
MOST_BYTES = 128 << 20


def collect_logs(platform: Platform, gone: SupervisorStatus, now: int) -> None:
    """Store what is missing of the output of a supervisor that is gone, or else how much is missing.

    Repeated, nothing is stored twice. What is on the disk of another machine is counted where the executor
    could look at its files.
    """
    ref = gone.ref
    files = {
        (ref.attempt, one.generation, one.rank, one.stream): one
        for one in output_files(platform.home.node_dir(ref.job, ref.attempt, ref.node_rank))
    }
    sizes = {(ref.attempt, *one.key): one.num_bytes for one in gone.output}
    sizes |= {key: file.size for key, file in files.items()}
    if not sizes:
        return
    streams = platform.store.view(lambda tx: telemetry.log_streams_of(tx, ref.job, ref.attempt))
    received = {one.key: one.received for one in streams}
    ends = {one.key: one.size for one in streams}
    left = MOST_BYTES if platform.log_limit is None else min(MOST_BYTES, platform.log_limit)
    for key, size in sizes.items():
        begin = first = received.get(key, 0)
        if size > begin and key in files:
            begin += _copy(platform, ref.job, key, files[key], begin, left, now)
            left -= begin - first
        if size > max(begin, ends.get(key) or 0):
            end = LogSegment(0, ref.job, *key, size, 0, now, b"")
            platform.store.transact(partial(telemetry.end_log, end=end))


def _copy(
    platform: Platform,
    job: int,
    key: StreamKey,
    one: OutputFile,
    begin: int,
    most: int,
    now: int,
) -> int:
    """Store up to `most` bytes of a file from `begin`; returns their number."""
    copied = 0
    with contextlib.suppress(OSError):
        # A rank can write below its supervisor's folder: a link in the place of a file is not followed.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(one.path, flags), "rb") as file:
            file.seek(begin)
            while data := file.read(min(_CHUNK_BYTES, most - copied, one.size - begin - copied)):
                segment = LogSegment(0, job, *key, begin + copied, 0, now, data)
                add = partial(telemetry.add_log, fresh=segment, max_bytes=platform.log_limit)
                platform.store.transact(add)
                copied += len(data)
    return copied
