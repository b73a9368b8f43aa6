"""The course of a run: what happens at each micro-batch, each optimizer step, each pass.

The optimizer's step commits; its snapshot is taken at the next call of the loader's iterator, when
`sched.step`, `zero_grad` and the user's own lines have run. Requests (stop, save) are proposed before a
step's gradients are reduced and agreed after, and act at that next call, on all ranks alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phalanx.core.contract.records import (
    DataRecord,
    LedgerRecord,
    PhaseRecord,
    StepRecord,
    StoppedRecord,
)
from phalanx.core.training import cadence, control
from phalanx.core.training.batches import BatchPlan, Share
from phalanx.core.training.checkpoints import Position
from phalanx.core.training.guards import GuardState
from phalanx.kit.clock import Clock
from phalanx.train.gang import randomness
from phalanx.train.gang.agreement import Agreement, LocalAgreement
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Journal, Report
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.observe.profiling import NoProfiling, Profiling
from phalanx.train.observe.timing import COMPUTE, DATA, OUTSIDE, REST, STALL, NoTiming, Timing
from phalanx.train.state.saving import Saver, SaveRequest


class Loop:
    """Where training is. One per run; the loader and the optimizer call it."""

    def __init__(
        self,
        info: RankInfo,
        saver: Saver,
        channel: ControlChannel,
        report: Report,
        clock: Clock,
        stop: StopSignal,
    ) -> None:
        self.step = 0
        self.position = Position()
        self.agreed = 0
        self.stopping = False
        self.speaks = True
        self.plan: BatchPlan | None = None
        self.data: dict[str, Any] = {}
        self.num_epochs: int | None = None
        self.journal = Journal(report)
        self.timing: Timing = NoTiming()
        self.profiling: Profiling = NoProfiling()
        self.agreement: Agreement = LocalAgreement()
        self.state: Callable[[], Any] = dict
        self.on_ready: Callable[[], Agreement] = LocalAgreement
        self.on_share: Callable[[Share, bool], None] = _ignore_share
        self.on_commit: Callable[[], None] = _nothing
        self.on_pass_end: Callable[[], None] = _nothing
        self.on_first_step: Callable[[], None] = _nothing
        self.on_try: Callable[[], None] = _nothing
        self.on_step_over: Callable[[], None] = _nothing
        self.on_values: Callable[[], None] = _nothing
        self.on_roll_back: Callable[[], None] = _nothing
        self.wishes: Callable[[], int] = _no_wish
        self.guard_state = GuardState()
        self.repeats = self.keeps_batches = False
        self.recent: deque[tuple[int, int, int, int]] = deque(maxlen=8)
        self.resume_rng: bytes | None = None
        self.committed_any = False
        self._info, self._saver, self._channel = info, saver, channel
        self._report, self._clock, self._stop = report, clock, stop
        self._share: Share | None = None
        self._committed = False
        self._tick = 0
        self._step_open = False
        self._slices: list[tuple[int, int]] = []
        self._passes_begun = 0
        self._asked = False
        self._began = False
        self._rng_at_end: bytes | None = None
        self._saved_step = -1
        self._best: float | None = None
        self._improved = False
        self._next_save_at = clock.monotonic() + (info.checkpoint.every.seconds or 0.0)

    # -- the loader's side -----------------------------------------------------------------------

    def start_pass(self) -> tuple[int, int] | None:
        """(pass, position) to begin at, or None when an earlier generation already did this pass."""
        mine = self._passes_begun
        self._passes_begun += 1
        self._begin_reporting()
        self.timing.enter(DATA)
        if mine < self.position.epoch_pass:
            return None
        if mine > self.position.epoch_pass:
            self.position = replace(
                self.position,
                epoch_pass=mine,
                total_passes=self.position.total_passes + 1,
                consumed=0,
            )
        return self.position.total_passes, self.position.consumed

    def start_epoch(self, epoch: int) -> None:
        """The user's next epoch; the first one of a generation goes on where it was."""
        if epoch != self.position.epoch:
            self.position = Position(epoch, 0, self.position.total_passes + 1, 0)
            self._passes_begun = 0

    def begin(self, share: Share) -> None:
        """A micro-batch is about to be given out."""
        self.timing.enter(COMPUTE)
        self.timing.took(0 if share.spare else share.hi - share.lo)
        if self.resume_rng is not None:
            self._take_up_rng()
        self._rng_at_end = None
        first = not self._step_open
        self._step_open = True
        self._share = share
        if not share.spare:
            self._slices.append((share.lo, share.hi))
        self.on_share(share, first)
        if share.last:
            self.agreement.propose(self._tick + 1, self._requests())

    def boundary(self) -> None:
        """The previous micro-batch is finished: the one place to save and to leave."""
        if not self._committed:
            self.timing.enter(DATA)
            return
        self.on_step_over()
        self._committed = False
        self._step_open = False
        self._share = None
        if self.agreed & control.ROLL_BACK:
            self.journal.flush()
            self.on_roll_back()
        if self.agreed & control.STOP:
            self._leave()
        every = self._info.checkpoint.every.steps
        if self._asked:
            self.save("asked")
        elif self.agreed & control.SAVE or (every and self.step % every == 0):
            self.save("every")
        begins = bool(self.agreed & control.PROFILE)
        self.agreed = 0
        self.profiling.boundary(begins)
        self.timing.enter(DATA)

    def again(self) -> bool:
        """Whether the step in hand is to be tried once more, from its first micro-batch on."""
        if not self.repeats:
            return False
        self.on_step_over()
        self.repeats = self._committed = self._step_open = False
        return True

    def finish_pass(self) -> None:
        """The data came to its end."""
        self.timing.enter(OUTSIDE)
        self._share = None
        if self.resume_rng is not None:
            self._take_up_rng()
        self.on_pass_end()
        if self._saver.saves:
            self._rng_at_end = randomness.capture()
        every = self._info.checkpoint.every.epochs
        due = every and (self.position.total_passes + 1) % every == 0
        if due and self._saved_step != self.step:
            self.save("every")

    def _take_up_rng(self) -> None:
        # Only now: making iterators and fetching the first batch may draw from the generators.
        if self.resume_rng is not None:
            randomness.restore(self.resume_rng)
            self.resume_rng = None

    def _begin_reporting(self) -> None:
        if self._began:
            return
        self._began = True
        self.agreement = self.on_ready()
        self._best = self._saver.best_known() if self._info.is_main else None
        self._report.write(PhaseRecord("ready"))
        if self._info.is_main and self.plan is not None:
            self._report.write(
                DataRecord(
                    num_samples=self.plan.usable,
                    global_batch=self.plan.step_batch,
                    drop_last=self.plan.drop_last,
                    epochs=self.num_epochs,
                    epoch=self.position.total_passes,
                    position=self.position.consumed,
                )
            )

    # -- the optimizer's side --------------------------------------------------------------------

    def may_step(self) -> bool:
        """Whether the micro-batch in hand ends a step."""
        return self._share is None or self._share.last

    @property
    def accumulates(self) -> bool:
        """Whether a step takes several micro-batches."""
        return self.plan is not None and self.plan.accumulates

    @property
    def committed(self) -> bool:
        """Whether an optimizer has already applied the step in hand."""
        return self._committed

    @property
    def interval(self) -> tuple[int, int, int] | None:
        """Pass and positions of the step in hand over all ranks; None without a loader."""
        if self._share is None:
            return None
        return self.position.total_passes, self.position.consumed, self._share.end

    def repeat(self) -> bool:
        """Have the step in hand tried once more; says whether that is possible."""
        self.repeats = self._share is not None and not self._committed
        return self.repeats

    def commit(self) -> None:
        """An optimizer has stepped. Several may, between two calls of the loader: it is one step."""
        self.timing.enter(REST)
        if self._committed:
            return
        self._committed = True
        share = self._share
        if share is not None:
            self._tick += 1
            self.agreed |= self.agreement.agree(self._tick)
            self.stopping = self.stopping or bool(self.agreed & control.STOP)
        if self.repeats:
            self._slices.clear()
            self.on_try()
            return
        self.step += 1
        self.timing.stepped(self.step)
        if share is not None:
            begun = self.position.consumed
            self.recent.append((self.step, self.position.total_passes, begun, share.end))
            self.position = replace(self.position, consumed=share.end)
        else:
            self._committed = False
        self.on_commit()
        self._report_step()
        if not self.committed_any:
            self.committed_any = True
            self.on_first_step()
        self.journal.flush()
        self.on_values()
        self._watch_best()
        if share is None:
            # No loader will come back to say so.
            self.on_step_over()

    def _report_step(self) -> None:
        epoch = self.position.total_passes
        # Ranks that share samples have used them once between them.
        for lo, hi in self._slices if self.speaks else ():
            self._report.write(LedgerRecord(step=self.step, epoch=epoch, lo=lo, hi=hi))
        self._slices.clear()
        self._report.write(StepRecord(step=self.step, epoch=epoch, consumed=self.position.consumed))

    def _watch_best(self) -> None:
        best = self._info.checkpoint.keep.best
        if best is None or not self._info.is_main:
            return
        value = self.journal.latest.get(best.metric)
        if isinstance(value, int | float) and best.better(float(value), self._best):
            self._best = float(value)
            self._improved = True

    def _requests(self) -> int:
        requests = self.wishes()
        if self._stop.at is not None:
            requests |= control.STOP
        if self.profiling.asked():
            requests |= control.PROFILE
        if self._info.is_main and self._saver.saves:
            every = self._info.checkpoint.every.seconds
            if self._improved or (
                every is not None and self._clock.monotonic() >= self._next_save_at
            ):
                requests |= control.SAVE
        return requests

    # -- saving and leaving ----------------------------------------------------------------------

    def ask(self) -> None:
        """Save at the next snapshot: now between passes, else at the loader's next call."""
        if self._share is not None or self._committed:
            self._asked = True
        else:
            self.save("asked")

    def save(self, why: str) -> bool:
        """Save now; every rank comes here at the same step. On rank 0, says whether it worked."""
        self._asked = self._improved = False
        if not self._saver.saves:
            return False
        self.journal.flush()
        moment = SaveRequest(
            step=self.step,
            position=self.position,
            why=why,
            rng=self._rng_at_end or randomness.capture(),
            global_batch=self.plan.step_batch if self.plan is not None else None,
            metrics=self.journal.latest,
            data=self.data,
        )
        section = self.timing.enter(STALL)
        began = self._clock.monotonic()
        done = self._saver.save(self.state, moment)
        now = self._clock.monotonic()
        self.timing.enter(section)
        if done:
            self._saved_step = self.step
        self._next_save_at = now + self._interval_s(now - began)
        return done

    def _interval_s(self, stall_s: float) -> float:
        """Until the next save that time asks for, after one for which training stood for `stall_s`."""
        every, info = self._info.checkpoint.every, self._info
        if not every.auto:
            return every.seconds or 0.0
        began_at = info.job_started_at
        run_s = 0.0 if began_at is None else (self._clock.now() - began_at) / 1e6
        between_s = cadence.mean_time_between_failures_s(info.restarts, run_s)
        return cadence.interval_s(stall_s, self._saver.estimate_s, between_s)

    def _leave(self) -> None:
        """Save if there is time, say so, and end the script: all ranks at the same step."""
        saved = False
        if self._fits_the_grace():
            there = self._saved_step == self.step and self._saver.wait()
            saved = there or self.save("stop")
        # Only rank 0 knows whether the disk took it; nobody leaves before it does.
        saved = self._channel.broadcast("saved" if saved else "") == "saved"
        self.journal.flush()
        self.timing.flush()
        self._report.write(StoppedRecord(saved=saved, step=self.step))
        raise SystemExit(0)

    def _fits_the_grace(self) -> bool:
        """Whether a save is likely to end in time; the same answer on all ranks.

        The signal may have come to any rank, how long a save takes only rank 0 knows.
        """
        left = math.inf
        if self._stop.at is not None:
            left = self._info.grace_s - (self._clock.monotonic() - self._stop.at)
        everybody = [float(one) for one in self._channel.gather(repr(left).encode())]
        fits = bool(everybody) and min(everybody) >= self._saver.estimate_s
        return self._channel.broadcast("save" if fits else "") == "save"


def _nothing() -> None:
    """No one listens."""


def _no_wish() -> int:
    """Nothing is asked for."""
    return 0


def _ignore_share(share: Share, first: bool) -> None:
    """No one listens."""
