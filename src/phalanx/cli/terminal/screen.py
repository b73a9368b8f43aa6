"""Displays of a followed job: lines for pipes and files, a live bar for terminals."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phalanx.cli.terminal.output import STATE_STYLES, number, print_line
from phalanx.kit.terminal import unguarded, visible, visible_line
from phalanx.kit.units import format_duration

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView
    from phalanx.schemas.api.telemetry import LogLine

_SHOWN_METRICS = 3


class Screen:
    """Shows a job as lines: output on the stream that a rank wrote it to, messages on stderr.

    With `raw`, output keeps its control sequences on a terminal too.
    """

    def __init__(self, *, raw: bool = False) -> None:
        self._raw = raw

    def state(self, after_s: float, state: str, said: str) -> None:
        """Show a new state or reason of the job."""
        self.say(f"[{format_duration(after_s)}] {state}" + (f": {said}" if said else ""))

    def line(self, line: LogLine, label: str) -> None:
        """Show one line of a rank's output."""
        stream = sys.stderr if line.stream == "err" else sys.stdout
        print_line(label, line.text, stream, raw=self._raw)

    def progress(self, view: JobView) -> None:
        """Show the job's progress; a log does not."""

    def say(self, text: str) -> None:
        """Show a message of Phalanx itself."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the display."""


@dataclass(slots=True)
class StepEstimate:
    """Estimates the number of steps of a job from the steps of past epochs."""

    steps_per_epoch: float | None = None
    _seen: tuple[int, int] | None = field(default=None)

    def total(self, step: int | None, epoch: int | None, num_epochs: int | None) -> int | None:
        """Estimated steps of the whole job; None while unknown."""
        if step is None or epoch is None or not num_epochs:
            return None
        if self._seen is None or epoch != self._seen[0]:
            # The first step seen of an epoch is near its beginning.
            if epoch > 0 and (self._seen is not None or step > 0):
                self.steps_per_epoch = step / epoch
            self._seen = (epoch, step)
        if self.steps_per_epoch is None:
            return None
        return max(step, round(self.steps_per_epoch * num_epochs))


class TerminalScreen(Screen):
    """Shows a progress bar at the bottom of the terminal, and lines above it."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        super().__init__()
        # The bar moves the cursor; everything else that is printed here passes `visible`.
        self._console = Console(file=unguarded(sys.stderr), highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(visible(name), total=None, facts="")
        self._pace = StepEstimate()
        self._to_terminal = sys.stdout.isatty()
        self._bar.start()

    def state(self, after_s: float, state: str, said: str) -> None:
        """One line, coloured by state."""
        from rich.text import Text

        text = Text.assemble(
            (f"{format_duration(after_s):>7} ", "dim"),
            (f"{state:<11}", STATE_STYLES.get(state, "")),
        )
        self._console.print(text.append(visible(said)), soft_wrap=True)

    def line(self, line: LogLine, label: str) -> None:
        """One line above the bar; on stdout when that is not a terminal."""
        from rich.text import Text

        if line.stream == "out" and not self._to_terminal:
            print_line(label, line.text, sys.stdout)
            return
        self._console.print(Text.from_ansi(label + visible_line(line.text)), soft_wrap=True)

    def progress(self, view: JobView) -> None:
        """Update the bar."""
        done = view.progress
        total = self._pace.total(done.step, done.epoch, done.num_epochs)
        self._bar.update(
            self._task,
            total=total,
            completed=done.step or 0,
            facts=visible(_facts(view, total)),
        )

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(visible(text), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


def _facts(view: JobView, total: int | None) -> str:
    done = view.progress
    if done.step is None:
        return view.state
    words: list[str] = []
    if done.epoch is not None and done.num_epochs:
        words.append(f"epoch {min(done.epoch + 1, done.num_epochs)}/{done.num_epochs}")
    words.append(f"step {done.step}" + (f"/{total}" if total else ""))
    if done.steps_per_s:
        words.append(f"{done.steps_per_s:.3g}/s")
        if total:
            words.append(f"{format_duration(round((total - done.step) / done.steps_per_s))} left")
    metrics: list[tuple[str, Any]] = sorted(done.last_metrics.items())[:_SHOWN_METRICS]
    words += [f"{name} {number(value)}" for name, value in metrics]
    return "  ".join(words)


def screen_for(name: str, *, raw: bool = False) -> Screen:
    """A terminal screen when stderr is a terminal, else, and for raw output, a plain one."""
    return TerminalScreen(name) if sys.stderr.isatty() and not raw else Screen(raw=raw)
