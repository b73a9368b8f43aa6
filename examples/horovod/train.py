"""A Horovod script, as it is: broadcast at the start, gradients in fp16. It knows nothing of Phalanx.

horovodrun -np 3 --gloo python examples/horovod/train.py
phalanx submit examples/horovod/job.yaml --follow
"""

import argparse
import os
import time

import horovod.torch as hvd
import torch

STATE = "out/checkpoint.pt"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each epoch")
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    y = x @ torch.randn(8, 1)
    x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
    )
    begin = 0
    if hvd.rank() == 0 and os.path.exists(STATE):
        state = torch.load(STATE, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"] + 1
    # Only rank 0 has read the file.
    begin = hvd.broadcast_object(begin, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    print(f"rank {hvd.rank()} of {hvd.size()} begins at epoch {begin}", flush=True)
    for epoch in range(begin, args.epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        loss = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            os.makedirs("out", exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch}, STATE)
            print(f"Epoch {epoch}: loss={loss.item():.6f}", flush=True)
        time.sleep(args.pause)
    hvd.shutdown()


if __name__ == "__main__":
    main()
