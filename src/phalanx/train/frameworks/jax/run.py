"""The run of a JAX script: steps, commits, saves, stops."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from phalanx import checkpoint
from phalanx.core.contract.records import DoneRecord, PhaseRecord, StepRecord, StoppedRecord
from phalanx.core.training.learning_rate import LR_SCALES, Ramp, world_factor
from phalanx.errors import FinalCheckpointNotSaved, Problem, SpecInvalid, UserError
from phalanx.kit.clock import Clock, SystemClock
from phalanx.train.frameworks.jax.processes import (
    JaxProcesses,
    ProcessChannel,
    Processes,
    SingleProcess,
)
from phalanx.train.frameworks.jax.saving import JaxCheckpoints, JaxSaver
from phalanx.train.gang import context, failure, stacks
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import Journal, Report, report_to
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.state.storage import storage_for
from phalanx.train.step.requested_saves import RequestedSaves
from phalanx.train.step.save_schedule import SaveSchedule
from phalanx.train.trial.methods import TrialMethods
from phalanx.train.trial.reporting import TrialReporter

# The interval between agreements to stop and to save: with a collective in every step, the host
# would wait for the device each time.
_AGREE_EVERY_S = 0.5
_HEARTBEAT_S = 600
_MOST_STEPS = 100_000


def start(given: Mapping[str, Any], options: Mapping[str, Any]) -> JaxRun:
    """Connect to the other processes and build the run; see `phalanx.train.frameworks.jax.init`."""
    info = context.with_checkpoints(context.read(), given)
    ramp = _ramp(info, {**options, **info.training})
    failure.install(info.error_file)
    if info.launched and info.world_size > 1:
        jax.distributed.initialize(
            coordinator_address=f"{info.master[0]}:{info.master[1]}",
            num_processes=info.world_size,
            process_id=info.rank,
            cluster_detection_method="deactivate",
            # The platform detects dead processes; one that only stalls must not end the others.
            heartbeat_timeout_seconds=_HEARTBEAT_S,
        )
    clock = SystemClock()
    # After JAX, which takes SIGTERM for itself.
    stop = StopSignal(clock)
    stop.install()
    report = report_to(info.report_file, clock.now)
    stacks.install_handler(info.report_file)
    processes: Processes = JaxProcesses() if info.world_size > 1 else SingleProcess()
    saver = JaxSaver()
    if info.checkpoint_dir is not None:
        storage = storage_for(info, report, ProcessChannel(processes))
        disk = checkpoint.Disk()
        saver = JaxCheckpoints(
            info.checkpoint_dir, info, processes, report, clock, disk, storage, stop.pause
        )
    return JaxRun(info, processes, saver, report, clock, stop, ramp)


def _ramp(info: RankInfo, options: Mapping[str, Any]) -> Ramp:
    """The factor of the learning rate by step. Raises SpecInvalid."""
    scale, steps = options["scale_lr"], options["warmup_steps"]
    problems = []
    if scale not in LR_SCALES:
        problems.append(Problem("scale_lr", f"must be one of {', '.join(LR_SCALES)}", scale))
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        problems.append(Problem("warmup_steps", "must be a whole number, at least 0", steps))
    if problems:
        raise SpecInvalid(problems)
    return Ramp(1.0, world_factor(scale, info.reference_world), 0, steps)


class JaxRun(TrialMethods):
    """One process's view of a training run. Made by `phalanx.train.frameworks.jax.init`."""

    def __init__(
        self,
        info: RankInfo,
        processes: Processes,
        saver: JaxSaver,
        report: Report,
        clock: Clock,
        stop: StopSignal,
        ramp: Ramp,
    ) -> None:
        self._ramp = ramp
        self.rank, self.world_size, self.is_main = info.rank, info.world_size, info.is_main
        self.step = 0
        self._info, self._processes, self._saver = info, processes, saver
        self._report, self._clock, self._stop = report, clock, stop
        self._journal = Journal(report)
        channel = ProcessChannel(processes)
        self._trial = TrialReporter(info, channel, report, stop, clock, pauses=False)
        self._progress_step = lambda: self.step + 1
        self._stopping = self._closed = False
        self._tree: Any = None
        self._agree_at = 1
        self._agreed_s, self._agreed_step = clock.monotonic(), 0
        self._schedule = SaveSchedule(info, clock.monotonic(), clock.now())
        self._requested = RequestedSaves(info, report)
        atexit.register(self._close)

    @property
    def lr_factor(self) -> float:
        """What the script multiplies the learning rate of this step by; 1 without `scale_lr`.

        It depends on the step and on the ranks of the job's first start alone, so a resume keeps it.
        """
        return self._ramp.at(self.step)

    def restore(self, like: Any) -> Any:
        """Return the newest committed tree, structured and sharded like `like`, or `like` itself.

        Call it on every process, before `steps`. Raises RestoreMismatch if the structure differs.
        """
        found = self._saver.restore(like)
        if found is None:
            return like
        tree, manifest = found
        self.step = self._agreed_step = manifest.step
        self._schedule.resume(self.step)
        self._agree_at = self.step + 1
        return tree

    def steps(self, num: int) -> Iterator[int]:
        """Steps 0 to `num` - 1, beginning behind the last one that was committed; saves at the end.

        Raises UserError when the loop's body did not call `commit`; FinalCheckpointNotSaved.
        """
        self._report.write(PhaseRecord("ready"))
        while self.step < num:
            step = self.step
            yield step
            if self.step != step + 1:
                raise UserError(
                    f"step {step} was not committed",
                    "call run.commit(state) once, at the end of the loop's body",
                )
        unsaved = self._save_last()
        self._journal.flush()
        if unsaved and self._info.checkpoint.on_final_failure == "fail":
            raise FinalCheckpointNotSaved(unsaved)
        self._report.write(DoneRecord(self.step, unsaved))
        self._close()

    def _save_last(self) -> str:
        """Save what was not saved; returns why that failed, the same on all processes."""
        self._saver.commit()
        if self._tree is None or self._saver.committed_step == self.step:
            return ""

        def save() -> bool:
            self._save("final")
            return self._saver.committed_step == self.step

        return self._saver.insist(save, self.step)

    def commit(self, tree: Any) -> None:
        """End a step; a resume begins with `tree`.

        Saves the tree when a save is due, and ends all processes together on a stop request.
        """
        self._tree = tree
        self.step += 1
        self._report.write(StepRecord(step=self.step, epoch=0, consumed=0))
        self._journal.flush()
        if (why := self._schedule.reason_at(self.step, agreed=False)) is not None:
            self._save(why)
        if self.step >= self._agree_at:
            self._agree()

    def log(self, **values: Any) -> None:
        """Report numbers of this step. Arrays are read when the step is committed."""
        self._journal.log(self.step + 1, values)

    def should_stop(self) -> bool:
        """Return whether all processes have agreed to stop; `commit` then ends the script."""
        return self._stopping

    def checkpoint(self) -> None:
        """Save the last committed tree now. Call it on every process."""
        if self._tree is not None:
            self._save("asked")

    # -- agreement ---------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Exchange requests to stop, saves that are due, and whether the last save is written."""
        now = self._clock.monotonic()
        took_s = max(1e-6, (now - self._agreed_s) / max(1, self.step - self._agreed_step))
        ahead = min(_MOST_STEPS, max(1, int(_AGREE_EVERY_S / took_s)))
        due = self._requested.pending() or self._schedule.proposes(now)
        stopping, written = self._stop.at is not None, self._saver.written
        rows = self._processes.numbers([int(stopping), int(due), int(written), ahead])
        self._agreed_s, self._agreed_step = now, self.step
        # Rank 0 decides when the next exchange is.
        self._agree_at = self.step + rows[0][3]
        if any(row[0] for row in rows):
            self._leave()
        if self._saver.under_way and all(row[2] for row in rows):
            self._saver.commit()
        if rows[0][1] and self._saver.saves:
            self._save("every")
        elif rows[0][1]:
            self._requested.begun(self.step, ok=False)

    def _save(self, why: str) -> None:
        self._journal.flush()
        self._schedule.begin()
        began = self._clock.monotonic()
        self._saver.begin(self._tree, self.step, why, self._journal.latest)
        if not self._info.checkpoint.background or why in ("final", "asked"):
            self._saver.commit()
        now = self._clock.monotonic()
        self._schedule.saved(
            self.step,
            now=now,
            stall_s=now - began,
            write_s=self._saver.estimate_s,
            wall_us=self._clock.now(),
        )
        self._requested.begun(self.step, ok=self._saver.saves)

    def _leave(self) -> None:
        """Save if there is time, report it, and end the script, all processes at one step."""
        self._stopping = True
        left_s = self._stop.left_s(self._info.grace_s)
        fits = self._saver.saves and left_s >= self._saver.estimate_s
        rows = self._processes.numbers([int(fits)])
        saved = (
            self._saver.under_way
            and self._saver.commit()
            and self._schedule.saved_step == self.step
        )
        if all(row[0] for row in rows) and not saved:
            self._saver.begin(self._tree, self.step, "stop", self._journal.latest)
            saved = self._saver.commit()
        self._journal.flush()
        self._report.write(StoppedRecord(saved=saved, step=self.step))
        raise SystemExit(0)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            atexit.unregister(self._close)
            self._journal.flush()
            self._saver.close()
            self._report.close()
            self._stop.remove()
