"""The mean of one flat tensor over all ranks, in float32 or in 8 or 4 bits a value.

The tensor is divided into one part for each rank. Each rank sends every other rank that rank's part,
averages the parts that it receives, and sends the mean to all. Quantized values are sent in blocks, each
with a scale of its own; the quantization error is kept and added to the next exchange. All ranks end with
the same bits, because all compute from the values that were sent.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from phalanx.train.state.per_rank import num_ranks

BLOCK = 256
_TOP = {8: 127, 4: 7}
_SCALE_BYTES = 4


class Exchange:
    """A method of averaging tensors, here in float32. All ranks make the same calls."""

    def mean(self, mine: torch.Tensor, owed: torch.Tensor) -> torch.Tensor:
        """Return the mean of a flat float32 tensor over all ranks.

        `owed` is the residual of this rank, updated in place; float32 leaves none.
        """
        found = mine.clone()
        if num_ranks() > 1:
            dist.all_reduce(found)
            found /= num_ranks()
        return found

    def sent_bytes(self, num: int) -> int:
        """Return the bytes that this rank sends for a tensor of `num` values, without headers."""
        return 2 * 4 * num * (num_ranks() - 1) // num_ranks()


class QuantizedExchange(Exchange):
    """Averaging of values quantized to 8 or 4 bits."""

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def mean(self, mine: torch.Tensor, owed: torch.Tensor) -> torch.Tensor:
        """Return the mean of the quantized tensors; the quantization error goes to `owed`."""
        world, bits = num_ranks(), self._bits
        if world == 1:
            return mine.clone()
        at = dist.get_rank()
        part = part_length(mine.numel(), world)
        wanted = torch.zeros(world * part, dtype=torch.float32, device=mine.device)
        wanted[: mine.numel()] = mine + owed
        packed = torch.cat([pack(one, bits) for one in wanted.view(world, part)])
        left = wanted - torch.cat([unpack(one, bits) for one in packed.view(world, -1)])
        got = torch.empty_like(packed)
        dist.all_to_all_single(got, packed)
        total = torch.zeros(part, dtype=torch.float32, device=mine.device)
        for one in got.view(world, -1):  # in the order of ranks, so that sums come out alike
            total += unpack(one, bits)
        total /= world
        sent = pack(total, bits)
        # This rank keeps the error of the second rounding too: its own part counts once in `world`.
        left.view(world, part)[at] += (total - unpack(sent, bits)) * world
        received = sent.new_empty(world * sent.numel())
        dist.all_gather_single(received, sent)
        owed.copy_(left[: mine.numel()])
        return torch.cat([unpack(one, bits) for one in received.view(world, -1)])[: mine.numel()]

    def sent_bytes(self, num: int) -> int:
        """Return the bytes of two parts to every other rank."""
        part = part_length(num, num_ranks())
        return 2 * (num_ranks() - 1) * (part * self._bits // 8 + part // BLOCK * _SCALE_BYTES)


def part_length(num: int, world: int) -> int:
    """Return the values in one rank's part of `num`, in whole blocks."""
    return -(-num // (world * BLOCK)) * BLOCK


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Quantize a flat float32 tensor with a multiple of BLOCK values to bytes."""
    blocks = values.view(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True) / _TOP[bits]
    steps = (blocks / scale.where(scale > 0, torch.ones_like(scale))).round_()
    whole = steps.clamp_(-_TOP[bits], _TOP[bits]).to(torch.int8).view(-1)
    if bits == 4:
        pair = (whole + 8).view(torch.uint8).view(-1, 2)
        data = pair[:, 0] | (pair[:, 1] << 4)
    else:
        data = whole.view(torch.uint8)
    return torch.cat([scale.view(-1).view(torch.uint8), data])


def unpack(data: torch.Tensor, bits: int) -> torch.Tensor:
    """Dequantize bytes to float32."""
    num = data.numel() // (BLOCK * bits // 8 + _SCALE_BYTES)
    head = num * _SCALE_BYTES
    # A clone, because a slice may begin anywhere and floats may not.
    scale = data[:head].clone().view(torch.float32).view(-1, 1)
    body = data[head:]
    if bits == 4:
        body = torch.stack([body & 15, body >> 4], 1).view(-1)
        whole = body.to(torch.int8) - 8
    else:
        whole = body.clone().view(torch.int8)
    return (whole.view(num, BLOCK).to(torch.float32) * scale).view(-1)


EXCHANGES: dict[str, Exchange] = {
    "none": Exchange(),
    "int8": QuantizedExchange(8),
    "int4": QuantizedExchange(4),
}
