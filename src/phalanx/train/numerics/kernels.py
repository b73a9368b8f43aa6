"""The first calls of torch's elementwise functions on the CPU, made by one thread.

oneMKL chooses the kernel of a function (`sqrt`, `exp`) in the first call of each process. Where several
threads make that call at once, each for its part of a tensor, one of them may run a kernel of low accuracy,
that one time (pytorch/pytorch#188792). For a rank this is its first optimizer step: its weights then differ
from those of the other ranks, and no later step makes them equal again. Once a kernel is chosen, all
threads use it.
"""

from __future__ import annotations

import torch

FUNCTIONS = (
    "acos",
    "asin",
    "atan",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expm1",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)
DTYPES = (torch.float32, torch.float64)


def choose_kernels() -> None:
    """Call every function once for each type, with one element: such a call uses one thread.

    It draws no random numbers, and changes no tensor.
    """
    with torch.no_grad():
        for dtype in DTYPES:
            one = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch, name)(one)
