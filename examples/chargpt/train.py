"""A character-level GPT on any text file.

phalanx run examples/chargpt/train.py -n 3 -- --data book.txt --epochs 1
torchrun --nproc-per-node 3 examples/chargpt/train.py --data book.txt
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import phalanx.train as pt
from phalanx.train.readers import TextFile

README = Path(__file__).resolve().parent.parent.parent / "README.md"


class Layer(nn.Module):
    """Attention to what came before, then two linear layers."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.inside = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        count, length, width = x.shape
        parts = self.split(self.norm1(x)).view(count, length, 3, self.heads, -1).transpose(1, 3)
        query, key, value = parts.unbind(2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.join(seen.transpose(1, 2).reshape(count, length, width)))
        return x + self.dropout(self.inside(self.norm2(x)))


class CharGPT(nn.Module):
    def __init__(self, num_characters, block, width=128, depth=4, heads=4, dropout=0.1):
        super().__init__()
        self.block = block
        self.characters = nn.Embedding(num_characters, width)
        self.places = nn.Parameter(0.02 * torch.randn(block, width))
        self.layers = nn.Sequential(*(Layer(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_characters)

    def forward(self, x):
        x = self.characters(x) + self.places[: x.shape[1]]
        return self.head(self.norm(self.layers(x)))


def loss_of(model, x, y):
    """Nats per character."""
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def evaluate(run, model, loader):
    """Mean loss over all ranks."""
    model.eval()
    total = seen = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += float(loss_of(model, x, y)) * len(x)
            seen += len(x)
    model.train()
    total, seen = run.all_reduce_sum(total, seen)
    return total / seen


def write(model, data, start, length):
    """Text that the model makes up."""
    model.eval()
    ids = data.encode(start)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(length):
            odds = model(ids[-model.block :].unsqueeze(0))[0, -1].softmax(0)
            ids = torch.cat([ids, torch.multinomial(odds, 1, generator=generator)])
    model.train()
    return data.decode(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=README, help="a text file in UTF-8")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--block", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--stride", type=int, default=32, help="a block starts every so many")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--write", type=int, default=200, help="characters to make up at the end")
    args = parser.parse_args()

    run = pt.init(seed=0, clip=1.0)
    data = TextFile(args.data, args.block, unit="characters", stride=args.stride)
    num_held_out = max(1, len(data) // 10)
    cut = len(data) - num_held_out
    model = CharGPT(len(data.alphabet), args.block, args.width, args.depth)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    loader = DataLoader(Subset(data, range(cut)), args.batch_size, shuffle=True)
    test_loader = run.eval_loader(DataLoader(Subset(data, range(cut, len(data))), batch_size=64))
    steps = args.epochs * math.ceil(cut / (args.batch_size * run.world_size))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=steps + 1)
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = loss_of(model, x, y)
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad()
            run.log(loss=loss)
            if run.step % 100 == 0:
                run.log(val_loss=evaluate(run, model, test_loader))
        final = evaluate(run, model, test_loader)
        run.log(val_loss=final)
        if run.is_main:
            print(f"epoch {epoch + 1}/{args.epochs}  val_loss {final:.4f}", flush=True)
    if run.is_main and args.write:
        print(write(run.unwrap(model), data, data.alphabet[0], args.write), flush=True)


if __name__ == "__main__":
    main()
