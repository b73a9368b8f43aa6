"""Median step through the library against raw DDP: `make bench-train`, or with `--quick`.

Every variant lives in the same processes, with a model, an optimizer, a loader and a replica of its own.
They take turns in short blocks, A/B/B/A, so that whatever the machine does hits all alike; each block
begins with two steps that do not count. Reported are the medians over all ranks' steps of one variant
and the median of the rounds' ratios to raw DDP, with a bootstrap confidence interval over rounds.
Lightning Fabric and Accelerate take part where they are installed (`pip install 'phalanx[bench]'`).
`run.log` and `should_stop` are timed by themselves. A long measurement may be taken in parts: `--save FILE`
keeps the samples of one, `--pool FILE...` reports on all of them together.

The step is 20 to 30 ms of real work, sized when it starts (`--step-ms`).
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from phalanx.launch.ports import free_port

BLOCK = 12
SKIP = 2
BATCH = 128
WIDTH = 256


def installed(name):
    return importlib.util.find_spec(name) is not None


def network(depth):
    torch.manual_seed(0)
    layers = [nn.Linear(64, WIDTH), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def dataset(samples):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(samples, 64, generator=generator),
        torch.randint(0, 10, (samples,), generator=generator),
    )


def pieces(args, depth):
    model = network(depth)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1000)
    # Long enough for a whole measurement: no variant reaches the end of its pass.
    data = dataset(BATCH * args.ranks * (args.steps * 3 + 200))
    return model, opt, sched, data


def raw(args, depth):
    """Plain DistributedDataParallel, as its documentation writes it."""
    model, opt, sched, data = pieces(args, depth)
    model = nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    return steps(model, opt, sched, loader, lambda loss: loss.backward())


def ours(args, depth):
    """The five lines of phalanx.train, with reports, control page, ledger and metrics on."""
    import phalanx.train as pt

    run = pt.init(seed=0)
    model, opt, sched, data = pieces(args, depth)
    loader = DataLoader(data, BATCH, shuffle=True)
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    args.run = run

    def training():
        for _ in run.epochs(1):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                sched.step()
                opt.zero_grad()
                run.log(loss=loss)
                yield

    return training()


def fabric(args, depth):
    """Lightning Fabric with its DDP strategy."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment

    one = Fabric(
        accelerator="cpu", devices=args.ranks, strategy="ddp", plugins=[TorchElasticEnvironment()]
    )
    one.launch()
    model, opt, sched, data = pieces(args, depth)
    model, opt = one.setup(model, opt)
    loader = one.setup_dataloaders(DataLoader(data, BATCH, shuffle=True))
    return steps(model, opt, sched, loader, one.backward)


def accelerate(args, depth):
    """Hugging Face Accelerate."""
    from accelerate import Accelerator

    one = Accelerator(cpu=True)
    model, opt, sched, data = pieces(args, depth)
    model, opt, sched, loader = one.prepare(
        model, opt, sched, DataLoader(data, BATCH, shuffle=True)
    )
    return steps(model, opt, sched, loader, one.backward)


def steps(model, opt, sched, loader, backward):
    """One optimizer step each time it is asked for."""
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        backward(loss)
        opt.step()
        sched.step()
        opt.zero_grad()
        yield


VARIANTS = {"raw": raw, "ours": ours, "fabric": fabric, "accelerate": accelerate}


def depth_for(step_ms):
    """Layers that make a single rank's forward and backward pass take about this long."""
    model, x = network(8), torch.randn(BATCH, 64)
    durations = []
    for _ in range(15):
        began = time.perf_counter()
        model(x).sum().backward()
        durations.append(time.perf_counter() - began)
    per_layer_ms = min(durations) * 1e3 / 8
    return max(2, int(0.7 * step_ms / per_layer_ms))  # the rest is reduction and optimizer


def block(training, durations):
    """Some steps, back to back; the ranks begin together."""
    dist.barrier()
    for number in range(BLOCK):
        began = time.perf_counter_ns()
        next(training)
        if number >= SKIP:
            durations.append(time.perf_counter_ns() - began)


def rank_main(rank, args):
    os.environ.update(args.env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    os.environ["PHALANX_REPORT_FILE"] = f"{args.out}/r{rank}.report"
    os.environ["PHALANX_CONTROL_FILE"] = f"{args.out}/control"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    depth = torch.tensor([depth_for(args.step_ms / args.crowding) if rank == 0 else 0])
    dist.broadcast(depth, 0)
    trainings = {name: VARIANTS[name](args, int(depth)) for name in args.variants}
    for training in trainings.values():
        block(training, [])
    rounds = -(-args.steps // (2 * (BLOCK - SKIP)))
    blocks = {name: [] for name in args.variants}
    order = list(args.variants)
    for _ in range(rounds):
        for name in [*order, *reversed(order)]:
            blocks[name].append([])
            block(trainings[name], blocks[name][-1])
        # Who comes first changes as well.
        order = order[1:] + order[:1]
    single = calls(args.run) if rank == 0 else {}
    result = {"depth": int(depth), "blocks": blocks, "calls": single}
    Path(f"{args.out}/r{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # interpreters of four libraries do not all go quietly


def calls(run):
    """Microseconds of one call: `should_stop`, and `run.log` of a number and of a tensor."""
    loss = torch.tensor(0.5)
    log = run._parts.journal.log
    made = {
        "should_stop()": lambda at: run.should_stop(),
        "run.log(loss=tensor)": lambda at: log(at, {"loss": loss}),
        "run.log(loss=float)": lambda at: log(at, {"loss": 0.5}),
    }
    found = {}
    for name, call in made.items():
        durations = []
        for repeat in range(2000):
            began = time.perf_counter_ns()
            call(repeat)  # a new step each time: the previous values are read and reported
            durations.append(time.perf_counter_ns() - began)
        durations.sort()
        found[name] = (durations[1000] / 1e3, durations[1980] / 1e3)
    return found


def paired(ours_blocks, raw_blocks):
    """The ratio of medians within each round: what slows a whole round down cancels out."""
    return [
        statistics.median(ours_blocks[at] + ours_blocks[at + 1])
        / statistics.median(raw_blocks[at] + raw_blocks[at + 1])
        for at in range(0, len(raw_blocks), 2)
    ]


def interval(ratios, rng, num=2000):
    """95 % bootstrap interval of the median of the rounds' ratios."""
    found = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(num))
    return found[int(0.025 * num)], found[int(0.975 * num)]


def joined(results, name):
    """Blocks of one variant with all ranks' steps together."""
    return [
        [value for row in rows for value in row]
        for rows in zip(*(one["blocks"][name] for one in results), strict=True)
    ]


def report(args, results, out):
    blocks = {name: joined(results, name) for name in args.variants}
    rng = random.Random(0)
    median = {
        name: statistics.median([value for one in rows for value in one]) / 1e6
        for name, rows in blocks.items()
    }
    steps_each = len(blocks["raw"]) * (BLOCK - SKIP)
    cores = len(os.sched_getaffinity(0))
    print(
        f"{args.ranks} ranks on {cores} cores, gloo, {steps_each} steps of each variant,"
        f" torch {torch.__version__}, Python {platform.python_version()}"
    )
    print(f"{'variant':<12} {'median ms':>10} {'ratio':>8}   95 % interval")
    summary = {}
    for name in args.variants:
        ratios = paired(blocks[name], blocks["raw"])
        ratio = statistics.median(ratios)
        low, high = interval(ratios, rng) if name != "raw" else (1.0, 1.0)
        summary[name] = {"median_ms": median[name], "ratio": ratio, "low": low, "high": high}
        print(f"{name:<12} {median[name]:>10.3f} {ratio:>8.4f}   [{low:.4f}, {high:.4f}]")
    for name in [one for one in VARIANTS if one not in args.variants]:
        print(f"{name:<12} is not installed")
    for name, (half, most) in results[0]["calls"].items():
        print(f"{name:<22} median {half:.2f} us, 99 % below {most:.2f} us")
    if out:
        Path(out).write_text(json.dumps({"summary": summary, "calls": results[0]["calls"]}))


def pooled(files):
    """Results of several measurements as one: every rank's blocks, one after the other."""
    parts = [json.loads(Path(file).read_text()) for file in files]
    first = parts[0]
    for part in parts[1:]:
        if (part["ranks"], part["variants"]) != (first["ranks"], first["variants"]):
            sys.exit("these measurements differ in ranks or variants")
        for mine, more in zip(first["results"], part["results"], strict=True):
            for name, rows in more["blocks"].items():
                mine["blocks"][name] += rows
    return first


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000, help="of each variant")
    parser.add_argument("--quick", action="store_true", help="200 steps of each variant")
    parser.add_argument("--step-ms", type=float, default=25.0, dest="step_ms")
    parser.add_argument("--only", nargs="*", default=[], help="variants beside raw")
    parser.add_argument("--json", help="write the figures there too")
    parser.add_argument("--save", help="write the samples there, for --pool")
    parser.add_argument("--pool", nargs="+", help="measure nothing; report on saved samples")
    args = parser.parse_args()
    if args.pool:
        whole = pooled(args.pool)
        args.ranks, args.variants = whole["ranks"], whole["variants"]
        report(args, whole["results"], args.json)
        return
    if args.quick:
        args.steps = 200
    missing = {
        "fabric": not installed("lightning_fabric"),
        "accelerate": not installed("accelerate"),
    }
    wanted = ["raw", *(args.only or list(VARIANTS)[1:])]
    args.variants = [name for name in wanted if not missing.get(name)]
    if "ours" not in args.variants:
        sys.exit("ours has to take part")
    cores = len(os.sched_getaffinity(0))
    args.crowding = max(1.0, args.ranks / cores)
    port = free_port()
    args.env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(args.ranks),
        "LOCAL_WORLD_SIZE": str(args.ranks),
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "bench",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    with tempfile.TemporaryDirectory() as out:
        args.out, args.run = out, None
        mp.start_processes(rank_main, (args,), nprocs=args.ranks, start_method="spawn")
        results = [
            json.loads(Path(f"{out}/r{rank}.json").read_text()) for rank in range(args.ranks)
        ]
    if args.save:
        whole = {"ranks": args.ranks, "variants": args.variants, "results": results}
        Path(args.save).write_text(json.dumps(whole))
    with contextlib.suppress(BrokenPipeError):
        report(args, results, args.json)


if __name__ == "__main__":
    main()
