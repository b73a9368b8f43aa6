"""What a run is made of, and how it was told to train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from phalanx.core.gang.meshes import Layout
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection
from phalanx.train.gang.report import Report
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.settings import Tuning
from phalanx.train.state.saving import Saver
from phalanx.train.step.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to train, as `init` was told."""

    seed: int = 0
    exact: bool = True
    accumulate: int = 1
    clip: float | None = None
    ddp: Mapping[str, Any] = field(default_factory=dict)
    strategy: str | Mapping[str, int] = "ddp"
    tp_plan: Mapping[str, Any] = field(default_factory=dict)
    fsdp: Mapping[str, Any] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is made of; each has a null twin."""

    info: RankInfo
    options: Options
    connection: Connection
    report: Report
    saver: Saver
    stop: StopSignal
    loop: Loop
    device: torch.device
    layout: Layout
