"""A JAX script: collectives before and after strangers came."""

import os
import time

import jax

jax.distributed.initialize()
from jax.experimental import multihost_utils  # noqa: E402

multihost_utils.sync_global_devices("begin")
print("meeting", flush=True)
while not os.path.exists(os.environ["STRANGERS_GONE"]):
    time.sleep(0.1)
multihost_utils.sync_global_devices("end")
