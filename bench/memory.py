"""Peak memory of a rank by strategy, for a model of 300 million parameters.

    python bench/memory.py [--strategies ddp,fsdp,tp,pp] [--world 4] [--blocks 36] [--device meta] [--json]
    python bench/memory.py --strategies fsdp --blocks 6 --width 512 --batch 128 --dtype float32 --steps 10

One strategy at a time. Parameters in bf16 and SGD with momentum, so that four replicas fit into a small
machine; the ratios do not depend on it. What counts is the high-water mark of the process's resident memory
above what it was before the model was made: with everything from the start, when every rank makes the
whole model, and again for the steps alone (the kernel's mark is set back after the first). Beside it, the
CPU time of a step after the first: what giving memory back costs. The second call is for that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phalanx.launch.ports import free_port

GUARD_S = 900


# -- one rank ------------------------------------------------------------------------------------------


def resident(field: str) -> int:
    """`VmRSS` or `VmHWM` of this process in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", text)[1]) * 1024


def rank_main(given: argparse.Namespace) -> None:
    import torch
    from torch import nn

    import phalanx.train as pt

    torch.set_num_threads(1)
    width = given.width

    class Quick(nn.Linear):
        def reset_parameters(self):
            # Drawing random numbers would take most of the time, and changes no size.
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.zero_()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = Quick(width, 4 * width), Quick(4 * width, width)

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Net(nn.Module):
        pipeline_layers = ("blocks",)

        def __init__(self):
            super().__init__()
            self.tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
            self.blocks = nn.ModuleList([Block() for _ in range(given.blocks)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def loss_of(found, wanted):
        return nn.functional.mse_loss(found.float(), wanted.float())

    run = pt.init(strategy=given.strategy)
    before = resident("VmRSS")
    torch.set_default_dtype(getattr(torch, given.dtype))
    with torch.device(given.device):
        model = Net()
    num = sum(one.numel() for one in model.parameters())
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model, opt = run.prepare(model, opt)
    x, y = torch.randn(given.batch, width), torch.randn(given.batch, width)
    whole, began = 0, 0.0
    for step in range(given.steps):
        run.pipeline_step(x, target=y, loss_fn=loss_of)
        opt.step()
        opt.zero_grad()
        if step == 0:
            whole = resident("VmHWM") - before
            Path("/proc/self/clear_refs").write_text("5")
            began = time.process_time()
    row = {
        "cpu_ms": 1000 * (time.process_time() - began) / (given.steps - 1),
        "peak": max(whole, resident("VmHWM") - before),
        "steps": resident("VmHWM") - before,
        "num": num,
    }
    Path(f"{given.out}.{run.rank}").write_text(json.dumps(row))
    run.finish()


# -- all of them ---------------------------------------------------------------------------------------


def measure(strategy: str, world: int) -> dict[str, float]:
    """The rank that needed most."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    *sys.argv[1:],
                    "--strategy",
                    strategy,
                    "--out",
                    f"{folder}/row",
                ],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(world),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(world)
        ]
        codes = [one.wait(GUARD_S) for one in ranks]
        if any(codes):
            raise SystemExit(f"{strategy}: ranks ended with {codes}")
        rows = [json.loads(Path(f"{folder}/row.{rank}").read_text()) for rank in range(world)]
    return {key: max(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", default="ddp,fsdp,tp,pp")
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=36)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where the model is made: cpu or meta")
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.strategy:
        rank_main(given)
        return
    names = given.strategies.split(",")
    found = {name: measure(name, given.world) for name in names}
    if given.json:
        print(json.dumps(found, indent=2))
        return
    first = found[names[0]]
    print(
        f"{first['num'] / 1e6:.0f} million parameters in {given.dtype}, made on {given.device},"
        f" {given.world} ranks; a rank's peak"
    )
    print(
        f"strategy  with the start  against {names[0]}  steps alone  against {names[0]}  CPU a step"
    )
    for name, row in found.items():
        print(
            f"{name:8}  {row['peak'] / 1e6:8.0f} MB     {row['peak'] / first['peak']:.2f}"
            f"         {row['steps'] / 1e6:8.0f} MB  {row['steps'] / first['steps']:.2f}"
            f"  {row['cpu_ms']:9.0f} ms"
        )


if __name__ == "__main__":
    main()
