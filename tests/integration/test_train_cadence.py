"""`checkpoint.every: auto` in the loop: what a save costs and how often ranks fail decide together."""

from dataclasses import replace

import pytest

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.training import cadence
from phalanx.train.gang import context
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.report import NoReport
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.state.saving import NoCheckpoints
from phalanx.train.step.loop import Loop

pytestmark = pytest.mark.integration


def every(text):
    return CheckpointPolicy(every=SaveInterval.parse(text))


HOUR_US = 3600 * 10**6


class Hand:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def monotonic(self) -> float:
        return self.at_s

    def now(self) -> int:
        return round(self.at_s * 1e6)


class Slow(NoCheckpoints):
    """Training stands for `stall_s` at each save."""

    saves = True
    estimate_s = 1.0

    def __init__(self, clock: Hand, stall_s: float) -> None:
        self.clock, self.stall_s = clock, stall_s

    def save(self, state, moment) -> bool:
        self.clock.at_s += self.stall_s
        return True


def interval(info: RankInfo, stall_s: float) -> tuple[float, float]:
    """Seconds to the first save, and from it to the second."""
    clock = Hand()
    loop = Loop(info, Slow(clock, stall_s), None, NoReport(), clock, StopSignal(clock))
    first = loop._next_save_at - clock.at_s
    loop.save("every")
    return first, loop._next_save_at - clock.at_s


def test_dear_saves_are_rare_and_failures_make_them_frequent():
    auto = RankInfo(checkpoint=every("auto"), job_started_at=-HOUR_US)
    first, cheap = interval(auto, 0.01)
    assert first == cadence.FIRST_S
    _, dear = interval(auto, 5.0)
    assert cheap < 60 < dear
    _, failing = interval(replace(auto, restarts=30), 5.0)
    assert failing < dear / 4


def test_a_given_interval_stands_whatever_saves_cost():
    assert interval(RankInfo(checkpoint=every("2m")), 5.0) == (120.0, 120.0)


def test_the_launcher_tells_both():
    info = context.read(
        {"PHALANX_CHECKPOINT_EVERY": "auto", "TORCHELASTIC_RESTART_COUNT": "3",
         "PHALANX_JOB_STARTED_AT": "17"}
    )  # fmt: skip
    assert (info.checkpoint.every.auto, info.restarts, info.job_started_at) == (True, 3, 17)
