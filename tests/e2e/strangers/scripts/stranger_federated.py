"""A federation's coordinator and one site, in a job without a framework."""

import os
import threading
import time

import torch
from torch import nn

from phalanx.train import federated

torch.manual_seed(0)
own = federated.Coordinator(
    nn.Linear(2, 1), num_rounds=2, token="secret", min_sites=1, gather_s=0.1, directory="federation"
)
there, port = threading.Event(), []
thread = threading.Thread(
    target=own.serve,
    args=("0.0.0.0", 0),
    kwargs={"ready": lambda at: (port.append(at), there.set())},
)
thread.start()
there.wait()
print("meeting", flush=True)
while not os.path.exists(os.environ["STRANGERS_GONE"]):
    time.sleep(0.1)
token = federated.site_token("secret", "a")
site = federated.Site(f"127.0.0.1:{port[0]}", name="a", token=token)
for _ in site.rounds(nn.Linear(2, 1)):
    site.submit(count=1)
thread.join()
