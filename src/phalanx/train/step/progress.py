"""Where training is: the step, the position in the data, and the step in hand. No torch, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from phalanx.core.contract.records import DataRecord, LedgerRecord, Record, StepRecord
from phalanx.core.training.batches import BatchPlan, Share
from phalanx.core.training.checkpoints import Position
from phalanx.core.training.guards import GuardState

_RECENT_STEPS = 8


class Progress:
    """The position of a run. Others read the attributes; only the methods change them."""

    def __init__(self) -> None:
        self.step = 0
        """Optimizer steps committed since the job began."""
        self.position = Position()
        self.plan: BatchPlan | None = None
        """How batches are cut; None without a training loader."""
        self.data: Mapping[str, Any] = {}
        """What a manifest says about the data set."""
        self.num_epochs: int | None = None
        self.guard_state = GuardState()
        """What earlier generations learned."""
        self.recent: deque[tuple[int, int, int, int]] = deque(maxlen=_RECENT_STEPS)
        """(step, pass, first position, end) of the newest steps."""
        self.slices: list[tuple[int, int]] = []
        """Positions that this rank used for the step in hand."""
        self.share: Share | None = None
        """The micro-batch in hand; None between passes, and without a loader."""
        self.committed = False
        """Whether an optimizer has applied the step in hand."""
        self.repeating = False
        """Whether the step in hand is computed a second time."""
        self._step_open = False
        self._passes_begun = 0

    def resume(self, step: int, position: Position) -> None:
        """Continue from a checkpoint."""
        self.step, self.position = step, position

    def load(self, plan: BatchPlan, data: Mapping[str, Any]) -> None:
        """Set the training data."""
        self.plan, self.data = plan, data

    def set_num_epochs(self, num: int) -> None:
        """Set the number of epochs that the script asks for."""
        self.num_epochs = num

    def set_guard_state(self, state: GuardState) -> None:
        """Replace what generations learned."""
        self.guard_state = state

    # -- passes over the data --------------------------------------------------------------------

    def start_epoch(self, epoch: int) -> None:
        """Begin the script's next epoch; the first one of a generation continues where it was."""
        if epoch != self.position.epoch:
            self.position = Position(epoch, 0, self.position.total_passes + 1, 0)
            self._passes_begun = 0

    def start_pass(self) -> tuple[int, int] | None:
        """Return (pass, position) to begin at; None when an earlier generation did this pass already."""
        mine = self._passes_begun
        self._passes_begun += 1
        if mine < self.position.epoch_pass:
            return None
        if mine > self.position.epoch_pass:
            total = self.position.total_passes + 1
            self.position = replace(self.position, epoch_pass=mine, total_passes=total, consumed=0)
        return self.position.total_passes, self.position.consumed

    def finish_pass(self) -> None:
        """End the pass: no micro-batch is in hand."""
        self.share = None

    # -- the step in hand ------------------------------------------------------------------------

    def begin(self, share: Share) -> bool:
        """Take a micro-batch; returns whether it is the first of its step."""
        first = not self._step_open
        self._step_open = True
        self.share = share
        if not share.spare:
            self.slices.append((share.lo, share.hi))
        return first

    @property
    def ends_step(self) -> bool:
        """Whether the micro-batch in hand is the last one of its step."""
        return self.share is None or self.share.last

    @property
    def accumulates(self) -> bool:
        """Whether a step takes several micro-batches."""
        return self.plan is not None and self.plan.accumulates

    @property
    def interval(self) -> tuple[int, int, int] | None:
        """Pass and positions of the step in hand over all ranks; None without a loader."""
        if self.share is None:
            return None
        return self.position.total_passes, self.position.consumed, self.share.end

    def repeat(self) -> bool:
        """Compute the step in hand once more; returns whether that is possible."""
        self.repeating = self.share is not None and not self.committed
        return self.repeating

    def mark_committed(self) -> None:
        """Record that an optimizer has stepped; further ones belong to the same step."""
        self.committed = True

    def advance(self) -> None:
        """Count the step in hand, and its samples."""
        self.step += 1
        share = self.share
        if share is None:  # without a loader the step ends here
            self.committed = False
            return
        begun = self.position.consumed
        self.recent.append((self.step, self.position.total_passes, begun, share.end))
        self.position = replace(self.position, consumed=share.end)

    def end_step(self) -> None:
        """Leave the step in hand behind."""
        self.committed = self._step_open = self.repeating = False
        self.share = None

    def restart_step(self) -> None:
        """Begin the step in hand again, with its first micro-batch."""
        self.committed = self._step_open = self.repeating = False
        self.slices.clear()

    # -- records ---------------------------------------------------------------------------------

    def data_record(self) -> DataRecord | None:
        """Return the record of the training data and the position in it; None without a loader."""
        if self.plan is None:
            return None
        return DataRecord(
            num_samples=self.plan.usable,
            global_batch=self.plan.step_batch,
            drop_last=self.plan.drop_last,
            epochs=self.num_epochs,
            epoch=self.position.total_passes,
            position=self.position.consumed,
        )

    def step_records(self, with_samples: bool) -> Iterator[Record]:
        """Yield the records of the step that was counted last, and forget the samples it used."""
        epoch, slices = self.position.total_passes, self.slices[:]
        self.slices.clear()
        for lo, hi in slices if with_samples else ():
            yield LedgerRecord(step=self.step, epoch=epoch, lo=lo, hi=hi)
        yield StepRecord(step=self.step, epoch=epoch, consumed=self.position.consumed)
