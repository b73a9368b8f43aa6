"""What a run is made of, and how it was told to train."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phalanx.core.gang.meshes import Layout
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection
from phalanx.train.gang.report import Report
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.settings import RunOptions
from phalanx.train.state.saving import Saver
from phalanx.train.step.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """What a run is made of; each has a null twin."""

    info: RankInfo
    options: RunOptions
    connection: Connection
    report: Report
    saver: Saver
    stop: StopSignal
    loop: Loop
    device: torch.device
    layout: Layout
