"""How ranks agree on requests (stop, save) at the same step, without a collective in a signal handler.

`propose` is called before the gradients of a step are reduced, `agree` after. `agree` returns the same
requests on every rank. Requests are bits, and the shared page holds control words: see
`core.training.control`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from phalanx.core.contract.records import WarningRecord
from phalanx.core.training import control
from phalanx.errors import RankDesync
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection, await_release
from phalanx.train.gang.report import Report

_PACE_US = 1_000_000
_MOST_STEPS = 1000
_LAST_WAIT = timedelta(seconds=5)
# The longest step that is sent: well below 2³¹, the limit of int32.
_LONG_US = 1 << 30


class Agreement(Protocol):
    """The ranks' agreement on requests, one per step."""

    def propose(self, step: int, requests: int) -> None:
        """Record this rank's requests before the gradients of `step` are reduced."""
        ...

    def agree(self, step: int) -> int:
        """Return the requests of all ranks after the gradients of `step` are reduced."""
        ...

    def close(self) -> None:
        """End the agreement."""
        ...


class LocalAgreement:
    """The agreement of a run with one rank."""

    def __init__(self) -> None:
        self._requests = 0

    def propose(self, step: int, requests: int) -> None:
        """Record the requests."""
        self._requests = requests

    def agree(self, step: int) -> int:
        """Return what was proposed last."""
        return self._requests

    def close(self) -> None:
        """Do nothing."""


class SharedPageAgreement:
    """Agreement through a memory page shared by the ranks of one node: no collective, no waiting.

    The reduction of gradients between `propose` and `agree` is the barrier, so there has to be one.
    """

    def __init__(self, path: Path, local_rank: int, local_world_size: int) -> None:
        """Map the page; the first rank creates it. Raises OSError."""
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
        """Write this rank's control word for `step`."""
        self._words[self._slots[step & 1][self._local_rank]] = control.word(step, requests)

    def agree(self, step: int) -> int:
        """Read the control words of all ranks for `step`. Raises RankDesync when one is at another step."""
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
        """Unmap the page."""
        self._words.release()
        with contextlib.suppress(BufferError):
            self._map.close()


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Exclude operations that this thread starts inside the block from a profiler trace.

    For collectives that may still run when a trace stops: they would write their end into memory that the
    profiler has freed.
    """
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


class FixedInterval:
    """The steps at which ranks exchange requests, equal on all ranks; here every so many steps."""

    def __init__(self, steps: int = 1) -> None:
        self._steps = steps

    def due(self, step: int) -> bool:
        """Return whether ranks exchange requests after this step."""
        return step % self._steps == 0

    def offer(self, step: int) -> int:
        """Return this rank's measurement at a due step; the largest of all ranks goes to `update`."""
        return 0

    def update(self, step: int, largest: int) -> None:
        """Take the largest measurement of the previous due step."""


class AdaptiveInterval(FixedInterval):
    """Exchange requests about once a second of the slowest rank; at first after each step.

    For links on which bytes or round trips are expensive.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._next = self._between = 1
        self._last: tuple[int, float] | None = None

    def due(self, step: int) -> bool:
        """Return whether the next exchange is due."""
        return step >= self._next

    def offer(self, step: int) -> int:
        """Return the microseconds of a recent step on this rank; 0 before the second call."""
        now, last = self._monotonic(), self._last
        self._last = (step, now)
        if last is None:
            return 0
        return max(1, min(int((now - last[1]) / (step - last[0]) * 1e6), _LONG_US))

    def update(self, step: int, largest: int) -> None:
        """Choose the next due step from the slowest rank's microseconds per step."""
        steps = _PACE_US // largest if largest else 1
        self._between = max(1, min(steps, 2 * self._between, _MOST_STEPS))
        self._next = step + self._between


class DelayedReductionAgreement:
    """Agreement by a small asynchronous reduction at each due step, on a process group of its own.

    For gangs over several nodes, and for those that reduce no gradients. A request takes effect when the
    next reduction is due. A rank requests a save in every step until it is made, which is one reduction
    later; in between the request is not sent again. Without a `pace` every step has a reduction; other
    intervals are for slow or expensive links.
    """

    def __init__(self, group: dist.ProcessGroup, pace: FixedInterval | None = None) -> None:
        self._group, self._pace = group, pace or FixedInterval()
        self._requests = self._sent = 0
        self._flags: torch.Tensor | None = None
        self._work: Any = None

    def propose(self, step: int, requests: int) -> None:
        """Record the requests; the next `agree` sends them."""
        self._requests |= requests

    def agree(self, step: int) -> int:
        """Return what all ranks proposed up to the last reduction, and send what was proposed since."""
        if not self._pace.due(step):
            return 0
        agreed = largest = 0
        if self._work is not None and self._flags is not None:
            self._work.wait()
            *flags, largest = self._flags.tolist()
            for bit, asked in zip(control.REQUESTS, flags, strict=True):
                agreed |= bit * asked
        self._pace.update(step, largest)
        self._sent = self._requests & ~(self._sent & control.SAVE)
        self._requests = 0
        mine = [int(bool(self._sent & bit)) for bit in control.REQUESTS]
        self._flags = torch.tensor([*mine, self._pace.offer(step)], dtype=torch.int32)
        with untraced():  # it ends in a later step, and a trace may stop before that
            self._work = dist.all_reduce(
                self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True
            )
        return agreed

    def close(self) -> None:
        """Wait up to five seconds for the last reduction, and for gloo's thread to release its tensor."""
        work, self._work = self._work, None
        flags, self._flags = self._flags, None
        if work is not None and flags is not None:
            with contextlib.suppress(RuntimeError):  # a peer has ended, or does not answer
                work.wait(_LAST_WAIT)
            lent = [weakref.ref(flags)]
            del work, flags
            await_release(lent)


def agreement_for(
    info: RankInfo,
    connection: Connection,
    report: Report,
    reduces: bool,
    otherwise: Callable[[Connection], Agreement],
) -> Agreement:
    """Choose the agreement for this gang; `reduces`: every step reduces gradients. Collective.

    `otherwise` makes the agreement of ranks that share no memory page.
    """
    if info.world_size == 1:
        return LocalAgreement()
    page: SharedPageAgreement | None = None
    path = info.control_file
    if path is not None and info.one_node and reduces:
        try:
            page = SharedPageAgreement(path, info.local_rank, info.local_world_size)
        except OSError as error:
            message = f"ranks agree by collectives, because the shared page {path} failed: {error}"
            report.write(WarningRecord(message))
    without = connection.channel.total([0.0 if page is not None else 1.0])[0]
    if without == 0 and page is not None:
        return page
    return otherwise(connection)
