"""The time of each section of a step, from clock readings alone: no device synchronization.

Every moment belongs to one section; entering the next one ends the last. A step costs five readings of
the clock and some additions (about 2 µs); once per window the means and the distribution are written to
the rank's report (`core.telemetry.instruments` has the names). On a GPU these are the host's times: the
time of work that is only enqueued counts in the section in which the host waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import IntEnum

from phalanx.core.contract.records import MetricRecord
from phalanx.core.telemetry.instruments import (
    BOUNDS,
    WORTH_SAYING,
    bucket_name,
    bucket_of,
    sum_name,
)
from phalanx.train.gang.report import Report

FIRST_WINDOW_S = 0.5
LAST_WINDOW_S = 10.0
GROWTH = 0.05
"""A window lasts this share of the time trained so far, between the two bounds above."""
WARN_AFTER_S = 20.0
_NS = 1e-9
Probe = Callable[[], Mapping[str, float]]


class StepSection(IntEnum):
    """The section of a step that a rank is in."""

    REST = 0  # the script's own lines between steps, and this library's bookkeeping
    DATA = 1
    COMPUTE = 2
    OPTIMIZER = 3
    STALL = 4
    OUTSIDE = 5  # between passes over the data: no part of any step


REST, DATA, COMPUTE, OPTIMIZER, STALL, OUTSIDE = (int(one) for one in StepSection)
_NAMED = (
    (DATA, "data_loading_time_seconds"),
    (COMPUTE, "computation_time_seconds"),
    (OPTIMIZER, "optimizer_time_seconds"),
)


class Timing:
    """The events of training that timing needs; this class measures nothing."""

    def enter(self, section: int) -> int:
        """Begin a section; return the one that ended."""
        return OUTSIDE

    def took(self, num_samples: int) -> None:
        """Count samples that the loader gave this rank."""

    def stepped(self, step: int) -> None:
        """End an optimizer step."""

    def flush(self) -> None:
        """Report the current window, for example before a pause."""

    def watch(self, probe: Probe) -> None:
        """Add a probe, read at the end of every window."""


class NoTiming(Timing):
    """Timing that is off."""


class CurrentTiming:
    """The timing of a run, which a profile replaces while it records."""

    def __init__(self, timing: Timing) -> None:
        self.current = timing

    def replace(self, timing: Timing) -> None:
        """Time with another one from now on."""
        self.current = timing


class DurationHistogram:
    """A histogram of the durations of one section in one window."""

    __slots__ = ("counts", "num", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self.num = 0
        self.counts = [0] * (len(BOUNDS) + 1)

    def add(self, duration_ns: int) -> None:
        """Add a duration."""
        self.total_ns += duration_ns
        self.num += 1
        self.counts[bucket_of(duration_ns * _NS)] += 1

    def values(self, name: str) -> dict[str, float]:
        """Return mean and distribution; empty when nothing was added."""
        if not self.num:
            return {}
        total_s = self.total_ns * _NS
        found: dict[str, float] = {name: short(total_s / self.num), sum_name(name): short(total_s)}
        for index, count in enumerate(self.counts):
            if count:
                found[bucket_name(name, index)] = count
        return found


class StepTiming(Timing):
    """Measure sections, and report once per window."""

    def __init__(
        self,
        report: Report,
        *,
        warn: Callable[[str], None],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`warn` gets a message when more than a tenth of the training time is spent waiting for data."""
        self._report, self._warn, self._clock_ns = report, warn, clock_ns
        self._probes: list[Probe] = []
        self._section = OUTSIDE
        self._since = clock_ns()
        self._spent = [0] * len(StepSection)
        self._samples = 0
        self._step = 0
        self._trained_ns = self._waited_ns = 0
        self._warned = False
        self._open_window()

    def _open_window(self) -> None:
        self._window_ns = 0
        lasts_s = min(LAST_WINDOW_S, max(FIRST_WINDOW_S, GROWTH * self._trained_ns * _NS))
        self._full_ns = int(lasts_s / _NS)
        self._steps = DurationHistogram()
        self._stalls = DurationHistogram()
        self._tallies = [(section, name, DurationHistogram()) for section, name in _NAMED]
        self._window_samples = 0

    def enter(self, section: int) -> int:
        """Begin a section; return the one that ended."""
        now, ended = self._clock_ns(), self._section
        lasted = now - self._since
        self._spent[ended] += lasted
        self._section, self._since = section, now
        if ended == STALL:
            self._stalls.add(lasted)
        return ended

    def took(self, num_samples: int) -> None:
        """Count samples that the loader gave this rank."""
        self._samples += num_samples

    def stepped(self, step: int) -> None:
        """End a step and add its sections to the window."""
        spent = self._spent
        whole = spent[REST] + spent[DATA] + spent[COMPUTE] + spent[OPTIMIZER] + spent[STALL]
        self._steps.add(whole)
        for section, _, tally in self._tallies:
            tally.add(spent[section])
        self._waited_ns += spent[DATA]
        self._window_ns += whole
        self._window_samples += self._samples
        self._samples, self._step = 0, step
        self._spent = [0] * len(spent)
        if self._window_ns >= self._full_ns:
            self.flush()

    def flush(self) -> None:
        """Report the current window."""
        if not self._steps.num and not self._stalls.num:
            return
        values = self._steps.values("step_time_seconds")
        for _, name, tally in self._tallies:
            values |= tally.values(name)
        values |= self._stalls.values("checkpoint_stall_seconds")
        if self._window_ns:
            seconds = self._window_ns * _NS
            waited = self._tallies[0][2].total_ns * _NS
            values["training_steps_per_sec"] = short(self._steps.num / seconds)
            values["training_throughput_samples_per_sec"] = short(self._window_samples / seconds)
            values["training_samples"] = self._window_samples
            values["data_wait_fraction"] = short(waited / seconds)
        for probe in self._probes:
            values |= probe()
        self._report.write(MetricRecord(step=self._step, values=values))
        self._trained_ns += self._window_ns
        self._warn_of_data()
        self._open_window()

    def watch(self, probe: Probe) -> None:
        """Add a probe, read at the end of every window."""
        self._probes.append(probe)

    def _warn_of_data(self) -> None:
        if self._warned or self._trained_ns * _NS < WARN_AFTER_S:
            return
        share = self._waited_ns / self._trained_ns
        if share > WORTH_SAYING:
            self._warned = True
            self._warn(data_wait_message(share))


def data_wait_message(share: float) -> str:
    """Return the warning for a share of time spent waiting for data."""
    return (
        f"{share:.0%} of the training time is spent waiting for data: use more loader workers"
        " (num_workers), or store the data nearer to this node"
    )


def sample(name: str, seconds: float) -> dict[str, float]:
    """Return a single duration as the values of a window."""
    tally = DurationHistogram()
    tally.add(max(0, int(seconds / _NS)))
    return tally.values(name)


def short(value: float) -> float:
    """Round to six significant digits, because reports are text."""
    return float(f"{value:.6g}")
