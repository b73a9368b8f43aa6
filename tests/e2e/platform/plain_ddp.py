"""An unmodified env:// script: it knows nothing of Phalanx and keeps no checkpoint."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    if step == 5 and dist.get_rank() == 0:
        open(f"{sys.argv[1]}.{restarts}", "w").close()
    time.sleep(0.02)
dist.destroy_process_group()
