"""A small folder of images in ImageNet's layout: circles, squares, crosses and stripes in any colour.

python make_images.py images
"""

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIDE = 40


def picture(kind, rng):
    """One image of a class."""
    colours = [tuple(rng.randrange(256) for _ in range(3)) for _ in range(2)]
    image = Image.new("RGB", (SIDE, SIDE), colours[0])
    draw = ImageDraw.Draw(image)
    x, y, size = (rng.randrange(8, 14) for _ in range(3))
    box = (x, y, x + size, y + size)
    if kind == "circle":
        draw.ellipse(box, fill=colours[1])
    elif kind == "square":
        draw.rectangle(box, fill=colours[1])
    elif kind == "cross":
        draw.line((x, y, x + size, y + size), fill=colours[1], width=4)
        draw.line((x, y + size, x + size, y), fill=colours[1], width=4)
    else:
        for at in range(0, SIDE, 8):
            draw.line((0, at, SIDE, at), fill=colours[1], width=3)
    return image


def main(root, per_class=120):
    """Fill the folder, unless it is there."""
    rng = random.Random(0)
    for part, count in (("train", per_class), ("val", per_class // 4)):
        for kind in ("circle", "cross", "square", "stripes"):
            folder = root / part / kind
            folder.mkdir(parents=True, exist_ok=True)
            for at in range(count):
                picture(kind, rng).save(folder / f"{at:04d}.png")


if __name__ == "__main__":
    ROOT = Path(sys.argv[1])
    if not (ROOT / "val").is_dir():
        main(ROOT)
