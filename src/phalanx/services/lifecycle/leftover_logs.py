"""Output that a supervisor did not send, read from its files when it is gone and this machine has them."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from functools import partial

from phalanx.core.contract.secrecy import OutputMask
from phalanx.core.logs.segments import LogSegment
from phalanx.errors import PlatformError
from phalanx.executors.protocol import SupervisorStatus
from phalanx.launch import secret_files
from phalanx.launch.capture import OutputFile, output_files
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.platform import Platform
from phalanx.services.secrets.values import values
from phalanx.store import jobs, telemetry

_LOG = logging.getLogger(__name__)
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
        for one in output_files(
            platform.home.node_dir(ref.job, ref.attempt, ref.node_rank, ref.incarnation)
        )
    }
    sizes = {(ref.attempt, *one.key): one.num_bytes for one in gone.output}
    sizes |= {key: file.size for key, file in files.items()}
    if not sizes:
        return
    streams = platform.store.view(lambda tx: telemetry.log_streams_of(tx, ref.job, ref.attempt))
    received = {one.key: one.received for one in streams}
    ends = {one.key: one.size for one in streams}
    try:
        mask = _mask(platform, ref.job)
    except PlatformError as error:
        # Nothing is stored of what may hold values that are not known here: its length is.
        _LOG.warning(
            "output of job %d is left on its node: %s",
            ref.job,
            error,
            extra={
                "event": "output_left",
                "job": ref.job,
                "attempt": ref.attempt,
                "node": ref.node_rank,
            },
        )
        mask, files = OutputMask(), {}
    left = MOST_BYTES if platform.log_limit is None else min(MOST_BYTES, platform.log_limit)
    for key, size in sizes.items():
        begin = first = received.get(key, 0)
        if size > begin and key in files:
            fresh = LogSegment(0, ref.job, *key, begin, 0, now, b"")
            begin += _copy(platform, fresh, files[key], left, mask)
            left -= begin - first
        if size > max(begin, ends.get(key) or 0):
            end = LogSegment(0, ref.job, *key, size, 0, now, b"")
            platform.store.transact(partial(telemetry.end_log, end=end))


def _mask(platform: Platform, num: int) -> OutputMask:
    """What hides the values of a job's secrets, as its supervisors do.

    Raises PlatformError where a value cannot be read any more.
    """
    facts = platform.store.view(lambda tx: jobs.load(tx, num)).facts
    try:
        named = contract_of(facts).secrets
    except PlatformError:
        named = ()
    own = secret_files.values_of(platform.home.job_secrets_file(num))
    return OutputMask([*own, *values(platform, facts.project, named).values()])


def _copy(
    platform: Platform, first: LogSegment, one: OutputFile, most: int, mask: OutputMask
) -> int:
    """Store up to `most` bytes of a file from the place of `first`; returns their number."""
    begin = first.offset
    copied = 0
    with contextlib.suppress(OSError):
        # A rank can write below its supervisor's folder: a link in the place of a file is not followed.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(one.path, flags), "rb") as file:
            while (size := min(_CHUNK_BYTES, most - copied, one.size - begin - copied)) > 0 and (
                data := mask.read(file, begin + copied, size)
            ):
                segment = replace(first, offset=begin + copied, data=data)
                add = partial(telemetry.add_log, fresh=segment, max_bytes=platform.log_limit)
                platform.store.transact(add)
                copied += len(data)
    return copied
