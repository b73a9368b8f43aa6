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

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.train.run import Run

__all__ = ["init"]


def init(
    *,
    seed: int = 0,
    exact: bool = True,
    accumulate: int = 1,
    clip: float | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: str | None = None,
    ddp: Mapping[str, Any] | None = None,
) -> Run:
    """Start the run of this process: environment, process groups, device, signals, reports.

    `seed` decides weights, order of the data and every sample's randomness. `exact` makes a resume
    at the same world size bit-identical. An optimizer step takes `accumulate` micro-batches; `clip`
    bounds the norm of its gradients. `checkpoint_dir` and `checkpoint_every` (`10m`, `500 steps`,
    `1 epoch`) only count where the launcher names no directory; with neither, nothing is saved.
    `ddp` holds further arguments of DistributedDataParallel.

    Raises SpecInvalid when an argument or the environment makes no sense.
    """
    from phalanx.train import start

    options = start.check(
        {"seed": seed, "exact": exact, "accumulate": accumulate, "clip": clip, "ddp": ddp or {}}
    )
    return start.start(options, checkpoint_dir=checkpoint_dir, checkpoint_every=checkpoint_every)
