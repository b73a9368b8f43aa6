"""Data sets of recipes: CIFAR and ImageNet as distributed, folders of images, texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset, Subset

from phalanx.errors import UserError
from phalanx.train.data.readers.formats.images import ImageFolder
from phalanx.train.data.readers.formats.text import TextFile
from phalanx.train.programs.recipes.settings import Recipe

_ROW = 1 + 3 * 32 * 32
_HELD_OUT = 10
Parts = tuple[Dataset[Any], Dataset[Any], int]


class CifarBinary(Dataset[tuple[torch.Tensor, int]]):
    """The binary files of CIFAR-10: rows of one label byte and 32x32 pixels in three planes.

    Raises UserError for a file that is not there, or is none.
    """

    def __init__(self, files: Sequence[Path], augment: bool) -> None:
        for file in files:
            if not file.is_file():
                raise UserError(f"{file}: there is no such file")
            if file.stat().st_size % _ROW:
                raise UserError(f"{file}: {file.stat().st_size} bytes are not a multiple of {_ROW}")
        self._rows = [np.memmap(file, np.uint8, "r").reshape(-1, _ROW) for file in files]
        self._begins = np.cumsum([0, *(len(rows) for rows in self._rows)])
        self._augment = augment

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        at = int(np.searchsorted(self._begins, number, "right")) - 1
        row = self._rows[at][number - self._begins[at]]
        x = torch.from_numpy(np.array(row[1:])).view(3, 32, 32)
        return (augmented(x) if self._augment else x), int(row[0])


def augmented(x: torch.Tensor, most: int = 4) -> torch.Tensor:
    """Shift an image by up to `most` pixels, and mirror it half of the time."""
    height, width = x.shape[1:]
    top, left, mirrored = (int(torch.randint(n, ())) for n in (2 * most + 1, 2 * most + 1, 2))
    x = functional.pad(x, (most,) * 4)[:, top : top + height, left : left + width]
    return (x.flip(2) if mirrored else x).contiguous()


class Cropped:
    """A crop to a square of `size` pixels: the center, or random and mirrored for training."""

    def __init__(self, size: int, *, anywhere: bool) -> None:
        self._size, self._anywhere = size, anywhere

    def __call__(self, picture: Any) -> torch.Tensor:
        """Crop a picture to a uint8 tensor, channels first."""
        width, height = picture.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        mirrored = False
        if self._anywhere:
            draw = torch.rand(4).tolist()
            side *= (0.08 + 0.92 * draw[0]) ** 0.5
            left, top = draw[1] * (width - side), draw[2] * (height - side)
            mirrored = draw[3] < 0.5
        box = (left, top, left + side, top + side)
        pixels = np.asarray(picture.resize((self._size, self._size), 2, box))  # 2: bilinear
        x = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        return (x.flip(2) if mirrored else x).contiguous()


def image_size(recipe: Recipe) -> int:
    """Return the pixels along a side."""
    return recipe.image_size or (32 if recipe.dataset == "cifar10" else 224)


def images(recipe: Recipe) -> Parts:
    """Return (training data, held-out data, number of classes). Raises NotFound, UserError."""
    root = Path(recipe.data_path or recipe.dataset).expanduser()
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder", "give --data-path or --dataset")
    binary = root / "cifar-10-batches-bin" if (root / "cifar-10-batches-bin").is_dir() else root
    if files := sorted(binary.glob("data_batch_*.bin")):
        train = CifarBinary(files, augment=True)
        return train, CifarBinary([binary / "test_batch.bin"], augment=False), 10
    if (root / "cifar-10-batches-py").is_dir():
        hint = "use the files of cifar-10-binary.tar.gz"
        raise UserError(f"{root}: CIFAR-10 as pickles, which are not read", hint)
    size = image_size(recipe)
    fit, middle = Cropped(size, anywhere=True), Cropped(size, anywhere=False)
    held = next((root / name for name in ("val", "test") if (root / name).is_dir()), None)
    if (root / "train").is_dir():
        if held is None:
            raise UserError(f"{root}: there is a folder train, but no val or test")
        found, rest = ImageFolder(root / "train", fit), ImageFolder(held, middle)
        if list(found.classes) != list(rest.classes):
            raise UserError(f"{root}: train and {held.name} do not have the same classes")
        return found, rest, len(found.classes)
    found, rest = ImageFolder(root, fit), ImageFolder(root, middle)
    return *_cut(found, rest), len(found.classes)


def texts(recipe: Recipe) -> Parts:
    """Return blocks of bytes. Raises NotFound, UserError."""
    path = Path(recipe.data_path or recipe.dataset).expanduser()
    found = TextFile(path, recipe.block, unit="bytes")
    if len(found) < 2 * _HELD_OUT:
        raise UserError(f"{path}: {len(found)} blocks are too few", "lower --block")
    return *_cut(found, found), 0


def _cut(fit: Dataset[Any], rest: Dataset[Any]) -> tuple[Subset[Any], Subset[Any]]:
    """Hold out every tenth sample."""
    count = len(fit)  # type: ignore[arg-type]
    kept = [at for at in range(count) if at % _HELD_OUT]
    return Subset(fit, kept), Subset(rest, range(0, count, _HELD_OUT))
