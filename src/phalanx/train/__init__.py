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
    checkpoint_keep: Mapping[str, Any] | None = None,
    checkpoint_compress: str | None = None,
    checkpoint_store: str | None = None,
    checkpoint_key_env: str | None = None,
    checkpoint_key_file: str | Path | None = None,
    resume_from: str | Path | None = None,
    ddp: Mapping[str, Any] | None = None,
    strategy: str | Mapping[str, int] = "ddp",
    fsdp: Mapping[str, Any] | None = None,
    tp_plan: Mapping[str, Any] | None = None,
    pipeline_schedule: str = "1f1b",
    micro_batches: int | None = None,
    pipeline_split: Sequence[str] = (),
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
    compression: str | Mapping[str, Any] = "none",
    sync: str | Mapping[str, Any] = "none",
    batch_shares: str | Sequence[float] = "even",
    data_changed: str = "refuse",
    preflight: str = "check",
) -> Run:
    """Start the run of this process: environment, process groups, device, signals, reports.

    `seed` decides weights, order of the data and every sample's randomness. `exact` makes a resume
    at the same world size bit-identical. An optimizer step takes `accumulate` micro-batches; `clip`
    bounds the norm of its gradients. What begins with `checkpoint_` only counts where the launcher names
    no directory; with none from either, nothing is saved. `checkpoint_every` is `10m`, `500 steps`,
    `1 epoch` or `auto`, `checkpoint_keep` says which stay (`{"last": 3}`), `checkpoint_compress="zstd"`
    makes them smaller, `checkpoint_store` is a prefix
    of an object store that gets copies, such as `s3://bucket/run-7`, and the key that encrypts them is
    named by a variable (`checkpoint_key_env`) or a file (`checkpoint_key_file`). A job without a checkpoint
    of its own goes on from the one in `resume_from`: its folder, or that of the job which made it.
    `ddp` holds further arguments of DistributedDataParallel. With `strategy="fsdp"` every rank holds a
    shard of each parameter instead; `fsdp` holds further arguments of `fully_shard`. A mapping of sizes
    combines replicas, shards and tensor parallel ranks: `{"fsdp": 2, "tp": 2}`; `tp_plan` says how which
    modules are split (`{"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}`). `{"pp": 2, "dp": 2}` cuts
    the model into pipeline stages, for which a batch goes through `run.pipeline_step`: `pipeline_schedule`
    is `1f1b`, `gpipe` or `interleaved`, a batch goes in up to `micro_batches` pieces (twice the number
    of stages, if not given), and `pipeline_split` names the layers that begin a stage. `"auto"` picks.

    `precision` is `fp32`, `bf16` or `fp16`, which needs `run.backward(loss)`. `sync_batchnorm` takes
    batch norms' statistics over all ranks. `activation_checkpointing` computes blocks' activations a
    second time instead of keeping them: True, or names of module classes. A rank gets at most
    `max_micro_batch` samples at once. `on_resize="scale_batch"` lets the global batch follow the world
    size, and the learning rate follow the batch over `warmup_steps` steps. `on_non_finite` (`off`,
    `skip`, `rollback`, `stop`) guards gradients, `on_spike` (the same words) the value logged
    as `loss`. `deterministic` allows only kernels that always give the same sums.
    `compression` (`fp16`, `bf16`, `powersgd`, `topk`, `randomk`, `auto`, or a mapping with `method` and
    its settings) has replicas send less of their gradients. `sync` (`local_sgd`, `diloco`, `server`, or
    a mapping with `method`) has ranks train on their own and exchange weights now and then.
    Ranks' compute times are compared every `straggler_window` steps; 0 never does.
    Batches are split over the ranks evenly, by `batch_shares=[2, 1, 1]`, or, with `"auto"`, by measured
    speed. A resume on other data ends in an error unless `data_changed="allow"`. Before anything else the
    ranks compare versions, devices and hosts, unless `preflight="off"`.

    Raises SpecInvalid when an argument or the environment makes no sense, UserError where there is no
    sound checkpoint at `resume_from`, and PreflightFailed.
    """
    from phalanx.train import settings, start

    options = settings.parse(
        {
            "seed": seed,
            "exact": exact,
            "accumulate": accumulate,
            "clip": clip,
            "ddp": ddp or {},
            "strategy": strategy,
            "fsdp": fsdp or {},
            "tp_plan": tp_plan or {},
            "pipeline_schedule": pipeline_schedule,
            "micro_batches": micro_batches,
            "pipeline_split": pipeline_split,
            "precision": precision,
            "sync_batchnorm": sync_batchnorm,
            "activation_checkpointing": activation_checkpointing,
            "max_micro_batch": max_micro_batch,
            "on_resize": on_resize,
            "warmup_steps": warmup_steps,
            "on_non_finite": on_non_finite,
            "on_spike": on_spike,
            "deterministic": deterministic,
            "straggler_window": straggler_window,
            "compression": compression,
            "sync": sync,
            "batch_shares": batch_shares,
            "data_changed": data_changed,
            "preflight": preflight,
        }
    )
    checkpoints = {
        "dir": checkpoint_dir,
        "every": checkpoint_every,
        "keep": checkpoint_keep,
        "compress": checkpoint_compress,
        "store": checkpoint_store,
        "key_env": checkpoint_key_env,
        "key_file": checkpoint_key_file,
    }
    return start.start(options, checkpoints=checkpoints, resume_from=resume_from)
