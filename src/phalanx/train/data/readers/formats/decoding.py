"""Decoding of JPEG and PNG bytes, equal to Pillow's, without its slow header parser.

`Image.open` reads a JPEG's header in Python, which takes longer than decoding a small image. Here the
size comes from the frame header and the bytes go to Pillow's decoder at once. Whatever is not a plain
baseline or progressive JPEG of 1 or 3 components takes the ordinary way.
"""

from __future__ import annotations

import io
from struct import Struct
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from phalanx.errors import DataCorrupt, UserError

MODES = ("RGB", "L")

_FRAME = Struct(">HBHHB")
_JPEG = b"\xff\xd8\xff"
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
_NO_LENGTH = frozenset((0x01, *range(0xD0, 0xDA)))
_SCAN = 0xDA


def frame_of(data: bytes) -> tuple[int, int, int] | None:
    """Return (width, height, components) of a JPEG that can go to the decoder directly, else None."""
    at, end = 2, len(data) - 10
    while at < end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            _, bits, height, width, components = _FRAME.unpack_from(data, at + 2)
            plain = bits == 8 and components in (1, 3) and 0 < width * height <= _max_pixels()
            return (width, height, components) if plain else None
        if marker in _NO_LENGTH or marker == _SCAN:
            return None
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None


def _max_pixels() -> int:
    return Image.MAX_IMAGE_PIXELS or 1 << 62


def decode_pil(
    data: bytes, mode: str = "RGB", draft: tuple[int, int] | None = None, name: object = "an image"
) -> Image.Image:
    """Decode an image in `mode`, equal to `Image.open(…).convert(mode)`.

    `draft` (width, height) lets a JPEG be decoded at a half, a quarter or an eighth of its size, as
    long as it stays at least that large: faster, and not the same pixels. Raises DataCorrupt.
    """
    try:
        frame = frame_of(data) if draft is None and data[:3] == _JPEG else None
        if frame is not None:
            width, height, components = frame
            raw = "RGB" if components == 3 else "L"
            image = Image.frombytes(raw, (width, height), data, "jpeg", raw, "")
            return image if raw == mode else image.convert(mode)
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            if draft is not None:
                image.draft(mode, draft)
            return image.convert(mode)
    except (
        OSError,
        ValueError,
        SyntaxError,
        UnidentifiedImageError,
        Image.DecompressionBombError,
    ) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "neither JPEG nor PNG"
        raise DataCorrupt(f"{name} cannot be decoded: {reason}") from error


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Convert an image to a uint8 tensor, channels first."""
    channels = 1 if image.mode == "L" else 3
    pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, channels)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def decode_image(data: bytes) -> torch.Tensor:
    """Decode a JPEG or PNG as RGB, channels first, uint8. Raises DataCorrupt."""
    return to_tensor(decode_pil(data))


def check_mode(mode: str) -> None:
    """Raise UserError for a mode that images are not decoded to."""
    if mode not in MODES:
        raise UserError(f"mode is {mode!r}", f"use one of {', '.join(MODES)}")


def as_bytes(data: Any) -> bytes:
    """Return the bytes, copied only from a memory map."""
    return data if isinstance(data, bytes) else bytes(data)
