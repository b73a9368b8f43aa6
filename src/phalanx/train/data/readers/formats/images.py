"""A data set of images in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from phalanx.checkpoint.digest import digest_of
from phalanx.errors import DataCorrupt
from phalanx.train.data.readers.cache import NodeCache
from phalanx.train.data.readers.formats.decoding import as_bytes, check_mode, decode_pil, to_tensor
from phalanx.train.data.readers.locating import Root, open_index
from phalanx.train.data.readers.open_shards import Verify, check_verify
from phalanx.train.data.readers.sources import LocalSource


class ImageFolder(Dataset[tuple[Any, int]]):
    """`root/<class>/…/<name>.jpg` (`.jpeg`, `.png`) as (image, label).

    Labels count the classes in sorted order; samples are sorted by class, folder and name, so the order
    is the same on every machine. Without a `transform` an image is a uint8 tensor, channels first; with
    one, it is what `transform` makes of the PIL image. With an index every image is checked each time
    it is read, unless `verify` is `never`.

    Raises NotFound, UserError; reading raises DataCorrupt, which names the file.
    """

    def __init__(
        self,
        root: Root,
        transform: Callable[[Any], Any] | None = None,
        *,
        mode: str = "RGB",
        draft: tuple[int, int] | None = None,
        index: str | Path | None = None,
        cache: NodeCache | None = None,
        verify: Verify = "first_open",
    ) -> None:
        check_mode(mode)
        self.source, self.index = open_index(root, "images", cache, index)
        check_verify(verify, self.index)
        self.transform = transform
        self.mode = mode
        self.draft = draft
        self.verify = verify
        self.classes: Sequence[str] = self.index.classes
        self.labels = self.index.tables["labels"]
        self._local = f"{self.source.where}/" if isinstance(self.source, LocalSource) else None
        if verify == "full":
            for number in range(len(self)):
                self._bytes(number)

    def __len__(self) -> int:
        return self.index.num_files

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image = decode_pil(self._bytes(number), self.mode, self.draft, _Named(self, number))
        made: Any = to_tensor(image) if self.transform is None else self.transform(image)
        return made, int(self.labels[number])

    @property
    def draws_nothing(self) -> bool:
        """Return whether samples use no random numbers: only a `transform` can."""
        return self.transform is None

    def fingerprint(self) -> str:
        """Return a digest of the index: data sets with the same digest give the same samples."""
        return self.index.fingerprint()

    def class_counts(self) -> dict[str, int]:
        """Count the samples of each class."""
        counts = torch.bincount(
            torch.from_numpy(self.labels.astype("int64")), minlength=len(self.classes)
        )
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def path(self, number: int) -> str:
        """Return the path of a sample's file."""
        return f"{self.source.where}/{self.index.files[number]}"

    def _bytes(self, number: int) -> bytes:
        name, size = self.index.files[number], int(self.index.sizes[number])
        expected = None if self.verify == "never" else self.index.digest(number)
        if self._local is None:
            return as_bytes(self.source.read(name, size, expected))
        data = _read(self._local + name, size)
        if data is None:
            return self._mismatch(name, size)
        if expected is not None and digest_of(data, expected) != expected:
            raise DataCorrupt(
                f"{self._local}{name} does not match its index",
                "restore the file, or index the data again if it was meant to change",
            )
        return data

    def _mismatch(self, name: str, size: int) -> bytes:
        """Raise the exact error for a file that could not be read."""
        self.source.open(name, size, None, lambda: None).close()
        raise DataCorrupt(f"{self.source.where}/{name} could not be read completely")


class _Named:
    """A file's name, formatted only when a message needs it."""

    def __init__(self, folder: ImageFolder, number: int) -> None:
        self.folder = folder
        self.number = number

    def __str__(self) -> str:
        return self.folder.path(self.number)


def _read(path: str, size: int) -> bytes | None:
    """Read a file of `size` bytes with one system call; None when that fails."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, size + 1)
        while 0 < len(data) < size and (more := os.read(fd, size + 1 - len(data))):
            data += more
    except OSError:
        return None
    finally:
        os.close(fd)
    return data if len(data) == size else None
