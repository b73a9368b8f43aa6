"""A plain Ray Train script, as Ray's own documentation has it: nothing here knows Phalanx.

python examples/ray/torch_trainer.py
phalanx submit examples/ray/torch_trainer.yaml --follow
"""

import argparse
import os
import tempfile

import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_on_digits(config):
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).flatten(1) / 16.0
    loader = DataLoader(
        TensorDataset(images, torch.tensor(bunch.target)), batch_size=32, shuffle=True
    )
    loader = prepare_data_loader(loader)
    model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        right = seen = 0
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
        with tempfile.TemporaryDirectory() as folder:
            state = {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch,
            }  # fmt: skip
            torch.save(state, os.path.join(folder, "state.pt"))
            main = ray.train.get_context().get_world_rank() == 0
            ray.train.report(
                {"epoch": epoch, "loss": loss.item(), "accuracy": right / seen},
                checkpoint=Checkpoint.from_directory(folder) if main else None,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    trainer = TorchTrainer(
        train_on_digits,
        train_loop_config={"lr": 0.01, "epochs": args.epochs},
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(),
    )
    print(trainer.fit().metrics)
