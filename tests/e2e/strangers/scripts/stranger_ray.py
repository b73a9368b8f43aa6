"""A Ray script: tasks before and after strangers came."""

import os
import time

import ray

ray.init()


@ray.remote
def one():
    return 1


assert sum(ray.get([one.remote() for _ in range(2)])) == 2
print("meeting", flush=True)
while not os.path.exists(os.environ["STRANGERS_GONE"]):
    time.sleep(0.1)
assert sum(ray.get([one.remote() for _ in range(2)])) == 2
