"""Networks for text over bytes: a GPT that predicts the next byte, a BERT that predicts masked bytes.

In the sizes of their papers (12 layers, width 768) at `scale` 1.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

NUM_BYTES = 256
MASK = NUM_BYTES
"""The id in place of a byte that is hidden."""
HIDDEN_SHARE = 0.15
IGNORED = -100


class TransformerLayer(nn.Module):
    """A transformer layer: attention and two linear layers, each after a normalization."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inside = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (batch, length, width)."""
        count, length, width = x.shape
        parts = self.split(self.norm1(x)).view(count, length, 3, self.heads, -1).transpose(1, 3)
        query, key, value = parts.unbind(2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.join(seen.transpose(1, 2).reshape(count, length, width))
        out: torch.Tensor = x + self.inside(self.norm2(x))
        return out


class Transformer(nn.Module):
    """A transformer that scores every byte at every place of a block of ids."""

    def __init__(self, block: int, scale: float, *, causal: bool) -> None:
        super().__init__()
        heads = max(1, round(12 * scale))
        width, depth = 64 * heads, max(2, round(12 * min(1.0, scale * 2)))
        self.ids = nn.Embedding(NUM_BYTES + 1, width)
        self.places = nn.Parameter(0.02 * torch.randn(block, width))
        self.layers = nn.Sequential(*(TransformerLayer(width, heads, causal) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_BYTES)
        self.apply(_start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, bytes) scores of (batch, length) ids."""
        scores: torch.Tensor = self.head(
            self.norm(self.layers(self.ids(x) + self.places[: x.shape[1]]))
        )
        return scores


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def next_byte_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of the next bytes, in nats per byte."""
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def masked_byte_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of masked bytes, in nats per byte; torch's generator draws the mask."""
    hidden = torch.rand(x.shape, device=x.device) < HIDDEN_SHARE
    hidden[:, 0] = True  # never none
    scores = model(x.masked_fill(hidden, MASK))
    wanted = x.masked_fill(~hidden, IGNORED)
    return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
