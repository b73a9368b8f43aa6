"""An MPI script, as it is: mpi4py averages gradients, rank 0 keeps a file. It knows nothing of Phalanx.

mpirun -n 3 python examples/mpi/train.py
phalanx submit examples/mpi/job.yaml --follow
"""

import argparse
import os
import time

import numpy as np
from mpi4py import MPI

STATE = "out/state.npz"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 8))
    y = x @ rng.standard_normal(8)
    weights, begin = np.zeros(8), 0
    if os.path.exists(STATE):
        saved = np.load(STATE)
        weights, begin = saved["weights"], int(saved["step"]) + 1
    # Every rank starts from what rank 0 has read.
    weights, begin = world.bcast((weights, begin))
    print(f"rank {rank} of {size} begins at step {begin}", flush=True)
    mine = slice(rank, None, size)
    for step in range(begin, args.steps):
        error = x[mine] @ weights - y[mine]
        gradient = np.zeros(8)
        world.Allreduce(2 * x[mine].T @ error / len(y), gradient)
        loss = world.allreduce(float(error @ error)) / len(y)
        weights = weights - 0.1 * gradient
        if rank == 0:
            os.makedirs("out", exist_ok=True)
            np.savez("out/.state.npz", weights=weights, step=step)
            os.replace("out/.state.npz", STATE)
            print(f"step {step} loss {loss:.6f}", flush=True)
        time.sleep(args.pause)


if __name__ == "__main__":
    main()
