"""The DDP communication hook that compresses gradient buckets, with one `ReplicaCompressor` per replica.

torch evaluates the annotations of a hook: this module has no `from __future__ import annotations`. It also
refuses some hooks on CPU by their names, so no hook here has the name of one of torch's own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from phalanx.core.contract.records import CompressionRecord
from phalanx.train.gang.report import Report
from phalanx.train.numerics.compression.codecs import CODECS, Codec, Named
from phalanx.train.numerics.compression.method_choice import FastestMethod, MethodSchedule
from phalanx.train.settings import CompressionSettings

_CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class CompressionContext:
    """The run's values for a hook: steps done so far, the loss scale, and the report."""

    step: Callable[[], int]
    scale: Callable[[], float]
    report: Report

    def tell(self, method: str, medians: Mapping[str, float]) -> None:
        """Report the chosen method, and the median seconds of a step with each."""
        self.report.write(
            CompressionRecord(step=self.step(), method=method, median_s=dict(medians))
        )


class Compressor:
    """The gradient compression of a model; this class compresses nothing."""

    @property
    def method(self) -> str:
        """Return the method of the current step."""
        return "none"

    def settle(self, applied: bool) -> None:
        """End the step; `applied` says whether it changed the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next steps depend on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; the state of unused methods is ignored."""


class ReplicaCompressor(Compressor):
    """The gradient compression of one replica."""

    def __init__(
        self,
        replica: DistributedDataParallel,
        wishes: CompressionSettings,
        seed: int,
        now: CompressionContext,
    ) -> None:
        self._now, self._start = now, wishes.start_step
        inner = replica.module
        self._parameters = dict(inner.named_parameters())
        self._names = {parameter: name for name, parameter in inner.named_parameters()}
        names = wishes.candidates if wishes.method == "auto" else (wishes.method,)
        self._codecs: dict[str, Codec] = {
            name: CODECS[name](wishes, seed) for name in names if name in CODECS
        }
        self._schedule = MethodSchedule(wishes.method)
        if wishes.method == "auto":
            self._schedule = FastestMethod(wishes.candidates, now.tell)
        self._held: list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]] = []
        self._gradients: list[Named] = []
        replica.register_comm_hook(self, _reduce_bucket)

    @property
    def method(self) -> str:
        """Return the method of the current step."""
        return "none" if self._now.step() < self._start else self._schedule.method

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the bucket's mean over all ranks."""
        method = self.method
        codec = self._codecs.get(method)
        if codec is None:
            return _cast_and_reduce(bucket.buffer(), _CASTS.get(method))
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] = []
        if buffer.device.type == "cuda":
            devices.append(buffer.device)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._held.append((buffer, future))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._gradients.append((self._names[parameter], gradient))
        if bucket.is_last():
            self._reduce_held(codec)
        return future

    def _reduce_held(self, codec: Codec) -> None:
        held, gradients = self._held, self._gradients
        self._held, self._gradients = [], []
        with torch.no_grad():
            codec.reduce(gradients, self._now.scale(), self._now.step())
        for buffer, future in held:
            future.set_result(buffer)

    def settle(self, applied: bool) -> None:
        """End the step."""
        self._held.clear()
        self._gradients.clear()
        for codec in self._codecs.values():
            codec.settle(applied)
        if applied and self._now.step() > self._start:
            self._schedule.settle()
            self._drop_the_rest()

    def _drop_the_rest(self) -> None:
        """Drop unused codecs: each holds as much memory as the model."""
        racing = self._schedule.racing
        if any(name not in racing for name in self._codecs):
            self._codecs = {name: one for name, one in self._codecs.items() if name in racing}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next steps depend on."""
        codecs = {name: codec.state_dict() for name, codec in self._codecs.items()}
        return {"codecs": codecs, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; the state of unused methods is ignored."""
        self._schedule.load_state_dict(state["schedule"])
        self._drop_the_rest()
        for name, codec in self._codecs.items():
            if name in state["codecs"]:
                codec.load_state_dict(state["codecs"][name], self._parameters)


class Compressors:
    """The compressors of all models of a run."""

    def __init__(self, wishes: CompressionSettings, seed: int, now: CompressionContext) -> None:
        self._wishes, self._seed, self._now = wishes, seed, now
        self._all: list[Compressor] = []

    def watch(self, model: nn.Module) -> Compressor:
        """Compress the gradients of a replica; other models are left unchanged."""
        made = Compressor()
        if self._wishes.compresses and isinstance(model, DistributedDataParallel):
            made = ReplicaCompressor(model, self._wishes, self._seed, self._now)
        self._all.append(made)
        return made

    @property
    def methods(self) -> list[str]:
        """Return the method of each model in the current step."""
        return [one.method for one in self._all]

    def settle(self, applied: bool) -> None:
        """End a step; `applied` says whether it changed the parameters."""
        for one in self._all:
            one.settle(applied)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state that the next steps depend on, model by model."""
        return [one.state_dict() for one in self._all]


def _reduce_bucket(
    compressor: ReplicaCompressor, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    return compressor.reduce(bucket)


def _cast_and_reduce(
    buffer: torch.Tensor, dtype: torch.dtype | None
) -> torch.futures.Future[torch.Tensor]:
    """Reduce one bucket to its mean in `dtype` during the backward pass."""
    sent = buffer.div_(dist.get_world_size())
    if dtype is not None:
        sent = sent.to(dtype)
    work = dist.all_reduce(sent, async_op=True)
    assert work is not None
    future: torch.futures.Future[Any] = work.get_future()
    received: Callable[[Any], torch.Tensor] = lambda done: buffer.copy_(done.value()[0])  # noqa: E731
    return future.then(received if dtype is not None else lambda done: done.value()[0])
