"""What the parts of a run are made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phalanx.core.gang.meshes import Layout
from phalanx.kit.clock import Clock
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import Connection
from phalanx.train.gang.report import Report
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.settings import RunOptions
from phalanx.train.state.saving import Saver


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """What `init` opens before any model is there; each has a null twin."""

    info: RankInfo
    options: RunOptions
    clock: Clock
    #: the process groups of the gang
    connection: Connection
    report: Report
    saver: Saver
    stop: StopSignal
    device: torch.device
    #: which rank holds what part of the model
    layout: Layout
