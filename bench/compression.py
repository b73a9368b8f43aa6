"""Gradient compression on slow links: time and bytes of a step, and what it costs in accuracy.

    python bench/compression.py [--rates 50mbit,100mbit,1gbit,0] [--accuracy] [--json]

Two ranks, each in a network namespace of its own, joined by a veth pair whose two ends are shaped with
tbf (0: not at all): needs root and iproute2. A model of 3.2 million parameters (12.7 MB of gradients,
several buckets), one thread a rank. Bytes are counted by the kernel on the interface. `--accuracy`
trains a small network on scikit-learn's digits for five seeds, on loopback, with and without error
feedback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

METHODS = ("none", "fp16", "bf16", "powersgd", "topk", "randomk", "auto")
SEEDS = range(5)
WARM, COUNTED = 4, 8
AUTO_WARM = 20
GUARD_S = 600


# -- one rank ------------------------------------------------------------------------------------------


def sent_bytes(interface: str) -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith(f"{interface}:"):
            return int(line.split(":")[1].split()[8])
    return 0


def speed(method: str, interface: str) -> dict[str, float | str | None]:
    import torch
    from torch import nn

    import phalanx.train as pt

    torch.set_num_threads(1)
    run = pt.init(compression=method)
    width = 1024
    layers = [one for _ in range(3) for one in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 16))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    model, opt = run.prepare(model, opt)
    x, y = torch.randn(32, width), torch.randint(0, 16, (32,))

    def step() -> None:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()

    for _ in range(AUTO_WARM if method == "auto" else WARM):
        step()
    took = []
    before = sent_bytes(interface)
    for _ in range(COUNTED):
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    sent = (sent_bytes(interface) - before) / COUNTED
    return {
        "step_s": statistics.median(took),
        "sent_mb": sent / 1e6,
        "took": run._compressors.methods[0],
    }


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
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                          nn.Linear(128, 10))  # fmt: skip
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
    else:
        found = speed(task["method"], task["interface"])
    if os.environ["RANK"] == "0":
        print(json.dumps(found), flush=True)
    os._exit(0)


# -- the machine around them -----------------------------------------------------------------------------


def sh(line: str) -> None:
    subprocess.run(line.split(), check=True)


@contextlib.contextmanager
def two_rooms(rate: str):
    """Names of two network namespaces with a shaped link between them."""
    tag = f"phx{os.getpid()}"
    rooms = [f"{tag}a", f"{tag}b"]
    try:
        for room in rooms:
            sh(f"ip netns add {room}")
        sh(f"ip link add v0 netns {rooms[0]} type veth peer name v1 netns {rooms[1]}")
        for at, room in enumerate(rooms):
            sh(f"ip -n {room} addr add 10.77.0.{at + 1}/24 dev v{at}")
            sh(f"ip -n {room} link set v{at} up")
            sh(f"ip -n {room} link set lo up")
            if rate != "0":
                shape = f"tbf rate {rate} burst 256kb latency 50ms"
                sh(f"ip netns exec {room} tc qdisc add dev v{at} root {shape}")
        yield rooms
    finally:
        for room in rooms:
            subprocess.run(["ip", "netns", "del", room], check=False)


def together(
    tasks: list[dict[str, object]], leads: list[list[str]], extra: list[dict[str, str]],
    script: str = __file__, guard_s: float = GUARD_S,
):  # fmt: skip
    """Run one rank of `script` per task; rank 0's answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank, (task, lead) in enumerate(zip(tasks, leads, strict=True)):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(tasks)), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", **extra[rank],
        }  # fmt: skip
        words = [*lead, sys.executable, "-W", "ignore", script, "--rank", json.dumps(task)]
        ranks.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
    answers = [one.communicate(timeout=guard_s)[0] for one in ranks]
    if any(one.returncode for one in ranks):
        raise SystemExit(f"a rank failed: {[one.returncode for one in ranks]}")
    return json.loads(answers[0].strip().splitlines()[-1])


def speeds(rates: list[str], methods: list[str]) -> list[dict[str, object]]:
    rows = []
    for rate in rates:
        with two_rooms(rate) as rooms:
            for method in methods:
                tasks = [{"method": method, "interface": f"v{at}"} for at in range(2)]
                leads = [["ip", "netns", "exec", room] for room in rooms]
                extra = [
                    {"GLOO_SOCKET_IFNAME": f"v{at}", "MASTER_ADDR": "10.77.0.1"} for at in range(2)
                ]
                found = {"rate": rate, "method": method, **together(tasks, leads, extra)}
                rows.append(found)
                print(line(found, rows), file=sys.stderr, flush=True)
    return rows


def line(row, rows) -> str:
    plain = next(r["step_s"] for r in rows if (r["rate"], r["method"]) == (row["rate"], "none"))
    link = "unshaped" if row["rate"] == "0" else row["rate"]
    note = f" -> {row['took']}" if row["method"] == "auto" else ""
    return (
        f"{link:>9}  {row['method']:9} {row['step_s'] * 1e3:8.1f} ms  {row['sent_mb']:6.2f} MB sent"
        f"  {plain / row['step_s']:5.1f} x{note}"
    )


def accuracies() -> list[dict[str, object]]:
    rows = []
    variants = {
        "none": {}, "powersgd": {"method": "powersgd"},
        "powersgd, nothing kept": {"method": "powersgd", "error_feedback": False},
        "topk 1 %": {"method": "topk"}, "topk, nothing kept": {"method": "topk", "error_feedback": False},
        "randomk 5 %": {"method": "randomk", "fraction": 0.05},
    }  # fmt: skip
    for name, wishes in variants.items():
        found = []
        for seed in SEEDS:
            task = {"wishes": wishes, "seed": seed}
            found.append(together([task] * 2, [[], []], [{}, {}])["accuracy"])
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
        if os.geteuid() != 0:
            raise SystemExit("shaping a link needs root; --accuracy does not")
        found = speeds(wanted.rates.split(","), wanted.methods.split(","))
    if wanted.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
