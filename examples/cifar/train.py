"""ResNet-18 on a folder of images: CIFAR-10, or any `train/<class>/*.jpg` and `test/<class>/*.jpg`.

phalanx run examples/cifar/train.py -n 3 -- --data ~/.cache/cifar10 --width 16 --epochs 10
torchrun --nproc-per-node 3 examples/cifar/train.py --data ~/.cache/cifar10
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

import phalanx.train as pt
from phalanx.train.readers import ImageFolder

MEAN, SPREAD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        inside = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.shortcut(x) + self.norm2(self.second(inside)))


class ResNet18(nn.Module):
    """The network of He et al. with the stem for small images; `width` is 64 in the paper."""

    def __init__(self, num_classes, width=64):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer(
            "spread", torch.tensor(SPREAD).view(1, 3, 1, 1) * 255, persistent=False
        )
        layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        inner = width
        for stage in range(4):
            outer = width << stage
            layers += [Block(inner, outer, 1 if stage == 0 else 2), Block(outer, outer, 1)]
            inner = outer
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inner, num_classes)

    def forward(self, x):
        """Class scores of uint8 images."""
        x = (x.float() - self.mean) / self.spread
        return self.head(self.body(x).mean((2, 3)))


class Shifted:
    """A training image, moved by up to `most` pixels and mirrored half of the time."""

    def __init__(self, most=4):
        self.most = most

    def __call__(self, picture):
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        x = pixels.view(picture.height, picture.width, 3).permute(2, 0, 1)
        top, left, mirrored = (int(torch.randint(n, ())) for n in (2 * self.most + 1,) * 2 + (2,))
        padded = functional.pad(x, (self.most,) * 4)
        x = padded[:, top : top + picture.height, left : left + picture.width]
        return (x.flip(2) if mirrored else x).contiguous()


def first(dataset, count):
    """An even choice of `count` samples of a data set that is sorted by class; 0 means all."""
    if not 0 < count < len(dataset):
        return dataset
    return Subset(dataset, [at * len(dataset) // count for at in range(count)])


def evaluate(run, model, loader):
    """The share of right answers over all ranks."""
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            seen += len(y)
    model.train()
    right, seen = run.all_reduce_sum(right, seen)
    return right / seen


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path.home() / ".cache" / "cifar10")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--samples", type=int, default=0, help="use only so many (0: all)")
    parser.add_argument("--test-samples", type=int, default=0, help="use only so many (0: all)")
    parser.add_argument("--workers", type=int, default=1, help="data loading processes per rank")
    args = parser.parse_args()
    for part in ("train", "test"):
        if not (args.data / part).is_dir():
            parser.error(f"there is no folder {args.data / part}: see docs/tutorials/cifar.md")
    return args


def main():
    args = arguments()
    run = pt.init(seed=0)
    train_set = first(ImageFolder(args.data / "train", Shifted()), args.samples)
    test_set = first(ImageFolder(args.data / "test"), args.test_samples)
    model = ResNet18(num_classes=10, width=args.width)
    opt = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    loader = DataLoader(
        train_set, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True
    )
    test_loader = run.eval_loader(DataLoader(test_set, batch_size=256))
    steps = max(1, args.epochs * (len(train_set) // (args.batch_size * run.world_size)))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=steps + 1)
    model, opt, sched, loader = run.prepare(model, opt, sched, loader)

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            opt.zero_grad()
            run.log(loss=loss)
        accuracy = evaluate(run, model, test_loader)
        run.log(val_acc=accuracy)
        if run.is_main:
            print(f"epoch {epoch + 1}/{args.epochs}  val_acc {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
