"""The post-mortem of a job: a table of its faults, then the evidence of each."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.cli.terminal import output
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView, RestartView

HEADINGS = ("FAULT", "AT", "CAUSE", "RANK", "ENDED BY", "WAIT", "LOST", "STEPS", "SLOT-S", "THEN")


def show_faults(view: JobView, json: bool) -> None:
    """Print every fault of a job: what failed, the evidence, what was done, and what was lost."""
    found: Sequence[RestartView] = [] if view.lineage is None else view.lineage.restarts
    if json:
        output.as_json(found)
        return
    output.table(HEADINGS, [fault_row(one) for one in found], f"{view.label} has had no faults")
    for one in found:
        print(f"\n{_name(one)}: {one.message}")
        if one.evidence:
            print(textwrap.indent(one.evidence, "  "))
    if found:
        steps = sum(one.lost_steps or 0 for one in found)
        slot_s = sum(one.lost_slot_s or 0.0 for one in found)
        print(f"\nlost in all: {steps} steps, {output.number(slot_s)} slot-seconds")


def _name(one: RestartView) -> str:
    return f"attempt {one.attempt}, generation {one.generation}"


def fault_row(one: RestartView) -> Sequence[object]:
    """A fault as a row below `HEADINGS`."""
    return (
        f"{one.attempt}.{one.generation}",
        output.clock_time(one.failed_at),
        one.cause,
        one.rank,
        _ended_by(one),
        _time(one.wait_s),
        _time(one.lost_s),
        one.lost_steps,
        None if one.lost_slot_s is None else output.number(one.lost_slot_s),
        one.action,
    )


def _ended_by(one: RestartView) -> str | None:
    """The exception, the signal or the exit code of the rank; None where the platform ended it."""
    if one.signal is not None:
        known = one.signal in {number.value for number in signal.Signals}
        return signal.Signals(one.signal).name if known else f"signal {one.signal}"
    if one.exception is not None:
        return one.exception
    return None if one.exit_code is None else f"exit code {one.exit_code}"


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)
