"""Reports that earlier supervisors of the job did not send, sent in their name.

A supervisor that is killed leaves its ranks' report files behind. Its replacement in the attempt, or the
first supervisor of a later attempt that finds them on its node, continues reading where the dead one
stopped, and sends what is missing in the job's accounts: ledger rows, reports of trials, and commits,
removals and restores of checkpoints. It uses the dead one's token and continues its report numbers, so
that nothing is stored twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.gang.stalls import StallPolicy, StallWatch
from phalanx.kit.clock import Clock, backoff_s
from phalanx.launch.files import try_lock
from phalanx.launch.identity import ASSIGNMENT_NAME, LOCK_NAME, SupervisorRecord, boot_id
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import (
    CheckpointRemovedReport,
    CheckpointReport,
    Heartbeat,
    LeavingReport,
    LedgerReport,
    Report,
    RestoredReport,
    SyncRequest,
    TrialReport,
)
from phalanx.supervise.ranks.ledger_watermarks import (
    LedgerWatermark,
    WatermarkFile,
    last_stored,
    read_watermarks,
)
from phalanx.supervise.ranks.records import BACKLOG_BYTES, GenerationRecords
from phalanx.supervise.uplink.link import ControlPlaneAddress, SyncConnection

_LOG = logging.getLogger(__name__)
REPORTED_NAME = "reported"
"""A file in the folder of a supervisor with no unsent reports."""
_MOST_FOLDERS = 64
_BATCH = 500
_MOST_ASSIGNMENT_BYTES = 16 << 20
# Of one rank's report file more than this is never kept; see `records`.
_MOST_BYTES = 2 * BACKLOG_BYTES
_TRIES, _FIRST_WAIT_S, _MAX_WAIT_S = 30, 0.02, 2.0
_ACCOUNT = (
    LedgerReport,
    CheckpointReport,
    CheckpointRemovedReport,
    RestoredReport,
    TrialReport,
)


def mark_reported(node_dir: Path) -> None:
    """Mark a folder as one that has no unsent reports."""
    with contextlib.suppress(OSError):
        (node_dir / REPORTED_NAME).touch(mode=0o600)


def unreported_folders(node_dir: Path) -> list[Path]:
    """Folders of earlier supervisors on this node that may have unsent reports.

    Those of earlier attempts, and those that this one replaces; the newest come first, at most
    `_MOST_FOLDERS`.
    """
    own = _attempt_of(node_dir.parent)
    if own is None:
        return []
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError):
        rank, _, incarnation = node_dir.name.partition(".")
        before = [rank, *(f"{rank}.{one}" for one in range(1, int(incarnation or 0)))]
        if incarnation:
            found.extend((own, node_dir.with_name(name)) for name in before)
        for attempt_dir in node_dir.parent.parent.iterdir():
            number = _attempt_of(attempt_dir)
            if number is not None and number < own:
                found.extend((number, one) for one in attempt_dir.glob("n*"))
    found.sort(key=lambda one: (-one[0], one[1].name))
    return [path for _, path in found[:_MOST_FOLDERS] if not (path / REPORTED_NAME).exists()]


def _attempt_of(folder: Path) -> int | None:
    number = re.fullmatch(r"a(\d{3,9})", folder.name)
    return None if number is None else int(number[1])


@dataclass(slots=True)
class _Impersonation:
    """Sends reports under the number and token of a supervisor that is dead."""

    assignment: Assignment
    line: SyncConnection
    clock: Clock

    def send(self, reports: list[Report]) -> int:
        """Send reports; the number of the last one that is stored now. Raises OSError."""
        request = SyncRequest(
            job=self.assignment.gang.job.num,
            attempt=self.assignment.gang.attempt,
            node_rank=self.assignment.node_rank,
            incarnation=self.assignment.incarnation,
            sent_at=self.clock.now(),
            reports=reports,
            heartbeat=Heartbeat(generation=-1),  # its own heartbeats hold its progress
        )
        return self.line.sync(request).acked


class OrphanReports:
    """Sends orphan reports in a thread that ends with the process; `over` once nothing is left to send."""

    def __init__(self, assignment: Assignment, clock: Clock) -> None:
        self._assignment = assignment
        self._clock = clock
        self._leave = threading.Event()
        self._over = threading.Event()

    def start(self) -> None:
        """Start the thread, where there are folders to look at."""
        folders = unreported_folders(Path(self._assignment.node_dir))
        if not folders:
            self._over.set()
            return
        work = threading.Thread(
            target=self._work, args=(folders,), name="orphan-reports", daemon=True
        )
        work.start()

    @property
    def over(self) -> bool:
        """Whether all that can be sent was sent."""
        return self._over.is_set()

    def close(self) -> None:
        """Send nothing more after the call under way."""
        self._leave.set()

    def _work(self, folders: list[Path]) -> None:
        try:
            for folder in folders:
                self._send_safely(folder)
        finally:
            self._over.set()

    def _send_safely(self, folder: Path) -> None:
        try:
            self._send_with_retries(folder)
        except Exception:
            # Files of a user's process: whatever they hold must not touch the job that runs.
            _LOG.exception("the records in %s could not be read", folder)

    def _send_with_retries(self, folder: Path) -> None:
        # Another supervisor may hold the folder's lock, or `is_held` may be testing it.
        for failures in range(1, _TRIES):
            with _held(folder) as held:
                if (folder / REPORTED_NAME).exists():
                    return
                try:
                    if held:
                        self._send(folder)
                        return
                except OSError as error:
                    _LOG.warning("the unsent reports in %s have to wait: %s", folder, error)
            if self._leave.wait(backoff_s(failures, first_s=_FIRST_WAIT_S, max_s=_MAX_WAIT_S)):
                return

    def _send(self, folder: Path) -> None:
        """Send all reports that one supervisor did not. Raises OSError; repeated, nothing counts twice."""
        own = self._assignment
        theirs = _left_behind(folder)
        if theirs is None or (theirs.gang.job.num, theirs.node_dir) != (
            own.gang.job.num,
            str(folder),
        ):
            return
        address = ControlPlaneAddress(own.server_url, own.server_file, ca=own.server_ca)
        line = SyncConnection(address, theirs.token)
        try:
            _send_rest(folder, _Impersonation(theirs, line, self._clock))
        finally:
            line.close()
        mark_reported(folder)


def _send_rest(folder: Path, sender: _Impersonation) -> None:
    acked = sender.send([])
    # What ranks of another role than the first read is not the job's data.
    folders = sorted(folder.glob("g*")) if sender.assignment.leads else []
    known = {one: read_watermarks(one) for one in folders if one.is_dir()}
    noted = [note.seq for watermarks in known.values() for note in watermarks or ()]
    # Above every number that may have been used: what was never stored gets a new number.
    seq, waiting = max([acked, *noted]), list[Report]()
    whole = bool(known) or not sender.assignment.leads
    for generation, watermarks in known.items():
        rest = (
            None
            if watermarks is None
            else _rest(generation, last_stored(watermarks, acked), sender, acked)
        )
        whole = whole and rest is not None
        for make in rest or ():
            report = make(seq + 1)
            if isinstance(report, _ACCOUNT):
                seq, waiting = seq + 1, [*waiting, report]
            if len(waiting) >= _BATCH:
                sender.send(waiting)
                waiting = []
    # No LeavingReport where something could not be read: the accounts then show a gap.
    sender.send([*waiting, LeavingReport(seq=seq + 1)] if whole else waiting)


def _rest(
    folder: Path, last: LedgerWatermark, sender: _Impersonation, acked: int
) -> list[Callable[[int], Report]] | None:
    """What one generation's ranks wrote after `last`; None where not all of it can be read.

    Raises OSError where the watermarks cannot be written.
    """
    number = re.fullmatch(r"g(\d{3,9})", folder.name)
    first, count = sender.assignment.first_rank, sender.assignment.num_ranks
    files = {rank: folder / f"r{rank:05d}.report" for rank in range(first, first + count)}
    if number is None or not all(_is_readable(one) for one in files.values()):
        return None
    made: list[Callable[[int], Report]] = []
    watch = StallWatch(StallPolicy(), sender.clock.monotonic())
    watermarks = WatermarkFile(folder, lambda: acked, last)
    records = GenerationRecords(int(number[1]), files, made.append, watch, watermarks)
    watermarks.begin()
    if not watermarks.opened:
        raise OSError(f"{folder} cannot be written to")
    records.resume_from(last)
    records.read()
    while records.put_ledger(made.append):
        pass
    broken = any(tail.broken for tail in records.tails.values())
    for tail in records.tails.values():
        tail.close()
    return None if broken else made


def _is_readable(file: Path) -> bool:
    """Whether a report file can be read; one that does not exist is one of a rank without the library."""
    return not file.exists() or (file.is_file() and file.stat().st_blocks * 512 <= _MOST_BYTES)


def _left_behind(folder: Path) -> Assignment | None:
    """The assignment of the supervisor of a folder; None where the files cannot be trusted.

    After a crash of the machine, some of what was written may be missing.
    """
    try:
        record = SupervisorRecord.read(folder)
        if record is None or record.supervisor.boot_id != boot_id():
            return None
        with open(folder / ASSIGNMENT_NAME, "rb") as file:
            return Assignment.model_validate_json(file.read(_MOST_ASSIGNMENT_BYTES))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Take the lock of a supervisor's folder; False where a supervisor holds it, or none ever did."""
    descriptor: int | None = None
    with contextlib.suppress(OSError):
        descriptor = try_lock(folder / LOCK_NAME, create=0)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)
