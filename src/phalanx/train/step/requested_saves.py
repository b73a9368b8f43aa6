"""Requests of users to save a checkpoint. Rank 0 reads them from a file that its supervisor writes."""

from __future__ import annotations

import os

from phalanx.core.contract.records import SaveBegunRecord
from phalanx.core.training.control import SAVE_SUFFIX
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report
from phalanx.train.state.committer import ASKED


class RequestedSaves:
    """The newest request for a checkpoint; a save that begins after it was read answers it."""

    def __init__(self, info: RankInfo, report: Report) -> None:
        known = info.rank == 0 and info.report_file is not None
        self._file = info.report_file.with_suffix(SAVE_SUFFIX) if known else None  # type: ignore[union-attr]
        self._report = report
        self._changed_ns = 0
        self._newest = self._answered = 0

    def pending(self) -> bool:
        """Whether a request waits for a save. Reads the file only when it has changed."""
        if self._file is None:
            return False
        try:
            changed_ns = os.stat(self._file).st_mtime_ns
            if changed_ns != self._changed_ns:
                self._newest = max(self._newest, int(self._file.read_text()))
                self._changed_ns = changed_ns
        except (OSError, ValueError):
            return False
        return self._newest > self._answered

    def reason(self, otherwise: str) -> str:
        """Why the checkpoint is saved. Only rank 0 knows of requests, and only its reason is written."""
        return ASKED if self.pending() else otherwise

    def begun(self, step: int, ok: bool) -> None:
        """Report that a save has begun, which answers the requests so far; `ok`: it has not failed."""
        if self._newest > self._answered:
            self._answered = self._newest
            self._report.write(SaveBegunRecord(request=self._newest, step=step, failed=not ok))
