"""A run of the library that trains until strangers have gone."""

import os
import time

import torch
from torch import nn

import phalanx.train as pt

run = pt.init()
model = nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(64, 2), torch.ones(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, opt, loader = run.prepare(model, opt, loader)
print("meeting", flush=True)
for _epoch in run.epochs(400):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        time.sleep(0.005)
    gone = float(os.path.exists(os.environ["STRANGERS_GONE"]))
    if run.all_reduce_sum(gone)[0] > 0:
        break
