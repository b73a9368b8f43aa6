"""Reports of a trial, and the wait at its target.

Rank 0's values count. Below the target a report is a record of rank 0 and no collective, so ranks that
disagree cannot hang. At the target all ranks meet, because each knows the target and its own position.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from phalanx.core.contract.records import ParamsRecord, PhaseRecord, ReportRecord, WarningRecord
from phalanx.core.contract.trial import TARGET_SUFFIX
from phalanx.kit.clock import Clock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Report, plain
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.trial.forking import OptimizerOptions

_LOOK_S = 0.01
# Ranks that wait for rank 0 hear from it this often: a collective has a time limit.
_WORD_S = 5.0
_LEAVE, _WAIT = "leave", "wait"


class Broadcaster(Protocol):
    """The collective that a trial needs at its target."""

    def broadcast(self, text: str) -> str:
        """Return rank 0's text."""
        ...


class TrialReporter:
    """The trial that this run is; in a job that is no trial it does nothing."""

    def __init__(
        self,
        info: RankInfo,
        channel: Broadcaster,
        report: Report,
        stop: StopSignal,
        clock: Clock,
        *,
        pauses: bool = True,
    ) -> None:
        """`pauses`: the run can save at its target and leave; else each report is written at once."""
        self.contract = info.trial
        self.options = OptimizerOptions(info.trial.params)
        self.target: int | None = info.trial.until if pauses else None
        """Units after which the trial pauses, the same on all ranks; None: it runs to its end."""
        self.saved_step = -1
        """The step that was saved at the target."""
        self._is_main, self._channel, self._report = info.is_main, channel, report
        self._stop, self._clock = stop, clock
        self._file: Path | None = None
        if info.report_file is not None:
            self._file = info.report_file.with_suffix(TARGET_SUFFIX)
        self._pending: ReportRecord | None = None
        self._warned = False

    def take(self, unit: int, values: Mapping[str, Any]) -> None:
        """Report values; at the target the report waits for the checkpoint that it names."""
        if not (self._is_main and self.contract.is_trial):
            return
        metrics: dict[str, float | str] = {}
        for name, value in values.items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                metrics[name] = plain(value.item() if hasattr(value, "item") else value)
        objective = self.contract.objective
        if objective and objective not in metrics and not self._warned:
            self._warned = True
            said = f"run.report has no {objective}, which is the objective of the study"
            self._report.write(WarningRecord(said))
        record = ReportRecord(unit=unit, value=metrics.get(objective), metrics=metrics)
        if self.is_reached(unit):
            self._pending = record
        else:
            self._report.write(record)

    def record_params(self, values: Mapping[str, Any]) -> None:
        """Write parameters of the run, flattened (rank 0)."""
        if self._is_main:
            from phalanx.core.experiments.parameters import flattened

            plain_values = {
                name: one.item() if callable(getattr(one, "item", None)) else one
                for name, one in values.items()
            }
            self._report.write(ParamsRecord(values=dict(flattened(plain_values))))

    def is_reached(self, unit: int) -> bool:
        """Whether the trial pauses after so many units."""
        return self.target is not None and unit >= self.target

    def is_raised(self) -> bool:
        """Whether the target is higher by now, so that the trial goes on. Collective."""
        target = self.target or 0
        self.target = max(target, int(self._channel.broadcast(str(self._wanted()))))
        if self.target > target:
            self.send("", final=False)
        return self.target > target

    def send(self, path: str, *, final: bool = True) -> None:
        """Write the report that waits, with the checkpoint that was committed for it (rank 0)."""
        record, self._pending = self._pending, None
        if record is not None:
            self._report.write(replace(record, checkpoint=path, final=final))

    def hold(self) -> bool:
        """Wait for a higher target, `hold_s` at most; returns whether the trial goes on. Collective."""
        self._report.write(PhaseRecord("held"))
        deadline = self._clock.monotonic() + self.contract.hold_s
        while (word := self._channel.broadcast(self._word(deadline))) == _WAIT:
            pass
        if word == _LEAVE:
            return False
        self.target = int(word)
        return True

    def _word(self, deadline: float) -> str:
        """What rank 0 tells the others."""
        until = self._clock.monotonic() + _WORD_S
        while self._is_main and self._clock.monotonic() < until:
            wanted = self._wanted()
            if wanted > (self.target or 0):
                return str(wanted)
            if self._stop.at is not None or self._clock.monotonic() >= deadline:
                return _LEAVE
            self._stop.pause(_LOOK_S)
        return _WAIT

    def _wanted(self) -> int:
        """The target in the supervisor's file; 0 without one."""
        with contextlib.suppress(OSError, ValueError):
            if self._is_main and self._file is not None:
                return int(self._file.read_text())
        return 0

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: a rank may be killed before its report is written."""
        one = self._pending
        body = None
        if one is not None:
            body = {"unit": one.unit, "value": one.value, "metrics": dict(one.metrics)}
        own = {"study": self.contract.study, "trial": self.contract.trial, "report": body}
        return own | self.options.state_dict()

    def resume(self, saved: Mapping[str, Any] | None, step: int) -> None:
        """Continue from a checkpoint; one of another trial leaves no report to write."""
        self._pending, self.saved_step = None, -1
        self.options.resume(saved or {})
        mine = (self.contract.study, self.contract.trial)
        body = (saved or {}).get("report")
        if saved is None or body is None or (saved["study"], saved["trial"]) != mine:
            return
        self.saved_step = step
        if self._is_main:
            self._pending = ReportRecord(**body)

    def mark_saved(self, step: int) -> None:
        """Record that the state of this step was saved at the target."""
        self.saved_step = step

    @property
    def waits(self) -> bool:
        """Whether the run was resumed from the checkpoint that it made at a target."""
        return self.saved_step >= 0
