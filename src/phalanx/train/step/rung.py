"""The target of a trial: the state is saved, the report names the checkpoint, the ranks wait or leave."""

from __future__ import annotations

from phalanx.core.contract.records import StoppedRecord
from phalanx.core.training.checkpoints import AT_TARGET
from phalanx.train.step.engine import StepEngine, StepParts
from phalanx.train.step.policies import RunComponents


class RungGate:
    """Holds the run at its trial's target. Every rank makes the same calls, at the same position."""

    def __init__(self, components: RunComponents, parts: StepParts, engine: StepEngine) -> None:
        self._components, self._parts, self._engine = components, parts, engine

    def resumed(self) -> None:
        """Apply the parameters of a fork; report and wait again at a target that was reached before."""
        trial, trained = self._parts.trial, self._parts.trained
        trial.options.apply(trained.optimizers, [gate.scheduler for gate in trained.schedules])
        if not trial.waits:
            return
        unit = trial.contract.unit
        done = self._parts.progress.position.epoch if unit == "epoch" else self._parts.progress.step
        if trial.is_reached(done):
            self.pause()
        else:
            trial.send(self._components.saver.path_of(self._parts.progress.step), final=False)

    def epoch_over(self, epoch: int, num: int) -> None:
        """End an epoch of the script; at the target the state is that of the beginning of the next."""
        trial = self._parts.trial
        if trial.contract.unit == "epoch" and trial.is_reached(epoch + 1) and epoch + 1 < num:
            if trial.is_raised():
                return
            self._parts.progress.start_epoch(epoch + 1)
            self._engine.forget_pass()
            self.pause()

    def pause(self) -> None:
        """Save, report and wait; leaves unless the target is raised. Collective."""
        parts, saver, step = self._parts, self._components.saver, self._parts.progress.step
        trial = parts.trial
        if trial.is_raised():
            return
        if trial.saved_step != step:
            self._engine.save(AT_TARGET)
            trial.mark_saved(step)
        saver.wait()
        path = self._components.connection.channel.spread(saver.path_of(step))
        trial.send(path)
        if trial.hold():
            return
        self._engine.flush()
        record = StoppedRecord(saved=bool(path), step=step, target=trial.target)
        self._components.report.write(record)
        raise SystemExit(0)
