"""Networks for images, in the sizes of their papers: ResNet-18/50/101 and ViT-B/16.

Each takes uint8 images, channels first, and gives class scores. `scale` narrows them for small machines.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}


class Normalize(nn.Module):
    """Normalization of uint8 images to floats around 0."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer(
            "spread", torch.tensor(SPREAD).view(1, 3, 1, 1) * 255, persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize images."""
        mean, spread = self.get_buffer("mean"), self.get_buffer("spread")
        return (x.float() - mean) / spread


def _conv(inner: int, outer: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)
    )


class Residual(nn.Module):
    """A block of He et al. (2015): two 3x3 convolutions, or a bottleneck of three."""

    def __init__(self, inner: int, width: int, outer: int, stride: int) -> None:
        super().__init__()
        if outer == width:
            parts = [_conv(inner, width, 3, stride), nn.ReLU(), _conv(width, outer, 3)]
        else:
            parts = [_conv(inner, width, 1), nn.ReLU(), _conv(width, width, 3, stride)]
            parts += [nn.ReLU(), _conv(width, outer, 1)]
        self.inside = nn.Sequential(*parts)
        # The last normalisation begins at zero: a block begins as its shortcut.
        nn.init.zeros_(parts[-1][1].weight)  # type: ignore[index]
        self.shortcut = (
            nn.Identity() if (stride, inner) == (1, outer) else _conv(inner, outer, 1, stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        return functional.relu(self.shortcut(x) + self.inside(x))


class ResNet(nn.Module):
    """A residual network; images up to 64 pixels get the stem for small ones."""

    def __init__(self, name: str, num_classes: int, image_size: int, scale: float = 1.0) -> None:
        super().__init__()
        width = max(8, round(64 * scale))
        bottleneck = 1 if name == "resnet18" else 4
        self.stem = nn.Sequential(Normalize(), _conv(3, width, 3), nn.ReLU())
        if image_size > 64:
            self.stem = nn.Sequential(
                Normalize(), _conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
            )
        blocks: list[nn.Module] = []
        inner = width
        for stage, depth in enumerate(_DEPTHS[name]):
            for at in range(depth):
                stride = 2 if stage and not at else 1
                outer = (width << stage) * bottleneck
                blocks.append(Residual(inner, width << stage, outer, stride))
                inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        scores: torch.Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return scores


class ViT(nn.Module):
    """ViT-B/16 of Dosovitskiy et al. (2021): 12 layers of width 768 on patches of 16 pixels.

    Images below 64 pixels are cut into patches of 4.
    """

    def __init__(self, num_classes: int, image_size: int, scale: float = 1.0) -> None:
        super().__init__()
        heads = max(1, round(12 * scale))
        width, patch = 64 * heads, 16 if image_size >= 64 else 4
        self.norm_in = Normalize()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.whole = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (image_size // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, max(2, round(12 * min(1.0, scale * 2))), enable_nested_tensor=False
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        patches = self.cut(self.norm_in(x)).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.whole.expand(len(x), -1, -1), patches], 1) + self.places
        scores: torch.Tensor = self.head(self.norm(self.layers(tokens)[:, 0]))
        return scores
