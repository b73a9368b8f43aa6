"""The library inside a user's training process: five lines that make a script survive.

    import phalanx.train as pt

    run = pt.init()
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    for epoch in run.epochs(10):
        for x, y in loader:
            ...
            run.log(loss=loss)

Light until `init` is called: torch is imported there. Every part has a null twin, so that the same
script runs with no launcher, under torchrun, and under Phalanx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.train.run import Run

__all__ = ["init"]


def init(  # noqa: PLR0913 - one keyword for each wish, none of them positional
    *,
    seed: int = 0,
    exact: bool = True,
    accumulate: int = 1,
    clip: float | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: str | None = None,
    ddp: Mapping[str, Any] | None = None,
    strategy: str = "ddp",
    fsdp: Mapping[str, Any] | None = None,
    precision: str = "fp32",
    sync_batchnorm: bool = False,
    activation_checkpointing: bool | Sequence[str] = False,
    max_micro_batch: int | None = None,
    on_resize: str = "keep_batch",
    warmup_steps: int = 0,
    on_non_finite: str = "off",
    on_spike: str = "off",
    deterministic: bool = False,
    straggler_window: int = 0,
) -> Run:
    """Start the run of this process: environment, process groups, device, signals, reports.

    `seed` decides weights, order of the data and every sample's randomness. `exact` makes a resume
    at the same world size bit-identical. An optimizer step takes `accumulate` micro-batches; `clip`
    bounds the norm of its gradients. `checkpoint_dir` and `checkpoint_every` (`10m`, `500 steps`,
    `1 epoch`) only count where the launcher names no directory; with neither, nothing is saved.
    `ddp` holds further arguments of DistributedDataParallel. With `strategy="fsdp"` every rank holds a
    shard of each parameter instead; `fsdp` holds further arguments of `fully_shard`.

    `precision` is `fp32`, `bf16` or `fp16`, which needs `run.backward(loss)`. `sync_batchnorm` takes
    batch norms' statistics over all ranks. `activation_checkpointing` computes blocks' activations a
    second time instead of keeping them: True, or names of module classes. A rank gets at most
    `max_micro_batch` samples at once. `on_resize="scale_batch"` lets the global batch follow the world
    size, and the learning rate follow the batch over `warmup_steps` steps. `on_non_finite` (`off`,
    `skip`, `rollback`, `stop`) guards gradients, `on_spike` (`off`, `rollback`, `stop`) the value logged
    as `loss`. `deterministic` allows only kernels that always give the same sums.
    Ranks' compute times are compared every `straggler_window` steps; 0 never does.

    Raises SpecInvalid when an argument or the environment makes no sense.
    """
    from phalanx.train import start

    options = start.check(
        {
            "seed": seed, "exact": exact, "accumulate": accumulate, "clip": clip, "ddp": ddp or {},
            "strategy": strategy, "fsdp": fsdp or {},
        },
        {
            "precision": precision, "sync_batchnorm": sync_batchnorm,
            "activation_checkpointing": activation_checkpointing,
            "max_micro_batch": max_micro_batch, "on_resize": on_resize,
            "warmup_steps": warmup_steps, "on_non_finite": on_non_finite, "on_spike": on_spike,
            "deterministic": deterministic, "straggler_window": straggler_window,
        },
    )  # fmt: skip
    return start.start(options, checkpoint_dir=checkpoint_dir, checkpoint_every=checkpoint_every)
