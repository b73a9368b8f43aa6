"""The time of gradient communication, as DDP's own reducer measures it, read once per window.

This needs no communication hook and no synchronization: the reducer reads a clock when it launches its
first bucket and when the last one is reduced. On a GPU it reads events, in one step of a hundred only,
because reading an event waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.train.observe.timing import Probe, sample, short

_NS = 1e-9


def reducer_probe(model: nn.Module, device: torch.device) -> Probe:
    """Return a probe of this model's gradient reduction; it is empty where DDP does not reduce."""
    read = getattr(model, "_get_ddp_logging_data", None)
    if not isinstance(model, DistributedDataParallel) or read is None:
        return dict
    if device.type == "cpu":
        every = getattr(model, "_set_ddp_runtime_logging_sample_rate", None)
        if every is not None:
            every(1)
    seen = [0]

    def probe() -> Mapping[str, float]:
        """Return the newest step that the reducer has measured, each one once."""
        data = read()
        began = data.get("forward_compute_time_start", 0)
        if not began or began == seen[0]:
            return {}
        seen[0] = began
        return times(data)

    return probe


def times(data: Mapping[str, int]) -> dict[str, float]:
    """Convert the reducer's nanoseconds to metric values.

    `communication_time_seconds` is only the part that did not overlap the backward pass.
    """
    values: dict[str, float] = {}
    for name, key in (
        ("forward_time_seconds", "forward_compute_time"),
        ("backward_time_seconds", "backward_compute_time"),
    ):
        if data.get(key):
            values[name] = short(data[key] * _NS)
    total = data.get("backward_comm_time", 0)
    if total:
        hidden = min(total, data.get("backward_compute_comm_overlap_time", 0))
        values |= sample("gradient_sync_time_seconds", total * _NS)
        values |= sample("communication_time_seconds", (total - hidden) * _NS)
    return values
