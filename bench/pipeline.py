"""The pipeline bubble: the part of a step for which ranks wait, against the schedule's theory.

    python bench/pipeline.py [--clock counted|wall] [--stages 4] [--micro-batches 16] [--layer-ms 40]

Layers take 40 ms (or what is said) for a forward pass and twice that for a backward pass, and compute
nothing, so that four stages can be measured on two cores. All the rest is real: `run.prepare` cuts the
model, `run.pipeline_step` sends activations and gradients between processes over gloo. A rank works for
m · (f + b) of a step, as long as that really took; what is beyond that is the bubble. The model of an
interleaved schedule is cut into twice as many stages of half the time.

`wall`: layers sleep, and a step is timed; needs a quiet machine. `counted`: every rank counts its own time,
and what is sent carries the sender's, so a layer begins at the later of both: the length of the schedule
as it was really executed, with messages that take no time, on a machine however busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phalanx.launch.ports import free_port

WARM, COUNTED = 1, 3
GUARD_S = 1800


# -- one rank ------------------------------------------------------------------------------------------


def rank_main(given: argparse.Namespace) -> None:
    import torch
    from torch import nn

    import phalanx.train as pt

    torch.set_num_threads(1)

    counted = given.clock == "counted"
    clock, worked = [0.0], [0.0]

    def passes(arrived, seconds):
        """A layer's time is over; returns what it sends on."""
        if counted:
            worked[0] += seconds
            clock[0] = max(clock[0], float(arrived.max())) + seconds
            return torch.full_like(arrived, clock[0])
        began = time.perf_counter()
        time.sleep(seconds)
        worked[0] += time.perf_counter() - began
        return arrived.clone()

    class Waiting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, seconds):
            ctx.seconds = seconds
            return torch.empty_like(x) if x.is_meta else passes(x, seconds[0])

        @staticmethod
        def backward(ctx, gradient):
            return passes(gradient, ctx.seconds[1]), torch.zeros(1), None

    class Layer(nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return Waiting.apply(x, self.weight, self.seconds)

    parts = 2 if given.schedule == "interleaved" else 1
    run = pt.init(
        strategy={"pp": given.stages},
        pipeline_schedule=given.schedule,
        micro_batches=given.micro_batches,
    )
    layer_s = given.layer_ms / 1e3 / parts
    layer = (layer_s, 2 * layer_s)
    model = nn.Sequential(*(Layer(layer) for _ in range(given.stages * parts)))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, opt = run.prepare(model, opt)
    x = torch.zeros(given.micro_batches, 64, dtype=torch.float64)
    times = []
    for _ in range(WARM + COUNTED):
        clock[0] = worked[0] = 0.0
        began = time.perf_counter()
        run.pipeline_step(x, target=x, loss_fn=lambda found, wanted: (found * 0).mean())
        took = clock[0] if counted else time.perf_counter() - began
        times.append((took, worked[0]))
        opt.step()
        opt.zero_grad()
        torch.distributed.barrier()
    Path(f"{given.out}.{run.rank}").write_text(json.dumps(times[WARM:]))
    run.finish()


# -- all of them ---------------------------------------------------------------------------------------


def measure(schedule: str, given: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a step on the rank that needed longest, and of the work in it; medians."""
    stages = given.stages
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--schedule",
                    schedule,
                    "--stages",
                    str(stages),
                    "--micro-batches",
                    str(given.micro_batches),
                    "--clock",
                    given.clock,
                    "--layer-ms",
                    str(given.layer_ms),
                    "--out",
                    f"{folder}/times",
                ],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(stages),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(stages),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(stages)
        ]
        codes = [one.wait(GUARD_S) for one in ranks]
        if any(codes):
            raise SystemExit(f"ranks ended with {codes}")
        rows = [json.loads(Path(f"{folder}/times.{rank}").read_text()) for rank in range(stages)]
    steps = [max(row) for row in zip(*rows, strict=True)]
    return statistics.median(step for step, _ in steps), statistics.median(one for _, one in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--clock", choices=["counted", "wall"], default="wall")
    parser.add_argument("--layer-ms", type=float, default=40.0)
    parser.add_argument("--schedules", help="1f1b,gpipe,interleaved: all")
    parser.add_argument("--schedule", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.schedule:
        rank_main(given)
        return
    from phalanx.core.training import pipelines

    found = {}
    sizes = f"{given.stages} stages, {given.micro_batches} micro-batches"
    print(f"{sizes}, layers of {given.layer_ms:g} ms, {given.clock} time", file=sys.stderr)
    print("schedule     step      bubble  theory  bubble / theory", file=sys.stderr, flush=True)
    for schedule in given.schedules.split(",") if given.schedules else pipelines.SCHEDULES:
        step_s, work_s = measure(schedule, given)
        theory = pipelines.bubble(schedule, given.stages, given.micro_batches)
        bubble = 1 - work_s / step_s
        row = found[schedule] = {
            "step_s": round(step_s, 4),
            "work_s": round(work_s, 4),
            "bubble": round(bubble, 4),
            "theory": round(theory, 4),
            "ratio": round(bubble / theory, 3),
        }
        print(
            f"{schedule:12} {row['step_s']:.3f} s   {row['bubble']:.4f}  {row['theory']:.4f}"
            f"  {row['ratio']:.3f}",
            file=sys.stderr,
            flush=True,
        )
    if given.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
