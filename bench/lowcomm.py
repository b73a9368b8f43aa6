"""Training that talks rarely, against gradients in every step: bytes on the wire, and the loss at the end.

    python bench/lowcomm.py [--variants ddp,diloco,…] [--seeds 1] [--rate 0] [--json]

Two ranks, each in a network namespace of its own, joined by a veth pair (`--rate 100mbit` shapes it): needs
root and iproute2. A GPT on characters reads Python's own manual (`pydoc_data`), 2400 steps of 2 x 16
blocks of 32 characters; every variant sees the same batches in the same order and the same rates. Bytes
are what the kernel counts on the interface from the first step to the last exchange, control words and
headers included; the loss is of the averaged model on a tenth of the text that was held out.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import statistics
import sys
import time
from pathlib import Path

from shaped_link import in_rooms, refusal, sent_bytes, tasks_of, together, two_rooms

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "chargpt"))

GUARD_S = 3600
STEPS, BLOCK, BATCH, LR = 2400, 32, 16, 3e-3
# About a second on an idle machine, which is what ranks settle on by themselves; bytes of a busy one
# would not compare.
CONTROL_EVERY = 100
OUTER = {"lr": 0.9, "momentum": 0.8}
VARIANTS: dict[str, dict[str, object]] = {
    "ddp": {"method": "none"},
    "local_sgd": {"method": "local_sgd", "every": 64, "control_every": CONTROL_EVERY},
    "diloco": {"method": "diloco", "every": 64, "outer": OUTER, "control_every": CONTROL_EVERY},
    "diloco int8 x4": {
        "method": "diloco",
        "every": 100,
        "outer": OUTER,
        "fragments": 4,
        "quantize": "int8",
        "control_every": CONTROL_EVERY,
    },
    "diloco int4 x4": {
        "method": "diloco",
        "every": 100,
        "outer": OUTER,
        "fragments": 4,
        "quantize": "int4",
        "control_every": CONTROL_EVERY,
    },
}


def rank_main(task: dict[str, object]) -> None:
    import torch
    from torch.utils.data import DataLoader, Subset
    from train import CharGPT, loss_of

    import phalanx.train as pt
    from phalanx.train.readers import TextFile

    torch.set_num_threads(1)
    run = pt.init(seed=task["seed"], clip=1.0, sync=task["sync"])
    data = TextFile(pydoc_data.topics.__file__, BLOCK, unit="characters", stride=BLOCK)
    steps, cut = task["steps"], len(data) * 9 // 10
    held_out = range(cut, len(data))
    cut -= cut % (BATCH * run.world_size)
    model = CharGPT(len(data.alphabet), BLOCK, width=48, depth=1, heads=4, dropout=0.0)
    opt = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, LR, total_steps=steps + 1)
    loader = DataLoader(Subset(data, range(cut)), BATCH, shuffle=True, drop_last=True)
    held_out = DataLoader(Subset(data, held_out), batch_size=64)
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    before, began = sent_bytes(task["interface"]), time.perf_counter()
    for _ in run.epochs(-(-steps * BATCH * run.world_size // cut)):
        for x, y in loader:
            if run.step == steps:
                break
            loss_of(model, x, y).backward()
            opt.step()
            sched.step()
            opt.zero_grad()
    took, sent = time.perf_counter() - began, sent_bytes(task["interface"]) - before
    inner = run.unwrap(model).eval()
    with torch.no_grad():
        losses = [(float(loss_of(inner, x, y)), len(x)) for x, y in held_out]
    loss = sum(one * num for one, num in losses) / sum(num for _, num in losses)
    num = sum(one.numel() for one in inner.parameters())
    if run.is_main:
        found = {
            "loss": loss,
            "sent_mb": sent / 1e6,
            "steps": run.step,
            "s": took,
            "parameters": num,
        }
        print(json.dumps(found), flush=True)
    os._exit(0)


def measured(names: list[str], seeds: int, rate: str, steps: int) -> list[dict[str, object]]:
    rows = []
    with two_rooms(rate) as rooms:
        how = in_rooms(rooms)
        for name in names:
            runs = []
            for seed in range(seeds):
                task = {"seed": seed, "sync": VARIANTS[name], "steps": steps}
                tasks = [{**task, "interface": f"v{at}"} for at in range(2)]
                runs.append(together(tasks_of(__file__, tasks), **how, guard_s=GUARD_S))
            found = {key: statistics.mean(one[key] for one in runs) for key in runs[0]}
            rows.append({"variant": name, **found, "losses": [one["loss"] for one in runs]})
            print(line(rows[-1], rows[0]), file=sys.stderr, flush=True)
    return rows


def line(row, plain) -> str:
    return (
        f"{row['variant']:16} {row['steps']:6.0f} steps  {row['sent_mb']:9.3f} MB sent"
        f"  {plain['sent_mb'] / row['sent_mb']:6.1f} x fewer   loss {row['loss']:.4f}"
        f"  {100 * (row['loss'] / plain['loss'] - 1):+5.2f} %   {row['s']:6.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rate", default="0")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.rank is not None:
        rank_main(wanted.rank)
    if refusal():
        raise SystemExit(refusal())
    rows = measured(wanted.variants.split(","), wanted.seeds, wanted.rate, wanted.steps)
    if wanted.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
