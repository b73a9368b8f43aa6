"""The library inside a user's training process: five lines that make a script survive.

    import phalanx.train as pt

    run = pt.init()
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    for epoch in run.epochs(10):
        for x, y in loader:
            ...
            run.log(loss=loss)

torch is imported by `init`, not before. The same script runs with no launcher, under torchrun and under
Phalanx. Read `start.py` (the wiring), `run.py` (what a script calls), `step/engine.py` (a training
step) and `state/saving.py` (checkpoints), in this order; `settings.py` has every option. Nothing here
imports the control plane.
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
    scale_lr: str = "none",
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

    Options that begin with `checkpoint_` count where the launcher names no directory; with none from
    either, nothing is saved. The section `training` of a job's spec overrides the others.

    Args:
        seed: Decides initial weights, the order of the data and the randomness of every sample.
        exact: Make a resume at the same world size bit-identical.
        accumulate: Micro-batches of an optimizer step, at least 1.
        clip: The largest norm of a step's gradients, above 0. None: not clipped.
        checkpoint_dir: The folder of the job's checkpoints.
        checkpoint_every: When to save: a duration (`10m`), `500 steps`, `1 epoch` or `auto`.
        checkpoint_keep: Which checkpoints stay, such as `{"last": 3}`.
        checkpoint_compress: `zstd` or `none`.
        checkpoint_store: A prefix of an object store that receives copies, such as `s3://bucket/run-7`.
        checkpoint_key_env: The environment variable that holds the encryption key.
        checkpoint_key_file: The file that holds the encryption key.
        resume_from: Where a job without a checkpoint of its own begins: the folder of a checkpoint, or
            of the job that made it.
        ddp: Further arguments of `DistributedDataParallel`.
        strategy: `ddp`, `fsdp` (every rank holds a shard of each parameter), `auto`, or sizes that
            combine replicas, shards, tensor parallel ranks and pipeline stages: `{"fsdp": 2, "tp": 2}`.
        fsdp: Further arguments of `fully_shard`.
        tp_plan: How modules are split over tensor parallel ranks: `{"blocks.*.up": "colwise"}`.
        pipeline_schedule: `1f1b`, `gpipe` or `interleaved`.
        micro_batches: The most pieces that a batch goes through pipeline stages in. None: twice the
            number of stages.
        pipeline_split: Names of the layers that begin a pipeline stage.
        precision: `fp32`, `bf16` or `fp16`, which needs `run.backward(loss)`.
        sync_batchnorm: Take the statistics of batch norms over all ranks.
        activation_checkpointing: Compute activations again instead of keeping them: True for every
            block, or names of module classes.
        max_micro_batch: The most samples that a rank computes at once. None: no limit.
        on_resize: `keep_batch`, or `scale_batch`: the global batch follows the world size, and the
            learning rate follows the batch.
        scale_lr: `linear`: multiply the learning rate by the number of ranks that the job asked for at
            its first start, for a rate that was chosen for one rank; `sqrt`: by its square root. A
            checkpoint keeps the factor.
        warmup_steps: Steps over which the learning rate moves to that of a new batch size, or to that of
            `scale_lr`.
        on_non_finite: What to do about gradients that are not finite: `off`, `skip`, `rollback`, `stop`.
        on_spike: What to do about a logged `loss` that jumps: `off`, `skip`, `rollback`, `stop`.
        deterministic: Allow only kernels that always give the same sums.
        straggler_window: Steps between comparisons of the ranks' compute times; 0: never.
        compression: How replicas reduce gradients: `none`, `fp16`, `bf16`, `powersgd`, `topk`,
            `randomk`, `auto`, or a mapping with `method` and its settings.
        sync: How ranks that train on their own exchange weights: `none`, `local_sgd`, `diloco`,
            `server`, or a mapping with `method` and its settings.
        batch_shares: How batches are split over the ranks: `even`, one number for each rank, or `auto`
            (by measured speed).
        data_changed: `refuse` or `allow` a resume on other data.
        preflight: `check` compares versions, devices and hosts of the ranks first; `off` does not.

    Returns:
        The run of this process.

    Raises:
        SpecInvalid: An argument or the environment makes no sense.
        UserError: There is no sound checkpoint at `resume_from`.
        PreflightFailed: The ranks do not fit together.
    """
    given = dict(locals())
    del given["resume_from"]
    checkpoints = {
        name.removeprefix("checkpoint_"): given.pop(name)
        for name in tuple(given)
        if name.startswith("checkpoint_")
    }
    from phalanx.train import settings, start

    options = settings.parse(given)
    return start.start(options, checkpoints=checkpoints, resume_from=resume_from)
