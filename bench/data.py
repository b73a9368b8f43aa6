"""Image reading: `ImageFolder` of the readers against a plain torch data set that uses Pillow.

    python bench/data.py FOLDER_OF_CLASSES [--samples 10000] [--rounds 5]

Both go through the same torch DataLoader, one after the other in every round (their order alternates),
with 0 and 2 workers, over the same shuffled samples. Prints the median samples/s, and first checks that
all pixels are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from phalanx.train.readers import ImageFolder


class PlainFolder(Dataset):
    """What one writes by hand, or gets from torchvision with ToTensor's byte half."""

    def __init__(self, root: Path) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int):
        path, label = self.samples[number]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), label


def samples_per_s(dataset, order: list[int], num_workers: int) -> float:
    """One pass over `order`, counted from the first batch on, so that starting workers is left out."""
    context = "fork" if num_workers else None
    loader = DataLoader(
        dataset,
        batch_size=128,
        sampler=order,
        num_workers=num_workers,
        multiprocessing_context=context,
    )
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    count = sum(len(labels) for _, labels in batches)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sets = {"plain": PlainFolder(given.folder), "phalanx": ImageFolder(given.folder)}
    plain, ours = sets.values()
    assert len(plain) == len(ours)
    order = torch.randperm(len(plain), generator=torch.Generator().manual_seed(0)).tolist()
    order = order[: given.samples]
    for number in order:
        a, b = plain[number], ours[number]
        assert torch.equal(a[0], b[0]) and a[1] == b[1], f"sample {number} differs"
    result = {"samples": len(order), "exact": True, "verified": ours.index.has_digests}
    for num_workers in (0, 2):
        speeds: dict[str, list[float]] = {name: [] for name in sets}
        for round_number in range(given.rounds):
            for name in sorted(sets, reverse=bool(round_number % 2)):
                speeds[name].append(samples_per_s(sets[name], order, num_workers))
        medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
        ratios = [b / a for a, b in zip(speeds["plain"], speeds["phalanx"], strict=True)]
        result[f"workers_{num_workers}"] = medians | {
            "ratio": round(statistics.median(ratios), 2),
            "ratio_min": round(min(ratios), 2),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
