"""The components that `init` creates and the other parts of a run are built from."""

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
    """The components that `init` opens before there is a model."""

    info: RankInfo  # the environment of this rank
    options: RunOptions  # the script's options, overridden by the job's spec
    clock: Clock  # of the process
    #: the process groups of the gang
    connection: Connection
    report: Report  # of this rank's progress and metrics
    saver: Saver  # writes and restores checkpoints
    stop: StopSignal  # set by SIGTERM
    device: torch.device  # on which this rank trains
    #: which rank holds what part of the model
    layout: Layout
