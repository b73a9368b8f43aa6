"""Preparation of models, optimizers, schedulers and loaders for a run, with their saved state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from phalanx.core.contract.records import PhaseRecord, RestoredRecord, WarningRecord
from phalanx.train.data import fingerprint, ordering
from phalanx.train.data import loader as data
from phalanx.train.gang import randomness
from phalanx.train.observe import communication
from phalanx.train.state import restoring
from phalanx.train.state.checkpoint_reader import Restored, section
from phalanx.train.state.resuming import Resumption
from phalanx.train.step.engine import StepEngine, StepParts
from phalanx.train.step.gates import ScheduleGate, gate_model, gate_optimizer
from phalanx.train.step.policies import RunComponents

_RANKS = 5


class RunPreparation:
    """Adds objects to a run, and restores each of them from the checkpoint that the run resumes from.

    Every rank makes the same calls.
    """

    def __init__(
        self,
        components: RunComponents,
        parts: StepParts,
        engine: StepEngine,
        resumption: Resumption,
    ) -> None:
        self._components, self._parts, self._engine = components, parts, engine
        self._resumption, self._options = resumption, components.options
        self._trained, self._device = parts.trained, components.device
        self._place = components.layout.place(components.info.rank)
        self._opened = False
        self._opened_at = 0.0

    # -- the checkpoint --------------------------------------------------------------------------

    def open(self) -> None:
        """Find the checkpoint to resume from, once. Collective."""
        if self._opened:
            return
        self._opened, self._opened_at = True, time.monotonic()
        # First: the state of the guards lies beside the checkpoints.
        self._resumption.ready()
        self._parts.policies.open()
        self._resumption.open()
        own = dict(self._trained.user_state)
        self._resumption.put(lambda restored: self._restore_run(restored, own))

    def _restore_run(self, restored: Restored, own: Mapping[str, Any]) -> None:
        """Restore all that is not in objects of the script; `own` is what it had put into `state`."""
        manifest, saved, seed = restored.manifest, restored.state, self._options.seed
        self._parts.progress.resume(manifest.step, manifest.position)
        self._parts.journal.resume(manifest.metrics)
        self._parts.trial.resume(saved.get("trial"), manifest.step)
        twin = self._components.layout.twin(self._components.info.rank)
        initial = randomness.initial_state(seed, *self._rng_path, manifest.step)
        self._engine.resume_rng(restored.rng_of(twin) or initial)
        self._trained.user_state.clear()
        self._trained.user_state.update({**own, **saved["state"]})
        # Checkpoints of earlier versions hold `care`.
        self._parts.policies.load_state_dict(saved.get("policies", saved.get("care", {})))
        ordering.require_seed(saved["seed"], seed, self._resumption.where)

    def settle(self) -> None:
        """Agree on what was restored, or restore an older checkpoint. Collective."""
        if not self._resumption.settle() or not self._components.info.is_main:
            return
        restored = self._resumption.restored
        assert restored is not None
        manifest, why = restored.manifest, restored.differs or self._parts.rounds.inexact
        self._components.report.write(
            RestoredRecord(
                path=restored.place,
                name=manifest.name,
                step=manifest.step,
                epoch=manifest.position.total_passes,
                position=manifest.position.consumed,
                exact=why is None,
                why=why,
                restore_s=round(time.monotonic() - self._opened_at, 6),
            )
        )

    @property
    def _rng_path(self) -> tuple[int, ...]:
        """Return what this rank's random numbers depend on: its samples and its layers."""
        stage = self._components.layout.coordinates(self._components.info.rank)["pp"]
        return (_RANKS, self._place[0], stage) if stage else (_RANKS, self._place[0])

    # -- the objects -----------------------------------------------------------------------------

    def add(self, thing: Any) -> Any:
        """Add one object; returns what the script uses in its place."""
        if isinstance(thing, nn.Module):
            return self._add_model(thing)
        if isinstance(thing, Optimizer):
            return self._add_optimizer(thing)
        if isinstance(thing, LRScheduler):
            return self._add_scheduler(thing)
        if isinstance(thing, DataLoader):
            return self._add_loader(thing)
        raise TypeError(
            f"prepare() takes models, optimizers, schedulers and DataLoaders, not"
            f" {type(thing).__name__}; use run.track(name=object) for other state"
        )

    def _add_model(self, model: nn.Module) -> nn.Module:
        parts, trained, options = self._parts, self._trained, self._options
        parts.strategy.receive(model, self._device, options)
        parts.guard.watch(model)
        parts.stragglers.watch(model)
        parts.policies.adapt(model, self._device)
        prepared = parts.strategy.wrap(model, self._device, options)
        at = len(trained.models)
        compressor = parts.compressors.watch(prepared)
        parts.rounds.watch(model)

        def place(restored: Restored) -> None:
            if (saved := section(restored, "models", at)) is not None:
                restoring.model(model, saved, self._resumption.where)
            if saved := section(restored, "compression", at):
                compressor.load_state_dict(saved)
            parts.rounds.restore(at, section(restored, "sync", at))

        self._resumption.put(place)
        trained.models.append(prepared)
        parts.timing.current.watch(communication.reducer_probe(prepared, self._device))
        parts.strategy.watch(parts.share_scale, prepared)
        if parts.policies.may_accumulate:
            trained.clears.append(gate_model(prepared, parts.progress))
        if self._components.info.world_size > 1 and len(trained.models) == 1:
            # The same start for every rank's weights, but not the same dropout.
            # Ranks that share samples share their randomness, too.
            randomness.seed_everything(randomness.mix(options.seed, *self._rng_path))
        return prepared

    def _add_optimizer(self, optimizer: Optimizer) -> Optimizer:
        parts, trained = self._parts, self._trained
        parts.strategy.adopt(optimizer)
        parts.trial.options.watch(optimizer)
        at = len(trained.optimizers)

        def place(restored: Restored) -> None:
            if (saved := section(restored, "optimizers", at)) is not None:
                saved = parts.rounds.saved_optimizer(saved, optimizer)
                restoring.optimizer(optimizer, saved, self._resumption.where)

        self._resumption.put(place)
        trained.optimizers.append(optimizer)
        trained.clears.append(gate_optimizer(optimizer, parts.progress, self._engine.step))
        return optimizer

    def _add_scheduler(self, scheduler: LRScheduler) -> LRScheduler:
        gate = ScheduleGate(scheduler)
        at = len(self._trained.schedules)

        def place(restored: Restored) -> None:
            if (saved := section(restored, "schedulers", at)) is not None:
                where = self._resumption.where
                restoring.anything(scheduler, saved["state"], "the scheduler", where)
                gate.restore(saved["due"])

        self._resumption.put(place)
        self._trained.schedules.append(gate)
        return scheduler

    def _add_loader(self, loader: DataLoader[Any]) -> Any:
        parts, models = self._parts, self._trained.models
        evaluating = bool(models) and not models[-1].training
        if parts.progress.plan is not None or evaluating:
            return self.eval_loader(loader)
        agree = ordering.agreement_over(self._components.connection.channel)
        restored = self._resumption.restored
        prepared = data.positioned(
            loader,
            self._engine,
            seed=self._options.seed,
            place=self._place,
            reference_world=parts.policies.batch_world,
            accumulate=self._options.accumulate,
            device=self._device,
            pieces=parts.policies.pieces,
            skips=parts.policies.skips,
            agree=agree,
            parts=parts.policies.shares.parts,
            # An iterable's length, as the checkpoint has it: it is not read through again.
            num_samples=None if restored is None else restored.state.get("num_samples"),
        )
        samples = prepared.plan.num_samples
        parts.progress.load(prepared.plan, fingerprint.describe(loader.dataset, samples, agree))
        self._trained.set_loader(prepared)
        parts.policies.follow(prepared.plan)
        self._resumption.put(self._check_data)
        return prepared

    def _check_data(self, restored: Restored) -> None:
        manifest, saved, now = restored.manifest, restored.state, self._parts.progress.data
        before, where = (
            {"num_samples": saved["num_samples"], **manifest.data},
            self._resumption.where,
        )
        if self._options.data_changed == fingerprint.REFUSE:
            fingerprint.require_same(before, now, where)
        elif found := fingerprint.changes(before, now):
            message = f"other data than in {where}, as allowed: {'; '.join(found)}"
            self._components.report.write(WarningRecord(message))
            return
        if self._trained.loader is not None:
            self._trained.loader.take_up(saved.get("stream"))

    def eval_loader(self, loader: DataLoader[Any]) -> data.EvaluationLoader:
        """Return a loader over this rank's part of the data, for evaluation."""
        begins = partial(self._components.report.write, PhaseRecord("evaluating"))
        return data.EvaluationLoader(loader, self._place, self._options.seed, self._device, begins)

    def track(self, objects: Mapping[str, Any]) -> None:
        """Save and restore further objects by name."""
        self._trained.tracked.update(objects)

        def place(restored: Restored) -> None:
            saved = restored.state["tracked"]
            for name, thing in objects.items():
                if name in saved:
                    what = f"run.track({name}=…)"
                    restoring.anything(thing, saved[name], what, self._resumption.where)

        self._resumption.put(place)
