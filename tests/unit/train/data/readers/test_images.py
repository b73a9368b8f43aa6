"""Images: pixel for pixel what Pillow gives, and one clear error otherwise."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.errors import DataCorrupt, UserError
from phalanx.train.data.readers.locating import locate, save_index
from phalanx.train.data.readers.scanning import full_index

Image = pytest.importorskip("PIL.Image")
decoding = pytest.importorskip("phalanx.train.data.readers.formats.decoding")
ImageFolder = pytest.importorskip("phalanx.train.data.readers.formats.images").ImageFolder

pytestmark = pytest.mark.unit


def picture(mode: str, size: tuple[int, int] = (37, 21)) -> Image.Image:
    noise = np.random.default_rng(len(mode)).integers(0, 256, (size[1], size[0], 4), np.uint8)
    image = Image.fromarray(noise)
    return image.convert("RGB").convert(mode) if mode == "P" else image.convert(mode)


def encoded(image: Image.Image, **how: object) -> bytes:
    out = io.BytesIO()
    image.save(out, **how)
    return out.getvalue()


CASES = {
    "baseline": ("RGB", {"format": "JPEG", "quality": 80}),
    "fine": ("RGB", {"format": "JPEG", "subsampling": 0, "quality": 95}),
    "progressive": ("RGB", {"format": "JPEG", "progressive": True}),
    "restart": ("RGB", {"format": "JPEG", "restart_marker_rows": 1}),
    "exif": ("RGB", {"format": "JPEG", "exif": b"Exif\0\0" + bytes(3000)}),
    "grey": ("L", {"format": "JPEG"}),
    "cmyk": ("CMYK", {"format": "JPEG"}),
    "keep-rgb": ("RGB", {"format": "JPEG", "keep_rgb": True}),
    "png": ("RGB", {"format": "PNG"}),
    "png-alpha": ("RGBA", {"format": "PNG"}),
    "png-palette": ("P", {"format": "PNG"}),
    "png-grey": ("L", {"format": "PNG"}),
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("case", CASES)
def test_pixels_are_pillows(case: str, mode: str) -> None:
    source, how = CASES[case]
    data = encoded(picture(source), **how)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.array(image.convert(mode))
    assert np.array_equal(np.array(decoding.decode_pil(data, mode)), expected)
    planes = expected.reshape(*expected.shape[:2], -1).transpose(2, 0, 1)
    assert np.array_equal(decoding.to_tensor(decoding.decode_pil(data, mode)).numpy(), planes)


def test_the_short_way_is_taken_where_it_may_be() -> None:
    taken = {c for c, (m, how) in CASES.items() if decoding.frame_of(encoded(picture(m), **how))}
    assert {"baseline", "fine", "progressive", "restart", "exif", "grey"} <= taken
    assert "cmyk" not in taken


def test_damage_is_an_error_with_a_name() -> None:
    good = encoded(picture("RGB"), format="JPEG")
    for bad in (
        b"",
        b"\xff\xd8\xff",
        good[:40],
        good[: len(good) // 2],
        b"GIF89a" + good,
        bytes(500),
    ):
        with pytest.raises(DataCorrupt, match=r"x/y\.jpg cannot be decoded"):
            decoding.decode_pil(bad, name="x/y.jpg")


def test_draft_decodes_smaller() -> None:
    data = encoded(picture("RGB", (640, 480)), format="JPEG")
    assert decoding.decode_pil(data, draft=(100, 80)).size == (160, 120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "data" / "cab"[number % 3] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture("RGB", (8 + number, 9)), format="JPEG"))
    return tmp_path / "data"


def test_a_folder_gives_images_and_labels(folder: Path) -> None:
    data = ImageFolder(folder)
    assert data.classes == ("a", "b", "c")
    assert data.class_counts() == {"a": 4, "b": 4, "c": 4}
    image, label = data[4]
    assert (label, data.path(4)) == (1, f"{folder}/b/02.jpg")
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 9, 10))
    assert ImageFolder(folder, transform=lambda image: image.size)[4] == ((10, 9), 1)
    assert tuple(ImageFolder(folder, mode="L")[4][0].shape) == (1, 9, 10)
    with pytest.raises(IndexError):
        data[12]
    with pytest.raises(UserError, match="RGB, L"):
        ImageFolder(folder, mode="CMYK")


def test_an_indexed_folder_checks_each_image_it_reads(folder: Path) -> None:
    place = locate(folder)
    save_index(full_index(place.source, "images"), place)
    path = folder / "b/02.jpg"
    data = bytearray(path.read_bytes())
    data[-20] ^= 4
    path.write_bytes(bytes(data))
    assert ImageFolder(folder)[3][1] == 0
    with pytest.raises(DataCorrupt, match=r"b/02\.jpg does not match"):
        ImageFolder(folder)[4]
    with pytest.raises(DataCorrupt, match=r"b/02\.jpg does not match"):
        ImageFolder(folder, verify="full")
    ImageFolder(folder, verify="never")[4]  # the guard off: wrong pixels, and nobody says so
    path.write_bytes(bytes(data[:-1]))
    with pytest.raises(DataCorrupt, match=r"b/02\.jpg has .* bytes"):
        ImageFolder(folder)[4]
    (folder / "INDEX.json").unlink()
    with pytest.raises(UserError, match="needs an index"):
        ImageFolder(folder, verify="full")
