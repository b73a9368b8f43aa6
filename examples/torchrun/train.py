"""A script for torchrun, as it is: DDP, `@record`, a snapshot of its own. It knows nothing of Phalanx.

torchrun --standalone --nproc-per-node 3 examples/torchrun/train.py
phalanx submit examples/torchrun/job.yaml --follow
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

SNAPSHOT = "out/snapshot.pt"


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each epoch")
    parser.add_argument(
        "--fail-at", type=int, help="raise an exception in this epoch, the first time"
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    y = x @ torch.randn(8, 1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begin = 0
    if os.path.exists(SNAPSHOT):
        state = torch.load(SNAPSHOT, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"] + 1
        print(f"[{rank}] resuming at epoch {begin}", flush=True)
    for epoch in range(begin, args.epochs):
        loss = torch.nn.functional.mse_loss(model(x[rank::world]), y[rank::world])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == args.fail_at and begin == 0:
            raise ValueError(f"asked to fail in epoch {epoch}")
        if rank == 0:
            os.makedirs("out", exist_ok=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch}, SNAPSHOT)
            print(f"epoch {epoch} | loss {loss.item():.6f}", flush=True)
        time.sleep(args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
