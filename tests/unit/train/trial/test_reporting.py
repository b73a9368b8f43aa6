"""The wait at a target: a raised target ends it, and so do a stop and the end of the time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.core.contract.trial import TARGET_SUFFIX, TrialContract
from phalanx.kit.clock import ManualClock
from phalanx.train.trial.reporting import TrialReporter

pytestmark = pytest.mark.unit


class Stop:
    """A stop signal with which waiting moves the clock; `then` runs after each wait."""

    def __init__(self, clock: ManualClock, then: Callable[[Stop], None]) -> None:
        self.at: float | None = None
        self._clock, self._then = clock, then

    def pause(self, seconds: float) -> bool:
        self._clock.advance(seconds)
        self._then(self)
        return self.at is not None


def hold(folder: Path, then: Callable[[Stop], None]) -> tuple[bool, int | None, float]:
    """Whether a trial at target 2 goes on, the target then, and the seconds that it waited."""
    contract = TrialContract(study=1, until=2, hold_s=12.0, objective="loss")
    info = SimpleNamespace(trial=contract, is_main=True, report_file=folder / "r.report")
    channel = SimpleNamespace(broadcast=lambda text: text)
    report = SimpleNamespace(write=lambda record: None)
    clock = ManualClock(0)
    trial = TrialReporter(info, channel, report, Stop(clock, then), clock)  # type: ignore[arg-type]
    return trial.hold(), trial.target, clock.monotonic()


def test_a_target_that_is_raised_during_the_wait_lets_the_trial_go_on(tmp_path: Path) -> None:
    calls = iter(range(10_000))

    def raise_it(stop: Stop) -> None:
        if next(calls) == 700:  # behind the first word to the other ranks
            (tmp_path / "r").with_suffix(TARGET_SUFFIX).write_text("9")

    goes_on, target, waited_s = hold(tmp_path, raise_it)
    assert (goes_on, target) == (True, 9)
    assert 5 < waited_s < 12


def test_without_an_answer_the_trial_leaves_after_its_time(tmp_path: Path) -> None:
    goes_on, target, waited_s = hold(tmp_path, lambda stop: None)
    assert (goes_on, target, round(waited_s, 1)) == (False, 2, 12.0)


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    def stop_it(stop: Stop) -> None:
        stop.at = 0.0

    assert hold(tmp_path, stop_it)[:2] == (False, 2)
