"""How ranks agree on requests (stop, save) at the same step, without a collective in a signal handler.

`propose` is called before the gradients of a step are reduced, `agree` after. What `agree` returns is the
same on every rank. The words are those of `core.control`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from phalanx.core import control
from phalanx.errors import RankDesync


class Agreement(Protocol):
    """One question per step, asked of all ranks."""

    def propose(self, step: int, requests: int) -> None:
        """This rank's requests, before the reduction of `step`."""
        ...

    def agree(self, step: int) -> int:
        """All ranks' requests, after the reduction of `step`."""
        ...

    def close(self) -> None:
        """No more questions."""
        ...


class Alone:
    """One rank agrees with itself."""

    def __init__(self) -> None:
        self._requests = 0

    def propose(self, step: int, requests: int) -> None:
        """Remember."""
        self._requests = requests

    def agree(self, step: int) -> int:
        """What was proposed last."""
        return self._requests

    def close(self) -> None:
        """Nothing."""


class SharedPage:
    """A page of memory that all ranks of one node map: no collective, no waiting.

    Needs a reduction of gradients between `propose` and `agree`; that is the barrier.
    """

    def __init__(self, path: Path, local_rank: int, local_world_size: int) -> None:
        """Map the page; whoever comes first makes it. Raises OSError."""
        self._local_rank = local_rank
        size = control.page_bytes(local_world_size)
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        self._slots = tuple(
            tuple(
                control.offset(rank, parity) // control.WORD_BYTES
                for rank in range(local_world_size)
            )
            for parity in (0, 1)
        )

    def propose(self, step: int, requests: int) -> None:
        """Write this rank's word for `step`."""
        self._words[self._slots[step & 1][self._local_rank]] = control.word(step, requests)

    def agree(self, step: int) -> int:
        """Read every rank's word for `step`. Raises RankDesync when one is at another step."""
        requests = 0
        for local_rank, slot in enumerate(self._slots[step & 1]):
            value = self._words[slot]
            if control.step_of(value) != step:
                raise RankDesync(
                    f"local rank {local_rank} is at step {control.step_of(value)}, this rank at {step}",
                    "every optimizer step needs one backward pass through the prepared model, on all ranks",
                )
            requests |= control.requests_of(value)
        return requests

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        with contextlib.suppress(BufferError):
            self._map.close()


class DelayedReduction:
    """One small asynchronous reduction per step on a group of its own; it counts one step later.

    For gangs over several nodes, and for those that reduce no gradients. A save is due until it is made,
    which is a step after it was asked for: what was asked for in the step before is not asked for again.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._requests = self._sent = 0
        self._flags: torch.Tensor | None = None
        self._work: Any = None

    def propose(self, step: int, requests: int) -> None:
        """Remember; sent by the next `agree`."""
        self._requests = requests

    def agree(self, step: int) -> int:
        """What all ranks proposed one step ago; sends what was proposed for this one."""
        agreed = 0
        if self._work is not None and self._flags is not None:
            self._work.wait()
            for bit, asked in zip(control.REQUESTS, self._flags.tolist(), strict=True):
                agreed |= bit * asked
        self._sent = self._requests & ~(self._sent & control.SAVE)
        mine = [int(bool(self._sent & bit)) for bit in control.REQUESTS]
        self._flags = torch.tensor(mine, dtype=torch.int32)
        self._work = dist.all_reduce(
            self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return agreed

    def close(self) -> None:
        """Leave what is still under way alone."""
        self._work = None
