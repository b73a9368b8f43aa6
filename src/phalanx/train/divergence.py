"""The guard against losses that jump: seen one step late, acted on by all ranks at once.

A rank reads its own loss when the next step commits, so reading never waits for the device. What it finds
travels in the control words; the ranks then compare what they saw, and the generation ends before the
earliest bad step.
"""

from __future__ import annotations

import json

from phalanx.core import control
from phalanx.core.guards import Policy, Skip, SpikeDetector, Undo
from phalanx.errors import DivergedForGood
from phalanx.train.applying import Applier
from phalanx.train.groups import Channel
from phalanx.train.loop import Loop


class SpikeGuard:
    """Watches the value logged as `loss`."""

    def __init__(
        self, loop: Loop, applier: Applier, channel: Channel, policy: Policy,
        place: tuple[int, int], metric: str = "loss",
    ) -> None:  # fmt: skip
        """`place` is (attempt, generation)."""
        self._loop, self._applier, self._channel = loop, applier, channel
        self._policy, self._place, self._metric = policy, place, metric
        self._detector = SpikeDetector()
        self._spiked: int | None = None
        self._read_step = -1

    def observe(self) -> None:
        """Look at the newest value that has been read."""
        journal = self._loop.journal
        value = journal.latest.get(self._metric)
        if value is None or journal.read_step == self._read_step or self._spiked is not None:
            return
        self._read_step = journal.read_step
        if self._detector.observe(float(value)):
            self._spiked = journal.read_step

    def wishes(self) -> int:
        """The request for the control words."""
        return control.ROLL_BACK if self._spiked is not None else 0

    def act(self) -> None:
        """All ranks have agreed that one of them saw a spike. Raises Diverged or DivergedForGood."""
        seen = [json.loads(one) for one in self._channel.gather(json.dumps(self._spiked).encode())]
        first = min((step for step in seen if step is not None), default=None)
        step = json.loads(self._channel.broadcast(json.dumps(first)))
        text = f"step {step}: the loss jumped"
        interval = next((one[1:] for one in self._loop.recent if one[0] == step), None)
        if self._policy is Policy.STOP or interval is None or not self._applier.lasting:
            raise DivergedForGood(text, "on_spike='rollback' would pass the batch over")
        skip = Skip(*interval, step, "spike")
        self._applier.roll_back(skip, Undo(*self._place, step), text)
