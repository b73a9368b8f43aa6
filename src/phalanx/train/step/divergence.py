"""The guard against losses that jump: seen one step late, acted on by all ranks at once.

A rank reads its own loss when the next step commits, so reading never waits for the device. What it finds
travels in the control words; the ranks then compare what they saw, and the generation ends before the
earliest bad step. The next one computes that step a second time, from the same weights and the same
batch: only then is it known whether data or hardware is to blame.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from typing import Any

from phalanx.core.training import control
from phalanx.core.training.guards import FaultOrigin, GuardPolicy, SpikeDetector, Suspect, Undo
from phalanx.errors import DivergedForGood
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.gang.report import Journal
from phalanx.train.step.guard import StepGuard
from phalanx.train.step.progress import Progress


class LossGuard:
    """Watches the logged loss between steps. This one is switched off."""

    def observe(self) -> None:
        """Look at the newest value that has been read."""

    def requests(self) -> int:
        """Return the request for the control words."""
        return 0

    def act(self) -> None:
        """Act on what one of the ranks found. Collective. Raises Diverged or DivergedForGood."""


class SpikeGuard(LossGuard):
    """Watches the value logged as `loss`."""

    def __init__(
        self,
        progress: Progress,
        journal: Journal,
        guard: StepGuard,
        channel: ControlChannel,
        policy: GuardPolicy,
        place: tuple[int, int],
        metric: str = "loss",
    ) -> None:
        """`place` is (attempt, generation)."""
        self._progress, self._journal, self._guard, self._channel = (
            progress,
            journal,
            guard,
            channel,
        )
        self._policy, self._place, self._metric = policy, place, metric
        self._detector = SpikeDetector()
        self._spiked: int | None = None
        self._due = False
        self._read_step = -1
        self._values: deque[tuple[int, str]] = deque(maxlen=8)

    def observe(self) -> None:
        """Look at the newest value that has been read."""
        journal = self._journal
        value = journal.latest.get(self._metric)
        if value is None or journal.read_step == self._read_step or self._spiked is not None:
            return
        self._read_step = journal.read_step
        self._values.append((self._read_step, float(value).hex()))
        suspect = self._progress.guard_state.suspect
        if suspect is not None and suspect.step == self._read_step:
            self._due = True
        elif self._detector.observe(float(value)):
            self._spiked = journal.read_step

    def requests(self) -> int:
        """Return the request for the control words."""
        return control.ROLL_BACK if self._spiked is not None or self._due else 0

    def act(self) -> None:
        """Act after all ranks agreed that one of them has a finding.

        Returns where training goes on. Raises Diverged or DivergedForGood.
        """
        rows = self._tell_one_another()
        suspect = self._progress.guard_state.suspect
        if suspect is not None and any(row["due"] for row in rows):
            self._due = False
            self._judge(suspect, [row["again"] for row in rows])
            return
        steps = [row["step"] for row in rows if row["step"] is not None]
        if steps:  # none: an answer that was still under way when the last one was acted on
            self._suspect(min(steps), rows)

    def _tell_one_another(self) -> list[dict[str, Any]]:
        """Return what every rank observed, on all ranks."""
        suspect = self._progress.guard_state.suspect
        known = dict(self._values)
        mine = {
            "step": self._spiked,
            "due": self._due,
            "above": self._detector.above,
            "again": known.get(suspect.step, "") if suspect is not None else "",
            "values": list(self._values),
        }
        rows = self._channel.gather(json.dumps(mine).encode())
        text = json.dumps([json.loads(row) for row in rows])
        return list(json.loads(self._channel.spread(text)))

    def _suspect(self, step: int, rows: list[dict[str, Any]]) -> None:
        """A loss has jumped at `step`: end the generation before it."""
        text = f"step {step}: the loss jumped"
        interval = next((one[1:] for one in self._progress.recent if one[0] == step), None)
        if self._policy is GuardPolicy.STOP or interval is None or not self._guard.lasting:
            raise DivergedForGood(text, "on_spike='rollback' would skip the batch")
        above = min(row["above"] for row in rows if row["step"] == step)
        seen = tuple(dict(row["values"]).get(step, "") for row in rows)
        suspect = Suspect(*interval, step, above, seen)
        undo = Undo(*self._place, step)
        if self._policy is GuardPolicy.SKIP:
            ranks = [rank for rank, row in enumerate(rows) if row["step"] == step]
            self._guard.tell("skip", FaultOrigin.UNKNOWN, ranks, "spike", step)
            self._guard.roll_back(suspect.skip(), undo, text)
        guard_state = replace(self._progress.guard_state, undo=undo, suspect=suspect)
        self._guard.leave_with(guard_state, f"{text}; the next generation computes the step again")

    def _judge(self, suspect: Suspect, again: list[str]) -> None:
        """Attribute a loss jump after its step was computed a second time, and act on it."""
        blame, ranks = suspect.verdict(again)
        step = suspect.step
        if blame is not FaultOrigin.HARDWARE:
            self._guard.tell("rollback", blame, ranks, "spike", step)
            text = f"step {step}: the loss jumped again"
            self._guard.roll_back(suspect.skip(), Undo(*self._place, step), text)
        self._guard.tell("applied", blame, ranks, "spike", step)
        self._progress.set_guard_state(replace(self._progress.guard_state, suspect=None))
        # Where it cannot be written down, a later generation judges once more, to the same end.
        self._guard.store(self._progress.guard_state)
