"""Analysis of a step profile: the time of each section on each rank, and how to reduce it.

A step's sections on one rank add up to the step. Communication that ran while the rank computed is
hidden and costs nothing; what the rank waited for is exposed, and is no part of `backward_s`.

Slow ranks are found by the time that each spends computing: whole steps take equally long on all ranks,
because all wait for the slowest.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.telemetry.instruments import WORTH_SAYING

SUFFIX = ".profile"
"""Suffix of the file beside rank 0's report file that requests a profile."""
EXTRAS = ("memory", "nvtx")
"""Optional contents of a profile: a snapshot of the device's memory, NVTX ranges."""
MAX_STEPS = 10_000
THRESHOLD = 0.75
"""A rank that scores lower is a straggler."""
_OWN_SECTIONS = {
    "data_s": "the wait for data",
    "forward_s": "the forward pass",
    "backward_s": "the backward pass",
    "optimizer_s": "the optimizer",
    "rest_s": "other code of the script",
}
COMMUNICATION_SHARE = 0.2
SAVING_SHARE = 0.1
OVERHEAD_SHARE = 0.5
LAUNCH_S = 6e-6
"""Approximate overhead of one operation, in seconds: Python, dispatch, autograd."""


@dataclass(frozen=True, slots=True)
class RequestedProfile:
    """A request to profile `steps` steps with clocks, then `traced` ones with torch's profiler.

    `request` counts the requests of a generation from 1. `extras` are of `EXTRAS`.
    """

    request: int
    steps: int
    traced: int
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The parts of a step of one rank: means over the profiled steps, in seconds."""

    rank: int  # rank in its role
    steps: int  # number of profiled steps
    step_s: float  # the whole step
    data_s: float = 0.0  # waiting for the next batch
    forward_s: float = 0.0  # forward pass
    backward_s: float = 0.0  # backward pass without `exposed_s`
    exposed_s: float = 0.0  # waiting for communication
    hidden_s: float = 0.0  # communication beside computing; no part of `step_s`
    optimizer_s: float = 0.0  # optimizer step
    stall_s: float = 0.0  # waiting for checkpoints to be saved
    rest_s: float = 0.0  # the script's other code
    samples: float = 0.0  # samples of one step
    ops: float = 0.0  # operations of one step on the script's thread
    busy: float | None = None  # share of the step in which a GPU computed; None without a GPU

    @property
    def own_s(self) -> float:
        """Seconds of a step that do not depend on other ranks; the others may wait for them."""
        return self.step_s - self.exposed_s - self.stall_s


class Bottleneck(StrEnum):
    """The bottleneck of a training run."""

    STRAGGLER = "straggler"
    INPUT_BOUND = "input-bound"
    SAVING_BOUND = "saving-bound"
    COMMUNICATION_BOUND = "communication-bound"
    SMALL_BATCH = "too small a batch"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The bottleneck, the measurements that show it in words, and a recommendation."""

    finding: Bottleneck
    said: str
    advice: str


_Limit = tuple[float, Diagnosis]


def judge(splits: Sequence[StepBreakdown]) -> Diagnosis:
    """The straggler, or else the costliest limit; `splits` are those of all ranks in rank order."""
    steps = [one for one in splits if one.step_s > 0]
    if not steps:
        return Diagnosis(Bottleneck.HEALTHY, "no step was measured", "profile more steps")
    slow, network = _straggler(steps), _communication(steps)
    if slow is not None and (network is None or slow[0] >= network[0]):
        return slow[1]
    limits = [one for one in (_input(steps), _saving(steps), network, _small(steps)) if one]
    if limits:
        return max(limits, key=lambda one: one[0])[1]
    return Diagnosis(
        Bottleneck.HEALTHY,
        f"{_share(steps, 'forward_s', 'backward_s', 'optimizer_s'):.0%} of the time is computing",
        "no bottleneck was found; use faster kernels or more devices",
    )


def _share(splits: Sequence[StepBreakdown], *names: str) -> float:
    """The mean share of these sections in the ranks' steps."""
    return statistics.fmean(
        sum(getattr(one, name) for name in names) / one.step_s for one in splits
    )


def _straggler(splits: Sequence[StepBreakdown]) -> _Limit | None:
    if len(splits) < 2:
        return None
    found = scores([one.own_s for one in splits])
    at = min(range(len(splits)), key=found.__getitem__)
    slow, others = splits[at], [one for one in splits if one is not splits[at]]
    if found[at] >= THRESHOLD or not all(
        found[i] >= THRESHOLD for i in range(len(splits)) if i != at
    ):
        return None
    usual = statistics.median(one.own_s for one in others)
    # A rank that is slow only in a small part of its step delays the others little.
    share = (slow.own_s - usual) / slow.step_s
    if share <= WORTH_SAYING:
        return None
    name = max(
        _OWN_SECTIONS,
        key=lambda one: getattr(slow, one) - statistics.median(getattr(it, one) for it in others),
    )
    advice = (
        "check the storage and the data workers of the rank's node"
        if name == "data_s"
        else "check the rank's node (clocks, other programs, memory), or drain it;"
        " batch_shares: auto gives the rank fewer samples"
    )
    return share, Diagnosis(
        Bottleneck.STRAGGLER,
        f"rank {slow.rank} takes {_ms(slow.own_s)} a step by itself, the others {_ms(usual)}:"
        f" most of the difference is {_OWN_SECTIONS[name]}, and all ranks wait for it",
        advice,
    )


def _input(splits: Sequence[StepBreakdown]) -> _Limit | None:
    worst = max(splits, key=lambda one: one.data_s / one.step_s)
    share = worst.data_s / worst.step_s
    if share <= WORTH_SAYING:
        return None
    return share, Diagnosis(
        Bottleneck.INPUT_BOUND,
        f"rank {worst.rank} waits {_ms(worst.data_s)} of {_ms(worst.step_s)} a step for the loader"
        f" ({share:.0%})",
        "use more loader workers (num_workers, prefetch_factor), cheaper decoding, or data nearer to"
        " this node",
    )


def _saving(splits: Sequence[StepBreakdown]) -> _Limit | None:
    share = _share(splits, "stall_s")
    if share <= SAVING_SHARE:
        return None
    return share, Diagnosis(
        Bottleneck.SAVING_BOUND,
        f"training pauses for saves {share:.0%} of the time",
        "save less often (checkpoint.every: auto), or in the background (checkpoint.async)",
    )


def _communication(splits: Sequence[StepBreakdown]) -> _Limit | None:
    # A rank also waits for slower ranks; the one that waits least waits for the network.
    least = min(splits, key=lambda one: one.exposed_s / one.step_s)
    share = least.exposed_s / least.step_s
    if len(splits) < 2 or share <= COMMUNICATION_SHARE:
        return None
    hidden = least.hidden_s / max(least.hidden_s + least.exposed_s, 1e-12)
    return share, Diagnosis(
        Bottleneck.COMMUNICATION_BOUND,
        f"every rank waits at least {_ms(least.exposed_s)} of {_ms(least.step_s)} a step for"
        f" gradients ({share:.0%}); {hidden:.0%} of the communication overlaps with computation",
        "use larger batches, accumulation (training.accumulate) or compression (training.compression:"
        " auto), and check the link with phalanx doctor --network",
    )


def _small(splits: Sequence[StepBreakdown]) -> _Limit | None:
    """Most of a step would be the same for a larger batch: the optimizer, starting operations."""
    work = statistics.fmean(one.forward_s + one.backward_s + one.optimizer_s for one in splits)
    busy = [one.busy * one.step_s for one in splits if one.busy is not None]
    ops = statistics.fmean(one.ops for one in splits)
    fixed = _share(splits, "optimizer_s")
    if busy:
        idle = 1 - min(1.0, statistics.fmean(busy) / work) if work > 0 else 0.0
        said = f"the GPUs compute in {1 - idle:.0%} of that time and wait for the host otherwise"
    else:
        idle = ops * LAUNCH_S / work if work > 0 else 0.0
        said = f"{ops:.0f} operations in {_ms(work)} of a step: most of that time is their launch"
    if fixed > idle:
        said = f"the optimizer takes {fixed:.0%} of a step, independent of the batch size"
    if max(fixed, idle) <= OVERHEAD_SHARE:
        return None
    return max(fixed, idle), Diagnosis(
        Bottleneck.SMALL_BATCH,
        said,
        "use a larger batch_size or accumulation, and torch.compile for small operations",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def scores(compute_s: Sequence[float]) -> list[float]:
    """Each rank's score from 0 to 1; 1 is the fastest. Ranks without a time count as fast."""
    known = [one for one in compute_s if one > 0]
    if not known:
        return [1.0] * len(compute_s)
    return [min(known) / one if one > 0 else 1.0 for one in compute_s]


class StragglerWatch:
    """Names a rank that scored below the threshold in `least` of its last `windows` windows."""

    def __init__(self, windows: int = 5, least: int = 3, threshold: float = THRESHOLD) -> None:
        self._least, self._threshold = least, threshold
        self._slow: deque[frozenset[int]] = deque(maxlen=windows)

    def observe(self, compute_s: Sequence[float]) -> list[int]:
        """One window's times by rank; the stragglers, in rank order."""
        found = scores(compute_s)
        self._slow.append(
            frozenset(rank for rank, one in enumerate(found) if one < self._threshold)
        )
        counts = [sum(rank in slow for slow in self._slow) for rank in range(len(compute_s))]
        return [rank for rank, count in enumerate(counts) if count >= self._least]
