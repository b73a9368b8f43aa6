"""The script that the training tests run: every kind of randomness, a scheduler, state of its own."""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import phalanx.train as pt


class Noisy(Dataset):
    """Samples that draw from all three global generators, as augmentations do."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 16, generator=generator)
        self.y = torch.randint(0, 4, (size,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        noise = torch.randn(16) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1
        return at, self.x[at] + noise, self.y[at]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, 64),
            nn.ReLU(),
            nn.Linear(64, 4),
        )

    def forward(self, x):
        return self.layers(x)


class Tally:
    """State of the script's own, kept by `run.track`: one number for each step."""

    def __init__(self):
        self.rows = []

    def state_dict(self):
        return {"rows": list(self.rows)}

    def load_state_dict(self, state):
        self.rows = list(state["rows"])


def digest(model, opt):
    """SHA-256 of every parameter, buffer and, if there is one, optimizer tensor."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(full(tensor).numpy().tobytes())
    for state in opt.state_dict()["state"].values() if opt is not None else ():
        for name in sorted(state):
            sha.update(full(torch.as_tensor(state[name])).numpy().tobytes())
    return sha.hexdigest()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--context", default=None)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--pattern", default="after", choices=["after", "before"])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--ask-at", type=int, default=0)
    parser.add_argument("--break-cure", default="")
    parser.add_argument("--bucket-mb", type=float, default=0.005)
    parser.add_argument("--raise-at", type=int, default=0)
    parser.add_argument("--chatter", action="store_true")
    parser.add_argument("--note-signals", action="store_true")
    parser.add_argument("--print-digest", action="store_true", help="of every rank's weights")
    return parser.parse_args()


def without(cure):
    """Take one cure out of the library: only the tests' negative controls do this."""
    from phalanx.train.data import loader as data
    from phalanx.train.gang import groups
    from phalanx.train.parallel import replica
    from phalanx.train.step import engine

    if cure == "buckets":
        replica.freeze_buckets = lambda ddp: None
    elif cure == "sample-seeds":
        data.randomness.seed_sample = lambda seed: None
    elif cure == "rng-after-fetch":
        engine.StepEngine._restore_rng = lambda self: setattr(self, "_resume_rng", None)
    elif cure == "residuals":
        from phalanx.train.numerics.compression import error_feedback

        error_feedback.Residuals.load_state_dict = lambda self, state, parameters: None
    elif cure == "own-weights":
        from phalanx.train.numerics.local_sgd.rounds import ModelRounds

        whole = ModelRounds.load_state_dict
        ModelRounds.load_state_dict = lambda self, state: whole(self, {**(state or {}), "own": {}})
    elif cure == "own-group":
        groups.Connection.private_group = lambda self: torch.distributed.group.WORLD


def talk(run):
    """Use the checkpoint channel all the time from another thread, as a background save would."""

    def keep_talking():
        for count in range(300):
            sent = [count] * 700
            assert run.all_reduce_sum(*sent) == [count * run.world_size] * 700

    def talk_or_die():
        try:
            keep_talking()
        except BaseException as error:
            print(f"chatter: {error!r}", file=sys.stderr, flush=True)
            os._exit(13)

    thread = threading.Thread(target=talk_or_die, daemon=True)
    thread.start()
    return thread


PHASES = (
    ("save", "saving.py"),
    ("save", "staging.py"),
    ("agreement", "agreement.py"),
    ("collective", "distributed_c10d.py"),
    ("optimizer", "optim"),
    ("backward", "autograd"),
    ("data", "dataloader.py"),
    ("forward", "functional.py"),
    ("forward", "modules"),
)


def note_signals(out):
    """Write down in which part of a step each SIGTERM arrives, then do what the library does."""
    inner = signal.getsignal(signal.SIGTERM)

    def noting(number, frame):
        inner(number, frame)
        files = []
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        found = [phase for phase, part in PHASES if any(part in file for file in files)]
        with open(f"{out}.phases", "a") as file:
            file.write((found or ["between"])[0] + "\n")

    signal.signal(signal.SIGTERM, noting)


def full(tensor):
    """The whole of a tensor that may be sharded over the ranks. Collective."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def buckets_of(model):
    """How many buckets DDP reduces gradients in."""
    told = getattr(model, "_get_ddp_logging_data", dict)()
    return len(told.get("rebuilt_bucket_sizes", "").split(","))


def main():
    args = arguments()
    without(args.break_cure)
    run = pt.init(seed=3, accumulate=args.accumulate, ddp={"bucket_cap_mb": args.bucket_mb})
    if args.note_signals:
        note_signals(args.out)
    model = Net(args.width)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=10_000)
    loader = DataLoader(
        Noisy(args.samples),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.context if args.workers else None,
    )
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)
    seen = open(f"{args.out}.r{run.rank}.seen", "a")  # noqa: SIM115
    run.state.setdefault("epochs_seen", [])
    tally = Tally()
    run.track(tally=tally)
    talking = None
    for epoch in run.epochs(args.epochs):
        for at, x, y in loader:
            if args.chatter and talking is None:
                talking = talk(run)
            if args.pattern == "before":
                opt.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            run.backward(loss)
            opt.step()
            sched.step()
            if args.pattern == "after":
                opt.zero_grad()
            tally.rows.append(run.step)
            run.log(loss=loss, jitter=random.random())
            print(
                epoch,
                run.step,
                at.tolist(),
                f"{float(x.detach().sum()):.6f}",
                file=seen,
                flush=True,
            )
            if args.ask_at and run.step == args.ask_at:
                run.checkpoint()
            if args.raise_at and run.step == args.raise_at and run.rank == 1:
                raise ValueError("this rank had enough")
        run.state["epochs_seen"] = [*run.state["epochs_seen"], epoch]
        torch.rand(1), np.random.rand(), random.random()
    seen.close()
    if talking is not None:
        talking.join()
    found = digest(run.unwrap(model), opt)
    if args.print_digest:
        print("digest", digest(run.unwrap(model), None), flush=True)
    if run.is_main:
        result = {
            "digest": found,
            "step": run.step,
            "state": run.state,
            "tally": tally.rows,
            "lr": sched.get_last_lr(),
            "pid": os.getpid(),
            "buckets": buckets_of(model),
        }
        with open(f"{args.out}.json", "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
