"""The run that `init` returns while a script is planned: it measures and does not train.

Models have no memory, the first batch is made hollow, and the first optimizer step ends the script.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from phalanx.core.training.estimates import ModelProfile
from phalanx.errors import ParamsRejected
from phalanx.train.gang import context
from phalanx.train.numerics import recompute
from phalanx.train.parallel import model_costs, stages
from phalanx.train.settings import RunOptions
from phalanx.train.step.early_stop import EarlyStopping
from phalanx.train.trial.params import Params


class PlanningComplete(BaseException):
    """The script has shown enough. Not an Exception, because scripts catch those."""


class MetaLoader:
    """The script's loader, with batches without memory."""

    def __init__(self, loader: Any) -> None:
        self.original = loader

    def __getattr__(self, name: str) -> Any:
        if name == "original":
            raise AttributeError(name)
        return getattr(self.original, name)

    def __len__(self) -> int:
        return len(self.original)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.original:
            yield tree_map_only(torch.Tensor, stages.to_meta, batch)


class PlanningRun:
    """A run for planning, with every attribute that scripts use."""

    def __init__(self, options: RunOptions, world_size: int) -> None:
        self.options, self.world_size, self.batch_world = options, world_size, world_size
        self.rank, self.is_main = 0, True
        self.state: dict[str, Any] = {}
        self.metrics: dict[str, float | str] = {}
        self.params, self.target = Params(context.read().trial.params), None
        self.device = torch.device("meta")
        self.gauge = model_costs.CostRecorder()
        self.models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self._kept_by_optimizers = 0
        self._batch: int | None = None

    # -- what scripts call -----------------------------------------------------------------------

    def prepare(self, *things: Any) -> Any:
        """Return the same objects, without memory."""
        models = [one for one in things if isinstance(one, nn.Module)]
        for model in models:
            stages.free_memory(model)
            recompute.recompute_blocks(model, self.options.activation_checkpointing)
        self.models += models
        done = [self._prepare_one(one) for one in things]
        self.gauge.start(models)
        return done[0] if len(done) == 1 else tuple(done)

    def _prepare_one(self, thing: Any) -> Any:
        if isinstance(thing, Optimizer):
            self._kept_by_optimizers += model_costs.optimizer_bytes(thing)
            thing.zero_grad()
            thing.step = self._enough  # type: ignore[method-assign]
            return thing
        if isinstance(thing, DataLoader):
            if self._batch is None:
                self._batch = thing.batch_size or 1
            return MetaLoader(thing)
        return thing

    def _enough(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PlanningComplete

    def eval_loader(self, loader: Any) -> Any:
        """Return the loader with batches without memory."""
        return MetaLoader(loader)

    def epochs(self, num: int) -> Iterator[int]:
        """Yield one epoch, then end the script."""
        yield 0
        raise PlanningComplete

    def backward(self, loss: torch.Tensor, weight: float | None = None) -> None:
        """Make a backward pass without values."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.gauge.saw_backward()

    def pipeline_step(
        self,
        *inputs: torch.Tensor,
        target: Any,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        model: nn.Module | None = None,
    ) -> torch.Tensor:
        """Make a forward and a backward pass."""
        loss = loss_fn((model or self.models[0])(*inputs), target)
        self.backward(loss)
        return loss.detach()

    def clip_grad_norm_(self, *args: Any, **options: Any) -> torch.Tensor:
        """Return 0."""
        return torch.zeros(())

    def early_stopping(self, patience: int, **options: Any) -> EarlyStopping:
        """Return early stopping on this rank's values."""
        return EarlyStopping(patience, "min", 0.0, lambda value: value)

    def _nothing(self, *args: Any, **values: Any) -> None:
        """Do nothing: no step is made."""

    log = track = checkpoint = profile = _nothing

    def outer_weights(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: there is one set of weights."""
        return contextlib.nullcontext()

    def report(self, **values: Any) -> None:
        """Ignore the values."""

    def reject(self, reason: str) -> NoReturn:
        """Raise, as the run does."""
        raise ParamsRejected(reason)

    def should_stop(self) -> bool:
        """Return False."""
        return False

    def all_reduce_mean(self, value: Any, weight: float = 1.0) -> float:
        """Return 0: no values exist."""
        return 0.0

    def all_reduce_sum(self, *values: Any) -> list[float]:
        """Return 0: no values exist."""
        return [0.0 for _ in values]

    @property
    def step(self) -> int:
        """Return 0."""
        return 0

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the module itself."""
        return model

    def finish(self) -> NoReturn:
        """End the script."""
        raise PlanningComplete

    # -- what was seen ---------------------------------------------------------------------------

    @property
    def _casts(self) -> bool:
        """Return whether autocast copies weights; a policy of `fully_shard` casts them itself."""
        return self.options.precision != "fp32" and "mp_policy" not in self.options.fsdp

    def outline(self) -> ModelProfile:
        """Return the model's profile for estimates."""
        self.gauge.stop()
        options, main = self.options, self.models[0]
        tensors = [one for model in self.models for one in model.parameters()]
        trained = model_costs.bytes_of(one for one in tensors if one.requires_grad)
        flops, kept = self.gauge.flops, self.gauge.kept_bytes
        # In half precision about half of what is kept is half as wide.
        narrow = 1.0 if options.precision == "fp32" else 0.75
        return ModelProfile(
            parameter_bytes=model_costs.bytes_of(tensors),
            trainable_bytes=trained,
            optimizer_bytes=self._kept_by_optimizers or 2 * trained,
            block_bytes=max(model_costs.block_bytes(model) for model in self.models),
            buffer_bytes=model_costs.bytes_of(b for model in self.models for b in model.buffers()),
            batch=self._batch or 1,
            activation_bytes=None if kept is None else int(kept * narrow),
            flops=None if flops is None else flops * self.options.accumulate,
            convolved=self.gauge.convolved,
            precision=model_costs.computes_in(main, options.precision),
            cast_bytes=model_costs.cast_bytes(tensors) if self._casts else 0,
            tp_part=model_costs.split_part(main, self.options.tp_plan),
            layer_bytes=model_costs.layer_bytes(main),
            schedule=options.pipeline_schedule,
            micro_batches=options.micro_batches,
        )
