"""The script of `bench/on_ray.py`: a few DDP steps. `python ray_steps.py --trainer N ADDRESS` runs the same
function under Ray Train's own TorchTrainer; without it, the ranks are there already."""

import os
import sys
import time


def train(config):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            with open(config["trace"], "a") as trace:
                trace.write(f"{time.time()}\n")


def main():
    config = {"trace": os.environ["BENCH_TRACE"]}
    if sys.argv[1:2] != ["--trainer"]:
        train(config)
        return
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(address=sys.argv[3], log_to_driver=False)
    scaling = ScalingConfig(num_workers=int(sys.argv[2]))
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()


if __name__ == "__main__":
    main()
