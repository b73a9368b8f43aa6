"""Gradient compression on slow links: time and bytes of a step, and what it costs in accuracy.

    python bench/compression.py [--rates 50mbit,100mbit,1gbit,0] [--methods …] [--accuracy] [--json]

Two ranks, each in a network namespace of its own, joined by a link of that rate (0: as it is); how it is
shaped stands in `shaped_link.py`. A model of 3.2 million parameters (12.7 MB of gradients, several
buckets), one thread a rank. Bytes are counted by the kernel on the interface.

All methods of a rate have a pair of ranks each, alive at once, and take turns: a few steps each, then the
next (at most 8, or 0.4 s). `alone` is the same model without a network: what a step computes.
`--accuracy` trains a small network on scikit-learn's digits for five seeds, on loopback, with and without
error feedback.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

from shaped_link import (
    ended,
    gang,
    in_rooms,
    refusal,
    sent_bytes,
    tasks_of,
    together,
    turn,
    two_rooms,
)

METHODS = ("none", "alone", "fp16", "bf16", "powersgd", "topk", "randomk", "auto")
SEEDS = range(5)
WARM, TURNS, MOST_IN_TURN, TURN_S = 4, 30, 8, 0.4
# Enough of a method's steps, once there are a few.
ENOUGH_S, LEAST_STEPS = 5.0, 8
# More than auto needs for its decision.
AUTO_WARM = 130
GUARD_S = 600


# -- one rank ------------------------------------------------------------------------------------------


def speed(method: str, interface: str) -> None:
    """Train as many steps as each line on stdin says; answer with their times and bytes."""
    import copy

    import torch
    from torch import nn

    import phalanx.train as pt

    torch.set_num_threads(1)
    run = pt.init(compression="none" if method == "alone" else method)
    width = 1024
    layers = [one for _ in range(3) for one in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 16))
    plain = copy.deepcopy(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    model, opt = run.prepare(model, opt)
    if method == "alone":
        model, opt = plain, torch.optim.SGD(plain.parameters(), lr=0.01)
    x, y = torch.randn(32, width), torch.randint(0, 16, (32,))

    def step() -> None:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()

    for wanted in sys.stdin:
        took = []
        before = sent_bytes(interface)
        for _ in range(int(wanted)):
            began = time.perf_counter()
            step()
            took.append(time.perf_counter() - began)
        sent = sent_bytes(interface) - before
        chosen = run._parts.compressors.methods[0]
        print(json.dumps({"took": took, "sent": sent, "chosen": chosen}), flush=True)


def accuracy(wishes: dict[str, object], seed: int) -> dict[str, float]:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import phalanx.train as pt

    torch.set_num_threads(1)
    data = load_digits()
    x = torch.tensor(data.data / 16.0, dtype=torch.float32)
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    run = pt.init(seed=seed, compression=wishes)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=32, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for _ in run.epochs(12):
        for a, b in loader:
            nn.functional.cross_entropy(model(a), b).backward()
            opt.step()
            opt.zero_grad()
    with torch.no_grad():
        right = (run.unwrap(model)(x[test]).argmax(1) == y[test]).float().mean()
    return {"accuracy": float(right)}


def rank_main(task: dict[str, object]) -> None:
    if "seed" in task:
        found = accuracy(task["wishes"], task["seed"])
        if os.environ["RANK"] == "0":
            print(json.dumps(found), flush=True)
    else:
        speed(task["method"], task["interface"])
    os._exit(0)


# -- all of them ---------------------------------------------------------------------------------------


def in_turn(step_s: float) -> int:
    """Steps of a turn."""
    return max(1, min(MOST_IN_TURN, int(TURN_S / step_s)))


def speeds(rates: list[str], methods: list[str]) -> list[dict[str, object]]:
    rows = []
    for rate in rates:
        with two_rooms(rate) as rooms:
            gangs = {}
            for method in methods:
                tasks = [{"method": method, "interface": f"v{at}"} for at in range(2)]
                gangs[method] = gang(tasks_of(__file__, tasks), **in_rooms(rooms))
            first = {
                method: turn(ranks, AUTO_WARM if method == "auto" else WARM)
                for method, ranks in gangs.items()
            }
            step_s = {name: statistics.median(one["took"][-8:]) for name, one in first.items()}
            took: dict[str, list[float]] = {name: [] for name in gangs}
            sent = dict.fromkeys(gangs, 0)
            for _ in range(TURNS):
                for name, ranks in gangs.items():
                    if sum(took[name]) < ENOUGH_S or len(took[name]) < LEAST_STEPS:
                        one = turn(ranks, in_turn(step_s[name]))
                        took[name] += one["took"]
                        sent[name] += one["sent"]
            for ranks in gangs.values():
                ended(ranks, GUARD_S)
        for name in methods:
            rows.append(
                {
                    "rate": rate,
                    "method": name,
                    "step_s": statistics.median(took[name]),
                    "took": took[name],
                    "sent_mb": sent[name] / len(took[name]) / 1e6,
                    "chosen": first[name]["chosen"],
                }
            )
            print(line(rows[-1], rows), file=sys.stderr, flush=True)
    return rows


def line(row, rows) -> str:
    times = {one["method"]: one["step_s"] for one in rows if one["rate"] == row["rate"]}
    link = "unshaped" if row["rate"] == "0" else row["rate"]
    note = ""
    if row["method"] == "auto":
        fixed = {name: took for name, took in times.items() if name not in ("auto", "alone")}
        best = min(fixed, key=fixed.get)
        note = f" -> {row['chosen']}, {row['step_s'] / fixed[best] - 1:+.1%} of the best ({best})"
    faster = f"{times['none'] / row['step_s']:5.1f} x" if "none" in times else ""
    return (
        f"{link:>9}  {row['method']:9} {row['step_s'] * 1e3:8.1f} ms  {row['sent_mb']:6.2f} MB sent"
        f"  {faster}{note}"
    )


def accuracies() -> list[dict[str, object]]:
    rows = []
    variants = {
        "none": {},
        "powersgd": {"method": "powersgd"},
        "powersgd, nothing kept": {"method": "powersgd", "error_feedback": False},
        "topk 1 %": {"method": "topk"},
        "topk, nothing kept": {"method": "topk", "error_feedback": False},
        "randomk 5 %": {"method": "randomk", "fraction": 0.05},
    }
    for name, wishes in variants.items():
        answers = []
        for seed in SEEDS:
            task = {"wishes": wishes, "seed": seed}
            answers.append(together(tasks_of(__file__, [task] * 2), [[], []], [{}, {}], GUARD_S))
        found = [one["accuracy"] for one in answers]
        rows.append({"method": name, "mean": statistics.mean(found), "accuracies": found})
        print(f"{name:24} {100 * rows[-1]['mean']:6.2f} %  {found}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", default="50mbit,100mbit,1gbit,0")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.rank is not None:
        rank_main(wanted.rank)
    if wanted.accuracy:
        found = accuracies()
    else:
        if refusal():
            raise SystemExit(f"{refusal()}; --accuracy does not")
        found = speeds(wanted.rates.split(","), wanted.methods.split(","))
    if wanted.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
