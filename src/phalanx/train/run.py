"""The run: what a training script holds in its hand."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from phalanx.core.contract.records import DoneRecord, PhaseRecord, RestoredRecord, WarningRecord
from phalanx.core.training.batches import Share
from phalanx.errors import NotSupported
from phalanx.train.data import fingerprint, ordering
from phalanx.train.data import loader as data
from phalanx.train.gang import randomness
from phalanx.train.gang.agreement import Agreement, agreement_for
from phalanx.train.numerics import gradients, local_sgd
from phalanx.train.numerics.compression import CompressionContext, Compressors
from phalanx.train.observe import communication
from phalanx.train.observe.profiling import Profiler, profile_settings
from phalanx.train.parallel import replica, strategy_choice
from phalanx.train.state import restoring
from phalanx.train.state.checkpoint_reader import Restored, section
from phalanx.train.state.resuming import Resumption
from phalanx.train.step.components import RunComponents
from phalanx.train.step.early_stop import EarlyStopping
from phalanx.train.step.gates import ClearGate, ScheduleGate, gate_model, gate_optimizer
from phalanx.train.step.policies import TrainingPolicies

_RANKS = 5


class Run:
    """One rank's view of a training run. Made by `phalanx.train.init`.

    `device`, `rank`, `world_size` and `is_main` say where it is; batch sizes are for `batch_world` ranks,
    the job's full number. `state` is a dictionary for plain values of the script's own: saved, restored.
    """

    def __init__(self, components: RunComponents) -> None:
        self.state: dict[str, Any] = {}
        self.device = components.device
        self.rank, self.world_size = components.info.rank, components.info.world_size
        self.is_main = components.info.is_main
        self._components, self._info, self._options = (
            components,
            components.info,
            components.options,
        )
        self._loop, self._report = components.loop, components.report
        self._scale = replica.GradientScale()
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self._schedules: list[ScheduleGate] = []
        self._clears: list[ClearGate] = []
        self._tracked: dict[str, Any] = {}
        self._resumption = Resumption(components.saver)
        self._opened = self._closed = self._reported_done = False
        self._tokens: float | None = None
        self._where = "the checkpoint"
        self._stream: data.PositionedLoader | None = None
        self._place = components.layout.place(self.rank)
        self._strategy = strategy_choice.strategy_for(
            components.options,
            components.layout,
            components.info,
            channel=components.connection.channel,
            report=components.report,
            on_choice=components.saver.share_as,
        )
        components.saver.watch(
            self._models, self._optimizers, self._strategy.name, self._strategy.place
        )
        loop = components.loop
        loop.state = self._state_tree
        loop.speaks = components.layout.speaks(self.rank)
        loop.on_ready, loop.on_share = self._ready, self._start_share
        loop.on_commit, loop.on_pass_end = self._committed, self._pass_ended
        loop.on_first_step = self._first_step
        loop.on_try = self._spent
        self._policies = TrainingPolicies(components, self._scale, self._mean_over_tokens)
        self.batch_world = self._policies.batch_world
        self._policies.measure(self._strategy.norm)
        loop.on_step_over = self._step_over
        now = CompressionContext(
            lambda: loop.step, lambda: self._policies.loss_scale, components.report
        )
        self._compressors = Compressors(
            components.options.compression, components.options.seed, now
        )
        self._rounds = local_sgd.rounds_for(
            components.options.sync, components.info, components.report
        )
        loop.profiling = Profiler(
            loop,
            components.info,
            components.connection.channel,
            components.report,
            self._models,
            components.device,
        )
        atexit.register(self._close)

    # -- setting up ------------------------------------------------------------------------------

    def prepare(self, *things: Any) -> Any:
        """Make models, optimizers, schedulers and loaders part of the run; returns as many.

        Models become replicas, optimizers commit, schedulers follow commits, the first loader owns the
        position (further ones, and those prepared while the model is in evaluation mode, are sharded
        for evaluation). Saved state is restored here. Raises RestoreMismatch where it does not fit.
        """
        self._open()
        done = [self._prepare_one(thing) for thing in things]
        self._settle()
        return done[0] if len(done) == 1 else tuple(done)

    def _prepare_one(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module):
            return self._prepare_model(thing)
        if isinstance(thing, Optimizer):
            return self._prepare_optimizer(thing)
        if isinstance(thing, LRScheduler):
            return self._prepare_scheduler(thing)
        if isinstance(thing, DataLoader):
            return self._prepare_loader(thing)
        raise TypeError(
            f"prepare() takes models, optimizers, schedulers and DataLoaders, not"
            f" {type(thing).__name__}; use run.track(name=object) for other state"
        )

    def _prepare_model(self, model: nn.Module) -> nn.Module:
        self._strategy.receive(model, self.device, self._options)
        self._policies.adapt(model)
        prepared = self._strategy.wrap(model, self.device, self._options)
        at = len(self._models)
        compressor = self._compressors.watch(prepared)
        self._rounds.watch(model)

        def place(restored: Restored) -> None:
            if (saved := section(restored, "models", at)) is not None:
                restoring.model(model, saved, self._where)
            if saved := section(restored, "compression", at):
                compressor.load_state_dict(saved)
            self._rounds.restore(at, section(restored, "sync", at))

        self._resumption.put(place)
        self._models.append(prepared)
        self._loop.timing.watch(communication.reducer_probe(prepared, self.device))
        self._strategy.watch(self._scale, prepared)
        if self._policies.may_accumulate:
            self._clears.append(gate_model(prepared, self._loop))
        if self.world_size > 1 and len(self._models) == 1:
            # The same start for every rank's weights, but not the same dropout.
            # Ranks that share samples share their randomness, too.
            randomness.seed_everything(randomness.mix(self._options.seed, *self._luck))
        return prepared

    def _prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._strategy.adopt(optimizer)
        at = len(self._optimizers)

        def place(restored: Restored) -> None:
            if (saved := section(restored, "optimizers", at)) is not None:
                saved = self._rounds.saved_optimizer(saved, optimizer)
                restoring.optimizer(optimizer, saved, self._where)

        self._resumption.put(place)
        self._optimizers.append(optimizer)
        self._clears.append(gate_optimizer(optimizer, self._loop, self._policies.apply))
        return optimizer

    def _prepare_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        gate = ScheduleGate(scheduler)
        at = len(self._schedules)

        def place(restored: Restored) -> None:
            if (saved := section(restored, "schedulers", at)) is not None:
                restoring.anything(scheduler, saved["state"], "the scheduler", self._where)
                gate.due = saved["due"]

        self._resumption.put(place)
        self._schedules.append(gate)
        return scheduler

    def _prepare_loader(self, loader: DataLoader[Any]) -> Any:
        evaluating = bool(self._models) and not self._models[-1].training
        if self._loop.plan is not None or evaluating:
            return self.eval_loader(loader)
        agree = ordering.agreement_over(self._components.connection.channel)
        prepared = data.positioned(
            loader,
            self._loop,
            seed=self._options.seed,
            place=self._place,
            reference_world=self.batch_world,
            accumulate=self._options.accumulate,
            device=self.device,
            pieces=self._policies.pieces,
            skips=self._policies.skips,
            agree=agree,
            parts=self._policies.shares.parts,
            num_samples=self._known_length(),
        )
        self._loop.plan = prepared.plan
        self._stream = prepared
        samples = prepared.plan.num_samples
        self._loop.data = fingerprint.describe(loader.dataset, samples, agree)
        self._policies.follow(prepared.plan)
        self._resumption.put(self._check_data)
        return prepared

    def eval_loader(self, loader: DataLoader[Any]) -> data.EvaluationLoader:
        """A loader over this rank's part of the data, for evaluation: no position, no training.

        Every sample is on exactly one rank; ranks may have different numbers of batches.
        """
        begins = partial(self._report.write, PhaseRecord("evaluating"))
        return data.EvaluationLoader(loader, self._place, self._options.seed, self.device, begins)

    def track(self, **objects: Any) -> None:
        """Save and restore anything else that has `state_dict` and `load_state_dict`."""
        self._open()
        self._tracked.update(objects)

        def place(restored: Restored) -> None:
            saved = restored.state["tracked"]
            for name, thing in objects.items():
                if name in saved:
                    restoring.anything(thing, saved[name], f"run.track({name}=…)", self._where)

        self._resumption.put(place)

    # -- the loop --------------------------------------------------------------------------------

    def epochs(self, num: int) -> Iterator[int]:
        """Epochs 0 to `num` - 1, beginning with the one that was interrupted; saves at the end."""
        self._open()
        self._settle()
        self._loop.num_epochs = num
        for epoch in range(self._loop.position.epoch, num):
            self._loop.start_epoch(epoch)
            yield epoch
        self._end()

    def log(self, **values: Any) -> None:
        """Report numbers of this step. Tensors are kept and read a step later."""
        self._loop.journal.log(self._loop.step, values)

    def should_stop(self) -> bool:
        """Whether all ranks have agreed to stop; the loader leaves by itself at its next call."""
        return self._loop.stopping

    def checkpoint(self) -> None:
        """Save at the next snapshot: the loader's next call, or now when between passes.

        Call it on every rank.
        """
        self._loop.ask()

    def backward(self, loss: torch.Tensor, weight: float | None = None) -> None:
        """`loss.backward()`; with `weight` (a number of tokens) the step's gradient is the mean over

        all tokens of all ranks and micro-batches. Give a weight on every rank and micro-batch, or on none.
        """
        if weight is None:
            self._policies.scaled(loss).backward()  # type: ignore[no-untyped-call]
            return
        usual = self._scale.factor
        mine = 0.0 if usual == 0.0 else float(weight)
        self._tokens = (self._tokens or 0.0) + mine
        self._scale.set(mine)
        self._policies.scaled(loss).backward()  # type: ignore[no-untyped-call]
        self._scale.set(usual)

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, **options: Any
    ) -> torch.Tensor:
        """torch's function, where a step ends; inside an accumulation nothing, and the norm 0."""
        parameters = list(parameters)
        if not self._loop.may_step():
            return torch.zeros(())
        self._policies.finish(parameters)
        if self._strategy.place is None:
            return nn.utils.clip_grad_norm_(parameters, max_norm, **options)
        if options:
            raise NotSupported(f"clip_grad_norm_ with {', '.join(options)} over pipeline stages")
        gradients.clip(parameters, max_norm, norm := self._strategy.norm(parameters))
        return norm

    def pipeline_step(
        self,
        *inputs: torch.Tensor,
        target: Any,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        model: nn.Module | None = None,
    ) -> torch.Tensor:
        """`loss_fn(model(*inputs), target)` and its backward pass; the loss, on every rank.

        Works with any strategy; pipeline stages need it. A batch goes through the stages in micro-batches
        of equal size, so `loss_fn` has to be a mean over its samples. Under `torch.no_grad()` there is no
        backward pass. `model` is the first one that was prepared, if not given.
        """
        model, factor = self._models[0] if model is None else model, self._loss_factor
        return self._strategy.compute(model, inputs, target, loss_fn, self.backward, factor)

    def _loss_factor(self) -> float:
        return self._scale.factor * float(self._policies.scaled(torch.ones(())))

    def profile(self, steps: int = 20, trace: int = 3, extras: Sequence[str] = ()) -> None:
        """Profile the next `steps` steps, then trace `trace` more; call it on every rank.

        Rank 0 says where the time goes and what limits it; the merged trace lies in the folder `profiles`
        beside the checkpoints. `extras` are `memory` and `nvtx`. Raises SpecInvalid.
        """
        self._loop.profiling.start(profile_settings(steps, trace, extras))

    def early_stopping(
        self, patience: int, *, mode: str = "min", min_delta: float = 0.0, name: str = "early"
    ) -> EarlyStopping:
        """Say when a metric stops improving; tracked under `name`. Leave the loop with `break` and

        call `finish`. Raises SpecInvalid.
        """
        made = self._policies.early_stopping(patience, mode, min_delta)
        self.track(**{name: made})
        return made

    def all_reduce_mean(self, value: float | torch.Tensor, weight: float = 1.0) -> float:
        """The mean of `value` over all ranks, each counting `weight` (its number of samples)."""
        top, bottom = self.all_reduce_sum(float(value) * weight, weight)
        return top / bottom if bottom else 0.0

    def all_reduce_sum(self, *values: float | torch.Tensor) -> list[float]:
        """The sum of each value over all ranks; of those that share samples, the first one counts."""
        speaks = self._components.layout.speaks(self.rank)
        mine = [float(value) if speaks else 0.0 for value in values]
        return self._components.connection.channel.total(mine)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The module that was given to `prepare`."""
        return replica.unwrapped(model)

    def outer_weights(self) -> Any:
        """`with run.outer_weights():` models have the weights that all ranks agreed on last.

        For evaluation between exchanges (`sync`); without `sync` they always have them.
        """
        return self._rounds.outer_weights()

    @property
    def step(self) -> int:
        """Optimizer steps committed since the job began."""
        return self._loop.step

    def finish(self) -> None:
        """End the run: a last checkpoint if there is something to save, then leave the groups.

        Not needed with `epochs`, which ends the run by itself. Call it on every rank.
        """
        if not self._reported_done:
            self._end()
        self._close()

    # -- what the loop calls ---------------------------------------------------------------------

    def _ready(self) -> Agreement:
        """Training begins: nothing of the checkpoint may be left over."""
        held: dict[str, Sized] = {"models": self._models, "optimizers": self._optimizers}
        self._resumption.used_up(held | {"schedulers": self._schedules}, self._where)
        reduces = self._strategy.reduces(self._models)
        connection = self._components.connection
        return agreement_for(self._info, connection, self._report, reduces, self._rounds.agreement)

    def _start_share(self, share: Share, first: bool) -> None:
        self._scale.set(share.weight)
        if first:
            self._policies.begin_step()
        self._policies.began()
        self._strategy.start_share(self._models, first, share.last)

    def _mean_over_tokens(self) -> None:
        if self._tokens is None:
            return
        mine, self._tokens, apart = self._tokens, None, self._rounds.is_local
        total, sharers = (mine, 1) if apart else (self.all_reduce_sum(mine)[0], self._place[1])
        if total:
            gradients.scale(self._models, sharers / total)

    def _committed(self) -> None:
        for gate in self._schedules:
            gate.due = gate.due or self._policies.applied
        self._policies.stepped()
        self._spent()

    def _first_step(self) -> None:
        self._components.connection.settle()
        self._components.saver.warm(self._state_tree)

    def _step_over(self) -> None:
        self._compressors.settle(self._policies.applied and not self._loop.repeats)
        self._policies.step_over()
        if not self._loop.repeats:
            self._rounds.step_over(self._loop.step)

    def _spent(self) -> None:
        for clear in self._clears:
            clear.spent = True

    def _pass_ended(self) -> None:
        self._scale.set(1.0)
        self._strategy.send_buffers(self._models)

    # -- state -----------------------------------------------------------------------------------

    def _state_tree(self) -> dict[str, Any]:
        plan = self._loop.plan
        state = {
            "models": [self._rounds.model_state(replica.unwrapped(one)) for one in self._models],
            "optimizers": [self._rounds.optimizer_state(one) for one in self._optimizers],
            "sync": self._rounds.state_dict(),
            "schedulers": [
                {"state": gate.scheduler.state_dict(), "due": gate.due} for gate in self._schedules
            ],
            "tracked": {name: thing.state_dict() for name, thing in self._tracked.items()},
            "state": self.state,
            "care": self._policies.state_dict(),
            "compression": self._compressors.state_dict(),
            "seed": self._options.seed,
            "num_samples": plan.num_samples if plan is not None else None,
            "stream": self._stream.stream_state if self._stream is not None else None,
        }
        return self._strategy.completed(state, self._components.connection.channel)

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        self._policies.open()
        self._resumption.open()
        own = dict(self.state)
        self._resumption.put(lambda restored: self._take_up(restored, own))

    def _take_up(self, restored: Restored, own: Mapping[str, Any]) -> None:
        """All that is not in objects of the script; `own` is what it had put into `state`."""
        manifest, saved = restored.manifest, restored.state
        self._where = f"checkpoint {manifest.name}"
        self._loop.step, self._loop.position = manifest.step, manifest.position
        twin = self._components.layout.twin(self.rank)
        unknown = randomness.initial_state(self._options.seed, *self._luck, manifest.step)
        self._loop.resume_rng = restored.rng_of(twin) or unknown
        self.state.clear()
        self.state.update({**own, **saved["state"]})
        self._policies.load_state_dict(saved.get("care", {}))
        ordering.require_seed(saved["seed"], self._options.seed, self._where)

    def _settle(self) -> None:
        """All ranks agree on what was restored, or restore an older one. Collective."""
        if self._resumption.settle() and self.is_main:
            restored = self._resumption.restored
            assert restored is not None
            manifest, why = restored.manifest, restored.differs or self._rounds.inexact
            self._report.write(
                RestoredRecord(
                    path=str(restored.path),
                    name=manifest.name,
                    step=manifest.step,
                    epoch=manifest.position.total_passes,
                    position=manifest.position.consumed,
                    exact=why is None,
                    why=why,
                )
            )

    @property
    def _luck(self) -> tuple[int, ...]:
        """What tells this rank's random numbers from others': its samples, and its layers."""
        stage = self._components.layout.coordinates(self.rank)["pp"]
        return (_RANKS, self._place[0], stage) if stage else (_RANKS, self._place[0])

    def _known_length(self) -> int | None:
        """An iterable's length as the checkpoint has it: nobody reads the data through again."""
        restored = self._resumption.restored
        return None if restored is None else restored.state.get("num_samples")

    def _check_data(self, restored: Restored) -> None:
        manifest, saved = restored.manifest, restored.state
        before = {"num_samples": saved["num_samples"], **manifest.data}
        if self._options.data_changed == fingerprint.REFUSE:
            fingerprint.require_same(before, self._loop.data, self._where)
        elif found := fingerprint.changes(before, self._loop.data):
            message = f"other data than in {self._where}, as allowed: {'; '.join(found)}"
            self._report.write(WarningRecord(message))
            return
        if self._stream is not None:
            self._stream.take_up(saved.get("stream"))

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._rounds.finish(self._loop.step) or self._loop.committed_any:
            self._loop.save("final")
        self._done()

    def _done(self) -> None:
        if not self._reported_done:
            self._reported_done = True
            self._loop.profiling.finish()
            self._loop.journal.flush()
            self._loop.timing.flush()
            self._report.write(DoneRecord(self._loop.step))

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close)
        self._loop.journal.flush()
        self._components.saver.close()
        self._report.close()
        self._loop.agreement.close()
        self._rounds.close()
        self._components.connection.close()
        self._components.stop.remove()
