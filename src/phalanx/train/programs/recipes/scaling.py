"""The program of a rank of `phalanx bench scaling`, on generated samples.

Logs the median step as `bench_step_seconds` and the global batch as `bench_global_batch`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt
from phalanx.train.programs.recipes import texts
from phalanx.train.programs.recipes.settings import IMAGE_MODELS, MODELS, Recipe
from phalanx.train.programs.recipes.trainer import image_model, optimizer_of

WARM_UP = 5
_CLASSES = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Train some steps and log how long one takes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="phalanx bench scaling")
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args(arguments)
    run = pt.init(seed=0, precision=given.precision)
    names = ("model", "image_size", "block", "scale", "batch_size")
    recipe = Recipe(**{name: getattr(given, name) for name in names})
    count = (given.steps + WARM_UP) * given.batch_size * run.world_size
    if given.model in IMAGE_MODELS:
        model = image_model(recipe, _CLASSES)
        side = given.image_size
        x = torch.randint(256, (given.batch_size, 3, side, side), dtype=torch.uint8)
        y = torch.randint(_CLASSES, (given.batch_size,))
        loss_of = _classify
    else:
        model = texts.Transformer(given.block, given.scale, causal=given.model == "gpt")
        x = torch.randint(256, (given.batch_size, given.block))
        y = x.roll(-1, 1)
        loss_of = texts.next_byte_loss if given.model == "gpt" else texts.masked_byte_loss
    optimizer = optimizer_of(recipe, model)
    # Samples are numbers only: what is measured is computing and communication.
    loader = DataLoader(TensorDataset(torch.arange(count)), given.batch_size, drop_last=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    x, y = x.to(run.device), y.to(run.device)
    times: list[float] = []
    for _ in run.epochs(1):
        before = time.perf_counter()
        for _numbers in loader:
            run.backward(loss_of(model, x, y))
            optimizer.step()
            optimizer.zero_grad()
            if run.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            times.append(now - before)
            before = now
        median = statistics.median(times[WARM_UP:])
        run.log(bench_step_seconds=median, bench_global_batch=given.batch_size * run.world_size)
    run.finish()
    return 0


def _classify(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x), y)


if __name__ == "__main__":
    raise SystemExit(main())
