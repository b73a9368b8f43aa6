"""What supervisors of the job's earlier attempts did not get to say, said in their name.

A supervisor that is killed leaves its ranks' report files behind. The first supervisor of a later attempt
that finds them on its node reads on where the dead one stopped, and hands over what is missing of the
account: rows of the ledger, and where checkpoints were committed and taken up. It speaks with the dead
one's token and goes on with its numbers, so that what was stored once is not stored again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.gang.stalls import StallLimit, StallWatch
from phalanx.kit.clock import Clock, backoff_s
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
TOLD_NAME = "told"
"""Stands in the folder of a supervisor whose every word was stored."""
_MOST_FOLDERS = 64
_BATCH = 500
_MOST_ASSIGNMENT_BYTES = 16 << 20
# Of one rank's report file more than this is never kept; see `records`.
_MOST_BYTES = 2 * BACKLOG_BYTES
_TRIES, _FIRST_WAIT_S, _MAX_WAIT_S = 30, 0.02, 2.0
_ACCOUNT = (LedgerReport, CheckpointReport, CheckpointRemovedReport, RestoredReport)


def mark_told(node_dir: Path) -> None:
    """Nobody needs to look into this folder again."""
    with contextlib.suppress(OSError):
        (node_dir / TOLD_NAME).touch(mode=0o600)


def unsaid(node_dir: Path) -> list[Path]:
    """Folders of supervisors of earlier attempts, within reach, that may have more to say.

    The newest come first, and only so many.
    """
    own = _attempt_of(node_dir.parent)
    if own is None:
        return []
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError):
        for attempt_dir in node_dir.parent.parent.iterdir():
            number = _attempt_of(attempt_dir)
            if number is not None and number < own:
                found.extend((number, one) for one in attempt_dir.glob("n*"))
    found.sort(key=lambda one: (-one[0], one[1].name))
    return [path for _, path in found[:_MOST_FOLDERS] if not (path / TOLD_NAME).exists()]


def _attempt_of(folder: Path) -> int | None:
    number = re.fullmatch(r"a(\d{3,9})", folder.name)
    return None if number is None else int(number[1])


@dataclass(slots=True)
class _Impersonation:
    """A dead supervisor's, lent: its number in the job's books and the line it would use."""

    assignment: Assignment
    line: SyncConnection
    clock: Clock

    def say(self, reports: list[Report]) -> int:
        """The number of the last of its reports that is stored now. Raises OSError."""
        request = SyncRequest(
            job=self.assignment.gang.job,
            attempt=self.assignment.gang.attempt,
            node_rank=self.assignment.node_rank,
            sent_at=self.clock.now(),
            reports=reports,
            heartbeat=Heartbeat(generation=-1),  # how far it is, it said itself
        )
        return self.line.sync(request).acked


class OrphanReports:
    """Works in a thread of its own, which ends with the process; `over` once nothing is left to say."""

    def __init__(self, assignment: Assignment, clock: Clock) -> None:
        self._assignment = assignment
        self._clock = clock
        self._leave = threading.Event()
        self._over = threading.Event()

    def start(self) -> None:
        """Begin, where there is anything."""
        folders = unsaid(Path(self._assignment.node_dir))
        if not folders:
            self._over.set()
            return
        work = threading.Thread(target=self._work, args=(folders,), name="earlier", daemon=True)
        work.start()

    @property
    def over(self) -> bool:
        """Whether it has done what it can."""
        return self._over.is_set()

    def close(self) -> None:
        """No further call is begun."""
        self._leave.set()

    def _work(self, folders: list[Path]) -> None:
        try:
            for folder in folders:
                self._guarded(folder)
        finally:
            self._over.set()

    def _guarded(self, folder: Path) -> None:
        try:
            self._until_told(folder)
        except Exception:
            # Files of a user's process: whatever they hold must not touch the job that runs.
            _LOG.exception("the records in %s could not be read", folder)

    def _until_told(self, folder: Path) -> None:
        # Another node's supervisor may be at work there, or somebody looks whether anyone is.
        for failures in range(1, _TRIES):
            with _held(folder) as held:
                if (folder / TOLD_NAME).exists():
                    return
                try:
                    if held:
                        self._tell(folder)
                        return
                except OSError as error:
                    _LOG.warning("what is left in %s has to wait: %s", folder, error)
            if self._leave.wait(backoff_s(failures, first_s=_FIRST_WAIT_S, max_s=_MAX_WAIT_S)):
                return

    def _tell(self, folder: Path) -> None:
        """Everything that one supervisor left unsaid. Raises OSError; said again, nothing counts twice."""
        own = self._assignment
        theirs = _left_behind(folder)
        if theirs is None or (theirs.gang.job, theirs.node_dir) != (own.gang.job, str(folder)):
            return
        line = SyncConnection(ControlPlaneAddress(own.server_url, own.server_file), theirs.token)
        try:
            _hand_over(folder, _Impersonation(theirs, line, self._clock))
        finally:
            line.close()
        mark_told(folder)


def _hand_over(folder: Path, voice: _Impersonation) -> None:
    acked = voice.say([])
    # What ranks of another role than the first read is not the job's data.
    folders = sorted(folder.glob("g*")) if voice.assignment.leads else []
    known = {one: read_watermarks(one) for one in folders if one.is_dir()}
    noted = [note.seq for watermarks in known.values() for note in watermarks or ()]
    # Behind everything that may have had a number: what was never stored is said anew.
    seq, waiting = max([acked, *noted]), list[Report]()
    whole = bool(known) or not voice.assignment.leads
    for generation, watermarks in known.items():
        rest = (
            None
            if watermarks is None
            else _rest(generation, last_stored(watermarks, acked), voice, acked)
        )
        whole = whole and rest is not None
        for make in rest or ():
            report = make(seq + 1)
            if isinstance(report, _ACCOUNT):
                seq, waiting = seq + 1, [*waiting, report]
            if len(waiting) >= _BATCH:
                voice.say(waiting)
                waiting = []
    # Where something could not be read nobody says goodbye: the account shows that more was done.
    voice.say([*waiting, LeavingReport(seq=seq + 1)] if whole else waiting)


def _rest(
    folder: Path, last: LedgerWatermark, voice: _Impersonation, acked: int
) -> list[Callable[[int], Report]] | None:
    """What one generation's ranks wrote behind `last`; None where not all of it can be read.

    Raises OSError where its watermarks cannot be written.
    """
    number = re.fullmatch(r"g(\d{3,9})", folder.name)
    first, count = voice.assignment.first_rank, voice.assignment.gang.ranks_per_node
    files = {rank: folder / f"r{rank:05d}.report" for rank in range(first, first + count)}
    if number is None or not all(_is_readable(one) for one in files.values()):
        return None
    made: list[Callable[[int], Report]] = []
    watch = StallWatch(StallLimit(), voice.clock.monotonic())
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
    """Whether it is a file that supervisors read, or not there: its rank never used the library."""
    return not file.exists() or (file.is_file() and file.stat().st_blocks * 512 <= _MOST_BYTES)


def _left_behind(folder: Path) -> Assignment | None:
    """The assignment of who worked in a folder; None where its watermarks cannot be trusted.

    After a crash of the whole machine some of what was written is there and some is not.
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
    """The lock of a supervisor's folder; not held where somebody works there, or nobody ever did."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
