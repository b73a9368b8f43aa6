"""An MPI script: collectives before and after strangers came."""

import os
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
assert world.allreduce(1) == world.size
if world.rank == 0:
    print("meeting", flush=True)
while not world.bcast(os.path.exists(os.environ["STRANGERS_GONE"]) if world.rank == 0 else None):
    time.sleep(0.1)
assert world.allreduce(1) == world.size
