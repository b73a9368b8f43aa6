"""What each exchange promises, checked by three real ranks; every failure names it."""

import os
import sys

import torch
import torch.distributed as dist

from phalanx.train.numerics.local_sgd.exchange import EXCHANGES

LENGTH, STEPS = 5000, 6
# The largest error of one exchange: half a step of the coarsest block, twice.
WORST = {"none": 1e-6, "int8": 0.06, "int4": 0.9}


def everybody(tensor):
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor)
    return rows


def check(name, exchange):
    """All ranks get the same bits, near the mean; what was not said is owed, and nothing else."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    owed = torch.zeros(LENGTH)
    true, said = torch.zeros(LENGTH), torch.zeros(LENGTH)
    for _ in range(STEPS):
        mine = torch.randn(LENGTH, generator=generator)
        before, asked = sum(everybody(owed)) / 3, sum(everybody(mine)) / 3
        got = exchange.mean(mine, owed)
        assert all(torch.equal(one, got) for one in everybody(got)), f"{name}: ranks differ"
        assert (before + asked - got).abs().max() < WORST[name], f"{name}: far off"
        true += asked
        said += got
    rest = true - said - sum(everybody(owed)) / 3
    assert rest.abs().max() < 1e-5, f"{name}: lost {rest.abs().max()}"
    if name != "none":
        assert owed.abs().max() > 1e-4, f"{name}: nothing was quantised"


def main():
    dist.init_process_group("gloo")
    for name, exchange in EXCHANGES.items():
        check(name, exchange)
    dist.barrier()
    dist.destroy_process_group()
    print("all checked", os.environ["RANK"])


if __name__ == "__main__":
    sys.exit(main())
