"""The run: the object that a training script uses."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from phalanx.core.contract.records import DoneRecord
from phalanx.errors import FinalCheckpointNotSaved, NotSupported
from phalanx.train.data.loader import EvaluationLoader
from phalanx.train.numerics import gradients
from phalanx.train.observe.profiling import profile_settings
from phalanx.train.parallel import replica
from phalanx.train.step.early_stop import EarlyStopping
from phalanx.train.step.engine import StepEngine, StepParts
from phalanx.train.step.policies import RunComponents
from phalanx.train.step.preparation import RunPreparation
from phalanx.train.step.rung import RungGate
from phalanx.train.trial.methods import TrialMethods


class Run(TrialMethods):
    """One rank's view of a training run. Made by `phalanx.train.init`.

    Attributes:
        device: The `torch.device` of this rank.
        rank: This rank's number.
        world_size: The number of ranks.
        is_main: Whether this is rank 0.
        batch_world: The number of ranks that batch sizes are for: the job's full number.
    """

    def __init__(
        self,
        components: RunComponents,
        parts: StepParts,
        engine: StepEngine,
        preparation: RunPreparation,
        gate: RungGate,
    ) -> None:
        self._gate, self._trial, self._journal = gate, parts.trial, parts.journal
        self._progress_step = lambda: parts.progress.step
        info = components.info
        self.device, self.rank, self.world_size = components.device, info.rank, info.world_size
        self.is_main, self.batch_world = info.is_main, parts.policies.batch_world
        self._components, self._parts, self._engine = components, parts, engine
        self._preparation, self._progress = preparation, parts.progress
        self._channel = components.connection.channel
        self._closed = self._reported_done = False
        atexit.register(self._close)

    @property
    def state(self) -> dict[str, Any]:
        """A dictionary for plain values of the script's own: saved and restored."""
        return self._parts.trained.user_state

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        self._parts.trained.set_user_state(values)

    @property
    def metrics(self) -> dict[str, float | str]:
        """The newest value of each metric that was logged, also before an interruption."""
        self._parts.journal.flush()
        return dict(self._parts.journal.latest)

    @property
    def step(self) -> int:
        """Optimizer steps committed since the job began."""
        return self._progress.step

    def prepare(self, *things: Any) -> Any:
        """Make models, optimizers, schedulers and loaders part of the run, and restore saved state.

        Models become replicas or shards, optimizers commit steps, schedulers follow commits. The first
        loader owns the position; further ones, and those prepared while the model is in evaluation
        mode, are sharded for evaluation.

        Args:
            things: `nn.Module`, `Optimizer`, `LRScheduler` or `DataLoader` objects.

        Returns:
            As many objects, in the same order; the object itself where one was given.

        Raises:
            RestoreMismatch: The saved state does not fit.
            TypeError: An object is of another kind.
        """
        self._preparation.open()
        done = [self._preparation.add(thing) for thing in things]
        self._preparation.settle()
        return done[0] if len(done) == 1 else tuple(done)

    def eval_loader(self, loader: DataLoader[Any]) -> EvaluationLoader:
        """Return a loader over this rank's part of the data, for evaluation.

        It has no position and trains nothing. Every sample is on exactly one rank; ranks may have
        different numbers of batches.

        Args:
            loader: The loader of the whole data set.
        """
        return self._preparation.eval_loader(loader)

    def track(self, **objects: Any) -> None:
        """Save and restore other objects that have `state_dict` and `load_state_dict`.

        Args:
            objects: The objects, each under a name of its own.

        Raises:
            RestoreMismatch: An object refuses its saved state.
        """
        self._preparation.open()
        self._preparation.track(objects)

    # -- the loop --------------------------------------------------------------------------------

    def epochs(self, num: int) -> Iterator[int]:
        """Iterate over epochs 0 to `num` - 1, from the one that was interrupted on; saves at the end.

        Args:
            num: The number of epochs.

        Raises:
            FinalCheckpointNotSaved: See `checkpoint.on_final_failure`.
        """
        self._preparation.open()
        self._preparation.settle()
        self._progress.set_num_epochs(num)
        for epoch in range(self._progress.position.epoch, num):
            self._progress.start_epoch(epoch)
            self._engine.begin_epoch()
            yield epoch
            self._gate.epoch_over(epoch, num)
        self._end()

    def log(self, **values: Any) -> None:
        """Report numbers of this step.

        Args:
            values: Numbers, or tensors of one element, which are read a step later.
        """
        self._parts.journal.log(self._progress.step, values)

    def should_stop(self) -> bool:
        """Whether all ranks have agreed to stop; the loader leaves by itself at its next call."""
        return self._engine.stopping

    def checkpoint(self) -> None:
        """Save at the loader's next call, or now when between passes. Call it on every rank."""
        self._engine.request_save()

    def backward(self, loss: torch.Tensor, weight: float | None = None) -> None:
        """Run `loss.backward()`, scaled where fp16 needs it.

        Args:
            loss: The loss of the micro-batch, a tensor of one element.
            weight: Its number of tokens. The gradient of the step is then the mean over the tokens of
                all ranks and micro-batches. Give it on every rank and micro-batch, or on none.
        """
        self._engine.backward(loss, weight)

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, **options: Any
    ) -> torch.Tensor:
        """Clip gradients as torch's function does, where a step ends.

        Args:
            parameters: The parameters with the gradients to clip.
            max_norm: The largest norm, above 0.
            options: Further arguments of `torch.nn.utils.clip_grad_norm_`.

        Returns:
            The norm before clipping; 0 inside an accumulation, where nothing is clipped.

        Raises:
            NotSupported: Options over pipeline stages.
        """
        parameters = list(parameters)
        if not self._progress.ends_step:
            return torch.zeros(())
        self._engine.finish_gradients(parameters)
        strategy = self._parts.strategy
        if strategy.place is None:
            return nn.utils.clip_grad_norm_(parameters, max_norm, **options)
        if options:
            raise NotSupported(f"clip_grad_norm_ with {', '.join(options)} over pipeline stages")
        gradients.clip(parameters, max_norm, norm := strategy.norm(parameters))
        return norm

    def pipeline_step(
        self,
        *inputs: torch.Tensor,
        target: Any,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        model: nn.Module | None = None,
    ) -> torch.Tensor:
        """Compute `loss_fn(model(*inputs), target)` and its backward pass.

        Works with any strategy; pipeline stages need it. A batch goes through the stages in
        micro-batches of equal size. Under `torch.no_grad()` there is no backward pass.

        Args:
            inputs: Inputs of the model; the first dimension is the batch.
            target: What `loss_fn` compares the outputs with.
            loss_fn: A mean over its samples.
            model: A prepared model; the first one, if not given.

        Returns:
            The loss, on every rank.
        """
        parts, model = self._parts, self._parts.trained.models[0] if model is None else model
        factor = self._engine.loss_factor
        return parts.strategy.compute(model, inputs, target, loss_fn, self.backward, factor)

    def profile(self, steps: int = 20, trace: int = 3, extras: Sequence[str] = ()) -> None:
        """Profile the next steps; call it on every rank.

        Rank 0 reports where the time goes and what limits it; the merged trace is written to the folder
        `profiles` beside the checkpoints.

        Args:
            steps: The number of steps that are timed by section.
            trace: The number of steps that are traced after them.
            extras: Any of `memory` and `nvtx`.

        Raises:
            SpecInvalid: An argument makes no sense.
        """
        self._parts.profiling.start(profile_settings(steps, trace, extras))

    def early_stopping(
        self, patience: int, *, mode: str = "min", min_delta: float = 0.0, name: str = "early"
    ) -> EarlyStopping:
        """Return a counter that says when a metric stops improving.

        Leave the loop with `break`, and call `finish`.

        Args:
            patience: Updates without an improvement, at least 1.
            mode: `min` or `max`.
            min_delta: The least change that is an improvement.
            name: The name under which it is saved.

        Raises:
            SpecInvalid: An argument makes no sense.
        """
        channel = self._channel
        made = EarlyStopping(
            patience, mode, min_delta, lambda value: float(channel.broadcast(repr(value)))
        )
        self.track(**{name: made})
        return made

    def all_reduce_mean(self, value: float | torch.Tensor, weight: float = 1.0) -> float:
        """Return the weighted mean of a value over all ranks.

        Args:
            value: This rank's value.
            weight: What it counts, such as its number of samples.
        """
        top, bottom = self.all_reduce_sum(float(value) * weight, weight)
        return top / bottom if bottom else 0.0

    def all_reduce_sum(self, *values: float | torch.Tensor) -> list[float]:
        """Return the sum of each value over all ranks.

        Args:
            values: This rank's values. Of ranks that share samples, the first one counts.
        """
        counts = self._components.layout.speaks(self.rank)
        return self._channel.total([float(value) if counts else 0.0 for value in values])

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the module that was given to `prepare`.

        Args:
            model: A prepared model.
        """
        return replica.unwrapped(model)

    def outer_weights(self) -> Any:
        """Return a context in which models have the weights that all ranks agreed on last.

        For evaluation between exchanges (`sync`); without `sync` they always have them.
        """
        return self._parts.rounds.outer_weights()

    def finish(self) -> None:
        """End the run: save if there is something to save, then leave the process groups.

        Not needed with `epochs`, which ends the run by itself. Call it on every rank.
        """
        if not self._reported_done:
            self._end()
        self._close()

    def _end(self) -> None:
        unsaved = self._engine.finish()
        self._trial.send(self._components.saver.path_of(self._progress.step))
        if not self._reported_done:
            self._reported_done = True
            self._parts.profiling.finish()
            self._engine.flush()
            if unsaved and self._components.info.checkpoint.on_final_failure == "fail":
                raise FinalCheckpointNotSaved(unsaved)
            self._components.report.write(DoneRecord(self._progress.step, unsaved))

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close)
        self._parts.journal.flush()
        self._components.saver.close()
        self._components.report.close()
        self._engine.close()
        self._parts.rounds.close()
        self._components.connection.close()
        self._components.stop.remove()
