"""The batch size above which throughput no longer grows.

    size = phalanx.train.batch_size.find(step, state=[model, opt], largest=4096)

tries powers of two until memory ends or throughput stops growing, then halves the last interval. Call
it before `prepare`, in one process: it makes real steps, and puts back everything they touched.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.errors import TrainingError
from phalanx.train.gang import randomness
from phalanx.train.state.tree import cloned
from phalanx.train.step.guard_state import is_out_of_memory

__all__ = ["find"]

KNEE = 0.9
"""The smallest size with this share of the best throughput wins."""
_WARM, _TIMED = 1, 3


def knee(throughput: Mapping[int, float], share: float = KNEE) -> int:
    """Return the smallest size with `share` of the best throughput. Raises ValueError."""
    if not throughput:
        raise ValueError("no batch size was measured")
    best = max(throughput.values())
    return min(size for size, speed in throughput.items() if speed >= share * best)


def find(
    step: Callable[[int], Any],
    *,
    state: Sequence[Any],
    largest: int = 65536,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return the best number of samples for `step(size)`, which makes one whole step of that size.

    `state` are objects with `state_dict` that a step changes. Raises TrainingError when not even one
    sample fits into memory; other errors of a step are passed on.
    """
    measured: dict[int, float] = {}
    with restored(state):
        size, top = 1, largest + 1
        while size <= largest:
            speed = _measure(step, size, clock)
            if speed is None:
                top = size
                break
            measured[size] = speed
            if size >= 4 and speed <= measured[size // 2] <= measured[size // 4]:
                break
            size *= 2
        if not measured:
            raise TrainingError("not even one sample fits into memory")
        between = (max(measured) + top) // 2
        if max(measured) < between < min(top, largest + 1) and top <= largest:
            speed = _measure(step, between, clock)
            if speed is not None:
                measured[between] = speed
    return knee(measured)


def _measure(step: Callable[[int], Any], size: int, clock: Callable[[], float]) -> float | None:
    """Return samples per second, from the median of a few steps; None when out of memory."""
    took = []
    try:
        for _ in range(_WARM + _TIMED):
            began = clock()
            step(size)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            took.append(clock() - began)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        problem: str | None = str(error)
    else:
        problem = None
    if problem is not None:
        # Only here, outside the handler: the traceback held the step's tensors.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None
    return size / max(statistics.median(took[_WARM:]), 1e-9)


@contextmanager
def restored(state: Sequence[Any]) -> Iterator[None]:
    """Restore weights, optimizers, modes, gradients and generators at the end of the block."""
    saved = [cloned(one.state_dict()) for one in state]
    modules = [one for one in state if isinstance(one, torch.nn.Module)]
    modes = [(part, part.training) for one in modules for part in one.modules()]
    gradients = [
        (p, None if p.grad is None else p.grad.clone()) for one in modules for p in one.parameters()
    ]
    generators = randomness.capture()
    try:
        yield
    finally:
        for one, values in zip(state, saved, strict=True):
            one.load_state_dict(values)
        for part, training in modes:
            part.training = training
        for parameter, gradient in gradients:
            parameter.grad = gradient
        randomness.restore(generators)
