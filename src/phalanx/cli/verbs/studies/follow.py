"""Follow a study: a line for each new best, each pause and each end of a trial, made from its events."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from phalanx.cli.client.follow import ReconnectingClient
from phalanx.cli.client.session import Session
from phalanx.cli.exits import INTERRUPTED
from phalanx.cli.terminal.output import note, number
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.studies import StudyEventPage, StudyEventView, StudyView, TrialView

_LONG_POLL_S = 20.0
_MOST_ROWS = 1000
_ENDS = ("trial_ended", "trial_told")


class StudyFollower:
    """Prints what happens in one study until it ends, also over restarts of its control plane."""

    def __init__(self, session: Session, study: StudyView) -> None:
        self._link = ReconnectingClient(session, note, threading.Event(), "study")
        self._study = study
        self._best: float | None = None
        self._values: dict[int, float] = {}
        self._params: dict[int, str] = {}
        self._ended: set[int] = set()
        self._said_paused: set[int] = set()  # trials without a report since their last such line

    def run(self, *, from_now: bool = False) -> StudyView:
        """Follow to the end, and return the study; `from_now` leaves out what has happened already.

        Ctrl-C leaves the study running, and exits with 130.
        """
        label = self._study.label
        try:
            return self._run(from_now)
        except KeyboardInterrupt:
            note(
                f"{label} goes on: `phalanx sweep follow {label}` follows it again, "
                f"`phalanx sweep stop {label}` ends it"
            )
            raise typer.Exit(INTERRUPTED) from None

    def _run(self, from_now: bool) -> StudyView:
        study, after, silent = self._study, 0, from_now
        limit = f"{study.max_trials} trials" if study.max_trials else "trials"
        note(
            f"{study.label} {study.name}: {study.method}, {limit}, {study.parallel} at the same time"
        )
        done = False
        while not done:
            page = self._page(after, 0.0 if silent else _LONG_POLL_S)
            silent = silent and bool(page.events)
            lines = [line for one in page.events for line in self._about(one)]
            ended = {
                one.trial for one in page.events if one.kind in _ENDS and one.trial is not None
            }
            if silent:
                self._ended |= ended
            else:
                self._show(lines, ended)
            after, done = page.cursor, page.done
        study = self._link.call(lambda client: client.studies.get(study.num))
        self._show_rest(study)
        return study

    def _page(self, after: int, wait_s: float) -> StudyEventPage:
        num = self._study.num
        return self._link.call(
            lambda client: client.studies.events(num, after=after, wait_s=wait_s)
        )

    def _about(self, event: StudyEventView) -> list[str]:
        """The lines about one event: a new best, or a pause."""
        trial, data = event.trial, event.data
        if trial is None:
            return []
        name = f"{self._study.label}/{trial}"
        if event.kind == "suggested":
            self._params[trial] = params_text(data["params"])
        if event.kind == "trial_reported" and data.get("value") is not None:
            value = float(data["value"])
            self._values[trial] = value
            self._said_paused.discard(trial)
            if self._is_better(value):
                self._best = value
                at = f"at {data['unit']}  {self._params.get(trial, '')}".rstrip()
                return [f"{name}  {self._metric(value)}, the best so far, {at}"]
        if event.kind == "trial_paused" and trial not in self._said_paused:
            self._said_paused.add(trial)
            value_text = self._metric(self._values[trial]) if trial in self._values else "no report"
            return [f"{name}  paused: {value_text}"]
        return []

    def _is_better(self, value: float) -> bool:
        if self._best is None:
            return True
        least = self._study.objective.goal == "minimize"
        return value < self._best if least else value > self._best

    def _metric(self, value: float | None) -> str:
        return f"{self._study.objective.metric} {number(value)}"

    def _show(self, lines: Sequence[str], ended: set[int]) -> None:
        """Print the lines of one page of events, then those of the trials that it says have ended."""
        fresh = ended - self._ended
        rows = [one for one in self._rows(fresh) if one.is_over] if fresh else []
        self._ended |= {one.number for one in rows}
        ends = [f"{one.label}  {one.status}{_why(one)}: {self._value_of(one)}" for one in rows]
        for line in (*lines, *ends):
            note(line)
        if ends or any("  paused: " in line for line in lines):
            study = self._link.call(lambda client: client.studies.get(self._study.num))
            if not study.is_terminal:
                note(f"  {progress(study)}")

    def _value_of(self, one: TrialView) -> str:
        if one.value is None:
            return "no value"
        return f"{self._metric(one.value)}{_at(one)}"

    def _rows(self, numbers: set[int]) -> Iterable[TrialView]:
        num, first, last = self._study.num, min(numbers), max(numbers)
        limit = min(last - first + 1, _MOST_ROWS)
        page = self._link.call(
            lambda client: client.studies.trials(num, after=first - 1, limit=limit)
        )
        return [one for one in page.trials if one.number in numbers]

    def _show_rest(self, study: StudyView) -> None:
        """The trials that ended with the study, in one line for each unit that they had reached."""
        rest: dict[int, list[str]] = {}
        trials = self._link.call(lambda client: list(client.studies.all_trials(study.num)))
        for one in trials:
            if one.number not in self._ended and one.status == "stopped" and one.unit is not None:
                rest.setdefault(one.unit, []).append(one.label)
        for unit, labels in sorted(rest.items()):
            some = ", ".join(labels[:8]) + (", …" if len(labels) > 8 else "")
            trials_text = "1 trial" if len(labels) == 1 else f"{len(labels)} trials"
            note(f"{trials_text} not promoted beyond {unit}: {some}")


def progress(study: StudyView) -> str:
    """Ended trials, the best one, the expected time that is left, and the cost so far."""
    parts = [
        f"{study.num_over}/{study.max_trials or '?'} trials ended",
        f"best {best_text(study)}",
        left_text(study) or "",
        f"{number(study.cost.slot_hours)} slot-hours" if study.cost.slot_hours else "",
    ]
    return "; ".join(part for part in parts if part)


def left_text(study: StudyView) -> str | None:
    """The expected time until the study's end; None while it is not known."""
    from phalanx.kit.clock import SystemClock

    if study.eta_at is None:
        return None
    left_s = study.eta_at.timestamp() - SystemClock().now() / 1e6
    return f"about {format_duration(float(round(max(1.0, left_s))))} left"


def best_text(study: StudyView) -> str:
    """The best value and its trial."""
    one = study.best
    return "none yet" if one is None else f"{number(one.value)} of {one.label}"


def params_text(params: dict[str, object]) -> str:
    """Params as `lr=0.01 width=32`."""
    shown = (
        f"{name}={number(value) if isinstance(value, float) else value}"
        for name, value in params.items()
    )
    return " ".join(shown)


def _why(one: TrialView) -> str:
    code, _, said = one.reason.partition(": ")
    return "" if one.status == "completed" else f" ({said or code})" if one.reason else ""


def _at(one: TrialView) -> str:
    return "" if one.unit is None else f" at {one.unit}"
