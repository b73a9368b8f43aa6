"""A small regression that shows checkpoints: where they are stored, which are kept, which keys read them.

phalanx submit examples/checkpoints/keep.yaml --follow     # the last two, the best, one of every 100 steps
phalanx submit examples/checkpoints/far.yaml --follow      # copies in an object store, encrypted
python examples/checkpoints/train.py --dir /tmp/ckpt       # alone
phalanx checkpoints export /tmp/ckpt model.safetensors     # the newest one's weights
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import phalanx.train as pt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dir", help="where checkpoints go outside of the platform")
    parser.add_argument("--store", help="s3://bucket/prefix for copies")
    parser.add_argument("--key-env", help="the variable that holds a key")
    args = parser.parse_args()
    run = pt.init(
        seed=0,
        checkpoint_dir=args.dir,
        checkpoint_every="20 steps",
        checkpoint_keep={"last": 2},
        checkpoint_store=args.store,
        checkpoint_key_env=args.key_env,
    )
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(960, 16, generator=generator)
    y = (x @ torch.randn(16, 1, generator=generator)).tanh()
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model, opt, loader = run.prepare(model, opt, loader)
    for epoch in run.epochs(args.epochs):
        for inputs, wanted in loader:
            loss = functional.mse_loss(model(inputs), wanted)
            loss.backward()
            opt.step()
            opt.zero_grad()
            run.log(loss=loss)
        if run.is_main:
            print(f"epoch {epoch + 1}: loss {float(loss):.5f}", flush=True)


if __name__ == "__main__":
    main()
