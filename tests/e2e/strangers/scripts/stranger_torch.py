"""A plain torch script: collectives before and after strangers came."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
row = torch.ones(1)
dist.all_reduce(row)
dist.get_default_group() if hasattr(dist, "get_default_group") else None
print("meeting", flush=True)
while not os.path.exists(os.environ["STRANGERS_GONE"]):
    time.sleep(0.1)
    dist.all_reduce(row)
    row.fill_(1.0)
group = dist.new_group(backend="gloo")  # opens connections again
dist.all_reduce(row, group=group)
assert row.item() == dist.get_world_size()
dist.destroy_process_group()
