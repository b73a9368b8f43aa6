"""A script for torchrun: every rank adds its share of a gradient, and the loss goes down."""

import argparse

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    inputs = torch.randn(64, 4)
    targets = inputs @ torch.tensor([1.0, -2.0, 3.0, 0.5])
    weights = torch.zeros(4)
    for step in range(1, steps + 1):
        errors = inputs @ weights - targets
        totals = torch.cat([inputs.T @ errors / len(errors), (errors**2).mean()[None]])
        dist.all_reduce(totals)
        totals /= world
        weights -= 0.1 * totals[:4]
        if rank == 0:
            print(f"step {step}: loss {totals[4].item():.6f} world {world}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
