"""The metrics that the platform measures in training: names, units, and histograms.

A rank measures every step and reports once per window: means under the names below, and for the
histograms how many steps fell between which bounds, under `name|index` (`BOUNDS[index]` is the upper
bound, the last index has none) and `name|sum`. Such parts are only added up, never shown.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_BOUNDS_TEXT = (
    "0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60"
)
BOUNDS = tuple(float(one) for one in _BOUNDS_TEXT.split())
"""Upper bounds of the histograms' buckets, in seconds; what is longer goes to the last bucket."""
WORTH_SAYING = 0.1
"""The share of the time lost to waiting for data that a user is told about."""

SUM_PART = -1
"""Stands for the sum of a histogram among its buckets."""
_MARK = "|"
_SUM = "sum"


class Kind(StrEnum):
    """The way in which values of a metric are combined."""

    GAUGE = "gauge"  # the newest counts
    COUNTER = "counter"  # windows add up
    HISTOGRAM = "histogram"  # the mean of a window, with a distribution beside it


@dataclass(frozen=True, slots=True)
class Instrument:
    """One thing measured on every rank. `labels` are fixed ones that its name does not carry."""

    name: str
    kind: Kind
    help: str
    labels: tuple[tuple[str, str], ...] = ()


_HISTOGRAMS = {
    "step_time_seconds": "Time from one optimizer step to the next, on one rank",
    "data_loading_time_seconds": "Wait for the loader, in one step",
    "computation_time_seconds": "Forward and backward passes of one step, the wait for gradients included",
    "communication_time_seconds": "Wait for gradients after the end of the backward pass, in one step",
    "gradient_sync_time_seconds": "Time from the first gradients sent to the last ones received, overlap"
    " included, in one step",
    "optimizer_time_seconds": "Time of the optimizer in one step",
    "checkpoint_stall_seconds": "Pause of training for one save",
    "weight_sync_seconds": "Exchange of one fragment of the weights, in low-communication training",
}
_GAUGES = {
    "forward_time_seconds": "Time of the forward pass of the newest sampled step",
    "backward_time_seconds": "Time of the backward pass of the newest sampled step",
    "data_wait_fraction": "Share of the time spent waiting for the loader",
    "training_steps_per_sec": "Optimizer steps per second",
    "training_throughput_samples_per_sec": "Samples per second of this rank",
    "straggler_score": "Computing speed relative to the fastest rank, which has 1",
    "batch_share": "Share of every batch, where batches are split by measured speed",
    "process_resident_memory_bytes": "Memory of the rank's process",
    "gpu_memory_allocated_mb": "Peak of torch's allocator, MiB",
    "gpu_memory_used_mb": "Device memory in use by all processes, MiB",
    "gpu_utilization_percent": "Share of the time the device was busy",
    "DCGM_FI_DEV_GPU_TEMP": "Temperature of the device, degrees Celsius",
    "DCGM_FI_DEV_POWER_USAGE": "Power the device draws, watts",
    "phalanx_gpu_clock_mhz": "Clock of the device's multiprocessors, MHz",
    "phalanx_gpu_throttled": "1 while heat or the power supply lowers the clock of the device, else 0",
    "phalanx_gpu_ecc_errors": "Memory errors that the device could not correct since its driver was loaded",
}
#: Of the node instead of a rank: its first rank carries them.
_HOST_GAUGES = {
    "phalanx_host_cpu_ratio": "Share of the processors' time that was used",
    "phalanx_host_memory_bytes": "Memory of the node",
    "phalanx_host_memory_used_bytes": "Memory that is not available to new processes",
    "phalanx_host_disk_free_bytes": "Free bytes of the file system with the folder of the job",
}
_HOST_COUNTERS = {
    "phalanx_host_disk_read_bytes": "Bytes read from the disks of the node",
    "phalanx_host_disk_written_bytes": "Bytes written to the disks of the node",
    "phalanx_host_network_received_bytes": "Bytes received by the interfaces of the node",
    "phalanx_host_network_sent_bytes": "Bytes sent by the interfaces of the node",
    "phalanx_host_tcp_retransmits": "TCP segments that were sent again",
}
OF_NODE = frozenset({*_HOST_GAUGES, *_HOST_COUNTERS})
"""Instruments that a supervisor measures once for its node, under the first of its ranks."""
_COUNTERS = {
    "training_samples": "Samples this rank has trained on",
    "phalanx_gpu_energy_joules": "Energy that the device has used",
    "weight_sync_bytes": "Bytes sent in exchanges of weights",
}
_LABELS = {"communication_time_seconds": (("operation", "all_reduce"),)}
_BY_KIND = {
    Kind.HISTOGRAM: _HISTOGRAMS,
    Kind.GAUGE: _GAUGES | _HOST_GAUGES,
    Kind.COUNTER: _COUNTERS | _HOST_COUNTERS,
}
INSTRUMENTS: Mapping[str, Instrument] = {
    name: Instrument(name, kind, text, _LABELS.get(name, ()))
    for kind, texts in _BY_KIND.items()
    for name, text in texts.items()
}


def bucket_of(seconds: float) -> int:
    """The index of the bucket that a duration falls into."""
    return bisect_left(BOUNDS, seconds)


def bucket_name(name: str, index: int) -> str:
    """The name under which the count of one bucket is reported."""
    return f"{name}{_MARK}{index}"


def sum_name(name: str) -> str:
    """The name under which the sum of a window's durations is reported."""
    return f"{name}{_MARK}{_SUM}"


def observed(name: str, seconds: float) -> dict[str, float]:
    """One duration of a histogram, as the values of a metric record."""
    return {name: seconds, sum_name(name): seconds, bucket_name(name, bucket_of(seconds)): 1}


def is_part(name: str) -> bool:
    """Whether this is a part of a distribution, which is not shown by itself."""
    return _MARK in name


@dataclass(slots=True)
class Distribution:
    """A histogram that grows: counts per bucket, and the sum of all durations in seconds."""

    counts: list[int]
    total_s: float = 0.0

    @classmethod
    def empty(cls) -> Distribution:
        """Nothing observed yet."""
        return cls([0] * (len(BOUNDS) + 1))

    def add(self, part: int, value: float) -> None:
        """Add one part of a window: the count of a bucket, or of `SUM_PART` the sum of its durations."""
        if not math.isfinite(value):
            return  # no rank writes it, and it would stay for ever
        if part == SUM_PART:
            self.total_s += value
        else:
            self.counts[part] += int(value)

    def cumulative(self) -> list[tuple[str, int]]:
        """Pairs of (upper bound, observations up to it), as in Prometheus."""
        running, found = 0, []
        for bound, count in zip((*map(_text, BOUNDS), "+Inf"), self.counts, strict=True):
            running += count
            found.append((bound, running))
        return found


def _text(bound: float) -> str:
    return f"{bound:f}".rstrip("0") if bound < 1 else str(bound)


PARTS: Mapping[str, tuple[str, int]] = {
    **{bucket_name(name, at): (name, at) for name in _HISTOGRAMS for at in range(len(BOUNDS) + 1)},
    **{sum_name(name): (name, SUM_PART) for name in _HISTOGRAMS},
}
"""The histogram and the bucket of each name of a part; those of another release are not among them."""
