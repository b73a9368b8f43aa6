"""The training step, and the boundary between two steps.

The loader calls `start_pass`, `boundary`, `begin` and `finish_pass`; the script calls `backward`; the
replaced `optimizer.step` calls `step`. A step is: reduce, unscale, judge, clip, rate, commit. What it
committed is saved at the next `boundary`, when `scheduler.step`, `zero_grad` and the script's own lines
have run; there, too, all ranks roll back or leave together. Requests are proposed before the gradients
of a step are reduced and agreed after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from phalanx.core.contract.records import PhaseRecord, StoppedRecord
from phalanx.core.training import control
from phalanx.core.training.batches import Share
from phalanx.train.gang import randomness
from phalanx.train.gang.agreement import Agreement, LocalAgreement
from phalanx.train.gang.report import Journal
from phalanx.train.numerics import gradients
from phalanx.train.numerics.compression import Compressors
from phalanx.train.numerics.local_sgd.rounds import Rounds
from phalanx.train.numerics.precision import Scale
from phalanx.train.observe.profiling import Profiler
from phalanx.train.observe.stragglers import Stragglers
from phalanx.train.observe.timing import (
    COMPUTE,
    DATA,
    OPTIMIZER,
    OUTSIDE,
    REST,
    STALL,
    CurrentTiming,
)
from phalanx.train.parallel.replica import GradientScale
from phalanx.train.parallel.strategies import Strategy
from phalanx.train.state import restoring
from phalanx.train.state.committer import FINAL
from phalanx.train.state.saving import SaveRequest
from phalanx.train.step.divergence import LossGuard
from phalanx.train.step.guard import StepGuard, StepVerdict
from phalanx.train.step.policies import RunComponents, TrainingPolicies
from phalanx.train.step.progress import Progress
from phalanx.train.step.requested_saves import RequestedSaves
from phalanx.train.step.save_schedule import SaveSchedule
from phalanx.train.step.trained import TrainedObjects
from phalanx.train.trial.reporting import TrialReporter


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """What the engine is made of, beside the components of the run."""

    progress: Progress  # the current step and position in the data
    #: metrics that the script logs
    journal: Journal
    timing: CurrentTiming  # of the sections of a step
    profiling: Profiler  # of a few steps, on request
    trained: TrainedObjects  # models, optimizers, schedulers and tracked objects
    #: how ranks hold the model, and reduce its gradients
    strategy: Strategy
    compressors: Compressors  # compression of gradients, by replica
    #: exchanges of weights, where gradients are not reduced
    rounds: Rounds
    #: the weight of this rank's part of a batch
    share_scale: GradientScale
    #: the factor of fp16 losses
    loss_scale: Scale
    guard: StepGuard  # against gradients that are not finite
    losses: LossGuard  # guard against losses that jump
    trial: TrialReporter  # the trial of a study that the run is
    policies: TrainingPolicies  # precision, batch size and learning rate
    stragglers: Stragglers  # comparison of the ranks' compute times
    schedule: SaveSchedule  # decides when to save
    requested: RequestedSaves  # requests of users to save
    #: training begins: returns the agreement of the gang; collective
    start: Callable[[], Agreement]
    #: the first step is done
    on_first_step: Callable[[], None]
    #: the trial has reached its target between two steps; collective
    at_target: Callable[[], None]


class StepEngine:
    """Runs steps, and acts between them. One per run; every rank makes the same calls."""

    def __init__(self, components: RunComponents, parts: StepParts) -> None:
        self.keeps_batches = parts.guard.enabled
        self.stopping = False
        self._components, self._channel = components, components.connection.channel
        self._saver, self._report = components.saver, components.report
        self._parts, self._progress, self._timing = parts, parts.progress, parts.timing
        # Of ranks that share samples, one reports them.
        self._reports_samples = components.layout.speaks(components.info.rank)
        self._agreement: Agreement = LocalAgreement()
        self._agreed = self._tick = 0
        self._began = self._committed_any = False
        self._tokens: float | None = None
        self._resume_rng: bytes | None = None
        self._rng_at_end: bytes | None = None

    # -- the loader: micro-batches ---------------------------------------------------------------

    def start_pass(self) -> tuple[int, int] | None:
        """Return (pass, position) to begin at; None when an earlier generation did this pass already."""
        self._begin_training()
        self._timing.current.enter(DATA)
        return self._progress.start_pass()

    def begin(self, share: Share) -> None:
        """Prepare for a micro-batch, which is about to be given out."""
        parts = self._parts
        self._timing.current.enter(COMPUTE)
        self._timing.current.took(0 if share.spare else share.hi - share.lo)
        self._restore_rng()
        self._rng_at_end = None
        first = self._progress.begin(share)
        parts.share_scale.set(share.weight)
        if first:
            parts.guard.begin()
        parts.stragglers.began()
        parts.strategy.start_share(parts.trained.models, first, share.last)
        if share.last:
            self._agreement.propose(self._tick + 1, self._requests())

    def again(self) -> bool:
        """Whether the step in hand is computed once more, from its first micro-batch on."""
        if not self._progress.repeating:
            return False
        self._settle()
        self._progress.restart_step()
        return True

    def finish_pass(self) -> None:
        """End a pass: the data came to its end."""
        parts, progress = self._parts, self._progress
        self._timing.current.enter(OUTSIDE)
        progress.finish_pass()
        self._restore_rng()
        parts.share_scale.set(1.0)
        parts.strategy.send_buffers(parts.trained.models)
        if self._saver.saves:
            self._rng_at_end = randomness.capture()
        if parts.schedule.due_after_pass(progress.position.total_passes + 1, progress.step):
            self.save("every")

    def backward(self, loss: torch.Tensor, weight: float | None = None) -> None:
        """Run `loss.backward()`, scaled for fp16 and weighted by a number of tokens, if given."""
        scale = self._parts.share_scale
        if weight is None:
            self._parts.loss_scale.scaled(loss).backward()  # type: ignore[no-untyped-call]
            return
        usual = scale.factor
        mine = 0.0 if usual == 0.0 else float(weight)
        self._tokens = (self._tokens or 0.0) + mine
        scale.set(mine)
        self._parts.loss_scale.scaled(loss).backward()  # type: ignore[no-untyped-call]
        scale.set(usual)

    def loss_factor(self) -> float:
        """Return what the loss of the micro-batch in hand is multiplied by."""
        scaled = self._parts.loss_scale.scaled(torch.ones(()))
        return self._parts.share_scale.factor * float(scaled)

    # -- the optimizer: one step -----------------------------------------------------------------

    def step(self, optimizer: Optimizer, update: Callable[[], Any]) -> Any:
        """Take the optimizer's step, `update`; None inside an accumulation, or where it is refused."""
        if not self._progress.ends_step:
            return None
        self._timing.current.enter(OPTIMIZER)
        result = None if self._progress.repeating else self._apply(optimizer, update)
        self._commit()
        return result

    def _apply(self, optimizer: Optimizer, update: Callable[[], Any]) -> Any:
        guard, clip = self._parts.guard, self._components.options.clip
        parameters = restoring.parameters_of(optimizer)
        self.finish_gradients(parameters)
        if clip is not None or guard.needs_norm:
            norm = self._parts.strategy.norm(parameters)
            if guard.needs_norm and guard.judge(parameters, norm) is not StepVerdict.ACCEPT:
                return None
            if clip is not None:
                gradients.clip(parameters, clip, norm)
        with self._parts.policies.rate(optimizer):
            return update()

    def finish_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Divide by the tokens of all ranks, and by the fp16 scale: once for each step."""
        self._reduce_tokens()
        self._parts.loss_scale.unscale(parameters)

    def _reduce_tokens(self) -> None:
        if self._tokens is None:
            return
        parts = self._parts
        mine, self._tokens = self._tokens, None
        total, places = mine, 1
        if not parts.rounds.is_local:
            total = self._channel.total([mine if self._reports_samples else 0.0])[0]
            places = self._components.layout.num_places
        if total:
            gradients.scale(parts.trained.models, places / total)

    def _commit(self) -> None:
        """Count the step. Several optimizers may step between two calls of the loader: one step."""
        parts, progress = self._parts, self._progress
        self._timing.current.enter(REST)
        if progress.committed:
            return
        progress.mark_committed()
        with_loader = progress.share is not None
        if with_loader:
            self._tick += 1
            self._agreed |= self._agreement.agree(self._tick)
            self.stopping = self.stopping or bool(self._agreed & control.STOP)
        if progress.repeating:
            progress.slices.clear()
            parts.trained.gradients_spent()
            return
        progress.advance()
        self._timing.current.stepped(progress.step)
        parts.trained.step_committed(parts.guard.applied)
        parts.stragglers.stepped()
        for record in progress.step_records(self._reports_samples):
            self._report.write(record)
        if not self._committed_any:
            self._committed_any = True
            parts.on_first_step()
        parts.journal.flush()
        parts.losses.observe()
        if self._components.info.is_main:
            parts.schedule.observe(parts.journal.latest)
        if not with_loader:  # no call of a loader will follow
            self._settle()

    def _settle(self) -> None:
        """End the step, or a try of it, after the script's own lines."""
        parts, repeating = self._parts, self._progress.repeating
        parts.compressors.settle(parts.guard.applied and not repeating)
        parts.guard.settle()
        if not repeating:
            parts.rounds.step_over(self._progress.step)

    # -- the boundary: roll back, leave, save ----------------------------------------------------

    def boundary(self) -> None:
        """Act between two steps: the one place to roll back, to leave and to save."""
        parts, progress = self._parts, self._progress
        if not progress.committed:
            self._timing.current.enter(DATA)
            return
        self._settle()
        progress.end_step()
        agreed, self._agreed = self._agreed, 0
        if agreed & control.ROLL_BACK:
            parts.journal.flush()
            parts.losses.act()
        if agreed & control.STOP:
            self._leave()
        why = parts.schedule.reason_at(progress.step, bool(agreed & control.SAVE))
        if why is not None:
            parts.requested.begun(progress.step, self.save(parts.requested.reason(why)))
        if parts.trial.contract.unit == "step" and parts.trial.is_reached(progress.step):
            parts.at_target()
        parts.profiling.boundary(bool(agreed & control.PROFILE))
        self._timing.current.enter(DATA)

    def _requests(self) -> int:
        """Return what this rank asks all ranks to do at the next boundary."""
        parts = self._parts
        requests = parts.losses.requests()
        if self._components.stop.at is not None:
            requests |= control.STOP
        if parts.profiling.asked():
            requests |= control.PROFILE
        due = self._saver.saves and parts.schedule.proposes(self._components.clock.monotonic())
        if self._components.info.is_main and (due or parts.requested.pending()):
            requests |= control.SAVE
        return requests

    def request_save(self) -> None:
        """Save at the next boundary; now, between passes over the data."""
        if self._progress.share is not None or self._progress.committed:
            self._parts.schedule.request()
        else:
            self.save("asked")

    def save(self, why: str) -> bool:
        """Save now. Collective; on rank 0, returns whether it worked, or has begun."""
        parts, progress = self._parts, self._progress
        parts.schedule.begin()
        if not self._saver.saves:
            return False
        parts.journal.flush()
        request = SaveRequest(
            step=progress.step,
            position=progress.position,
            why=why,
            rng=self._rng_at_end or randomness.capture(),
            global_batch=progress.plan.step_batch if progress.plan is not None else None,
            metrics=parts.journal.latest,
            data=progress.data,
        )
        section = self._timing.current.enter(STALL)
        began = self._components.clock.monotonic()
        done = self._saver.save(self.state, request)
        now = self._components.clock.monotonic()
        self._timing.current.enter(section)
        parts.schedule.saved(
            progress.step if done else None,
            now=now,
            stall_s=now - began,
            write_s=self._saver.estimate_s,
            wall_us=self._components.clock.now(),
        )
        return done

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds."""
        state = self._parts.trained.state(self._parts.policies.state_dict)
        trial = self._parts.trial
        return state | {"trial": trial.state_dict()} if trial.contract.is_trial else state

    def _leave(self) -> None:
        """Save if there is time, and end the script: all ranks at the same step."""
        step, saved = self._progress.step, False
        if _fits_the_grace(self._components):
            there = self._parts.schedule.saved_step == step and self._saver.wait()
            saved = there or self.save("stop")
        # Only rank 0 has the result of the disk; no rank leaves before it.
        saved = self._channel.broadcast("saved" if saved else "") == "saved"
        self.flush()
        self._report.write(StoppedRecord(saved=saved, step=step))
        raise SystemExit(0)

    def resume_rng(self, rng: bytes) -> None:
        """Restore these generators when the first batch has been fetched."""
        self._resume_rng = rng

    def begin_epoch(self) -> None:
        """Restore the generators now, where the run resumes at the beginning of an epoch."""
        position = self._progress.position
        if position.consumed == 0 and position.epoch_pass == 0:
            self._restore_rng()

    def forget_pass(self) -> None:
        """Save the generators as they are now, not as they were at the end of the last pass."""
        self._rng_at_end = None

    def _restore_rng(self) -> None:
        # Not earlier: making iterators and fetching the first batch may draw from the generators.
        if self._resume_rng is not None:
            randomness.restore(self._resume_rng)
            self._resume_rng = None

    def _begin_training(self) -> None:
        if self._began:
            return
        self._began = True
        parts, progress = self._parts, self._progress
        self._agreement = parts.start()
        if self._components.info.is_main:
            parts.schedule.start_best(self._saver.best_known())
        self._report.write(PhaseRecord("ready"))
        if self._components.info.is_main and (record := progress.data_record()) is not None:
            self._report.write(record)

    def finish(self) -> str:
        """Exchange what is due, and save what was not saved; returns why that failed. Collective."""
        if self._parts.rounds.finish(self._progress.step) or self._committed_any:
            self.save(FINAL)
        return self._saver.problem

    def flush(self) -> None:
        """Report what has not been reported yet."""
        self._parts.journal.flush()
        self._timing.current.flush()

    def close(self) -> None:
        """End the agreement with the other ranks."""
        self._agreement.close()


def _fits_the_grace(components: RunComponents) -> bool:
    """Whether a save is likely to end in time; the same answer on all ranks.

    Any rank may have received the signal; only rank 0 measures how long a save takes.
    """
    channel, left = components.connection.channel, components.stop.left_s(components.info.grace_s)
    gathered = [float(one) for one in channel.gather(repr(left).encode())]
    fits = bool(gathered) and min(gathered) >= components.saver.estimate_s
    return channel.broadcast("save" if fits else "") == "save"
