"""What a run trains: models, optimizers, schedulers and tracked objects, and their state as one tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

from torch import nn
from torch.optim import Optimizer

from phalanx.train.data.loader import PositionedLoader
from phalanx.train.gang.groups import ControlChannel
from phalanx.train.numerics.compression import Compressors
from phalanx.train.numerics.local_sgd.rounds import Rounds
from phalanx.train.parallel import replica
from phalanx.train.parallel.strategies import Strategy
from phalanx.train.step.gates import ClearGate, ScheduleGate
from phalanx.train.step.progress import Progress


class TrainedObjects:
    """The objects that `run.prepare` and `run.track` received, in their order."""

    def __init__(
        self,
        progress: Progress,
        strategy: Strategy,
        channel: ControlChannel,
        compressors: Compressors,
        rounds: Rounds,
        seed: int,
    ) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.schedules: list[ScheduleGate] = []
        self.clears: list[ClearGate] = []
        self.tracked: dict[str, Any] = {}
        self.user_state: dict[str, Any] = {}
        self.loader: PositionedLoader | None = None
        self._progress, self._strategy, self._channel = progress, strategy, channel
        self._compressors, self._rounds, self._seed = compressors, rounds, seed

    def held(self) -> dict[str, Sized]:
        """Return the objects by the section of a checkpoint that holds their state."""
        return {
            "models": self.models,
            "optimizers": self.optimizers,
            "schedulers": self.schedules,
        }

    def set_user_state(self, values: dict[str, Any]) -> None:
        """Replace the script's own values."""
        self.user_state = values

    def set_loader(self, loader: PositionedLoader) -> None:
        """Set the training loader."""
        self.loader = loader

    def gradients_spent(self) -> None:
        """Let the next `zero_grad` clear: a step has used the gradients."""
        for clear in self.clears:
            clear.mark_spent()

    def step_committed(self, applied: bool) -> None:
        """Let schedulers step once, where the step changed the weights."""
        for gate in self.schedules:
            gate.allow(applied)
        self.gradients_spent()

    def state(self, policies: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the state that a checkpoint holds. Collective with pipeline stages."""
        plan, rounds = self._progress.plan, self._rounds
        state = {
            "models": [rounds.model_state(replica.unwrapped(one)) for one in self.models],
            "optimizers": [rounds.optimizer_state(one) for one in self.optimizers],
            "sync": rounds.state_dict(),
            "schedulers": [
                {"state": gate.scheduler.state_dict(), "due": gate.due} for gate in self.schedules
            ],
            "tracked": {name: thing.state_dict() for name, thing in self.tracked.items()},
            "state": self.user_state,
            "policies": policies(),
            "compression": self._compressors.state_dict(),
            "seed": self._seed,
            "num_samples": plan.num_samples if plan is not None else None,
            "stream": self.loader.stream_state if self.loader is not None else None,
        }
        return self._strategy.completed(state, self._channel)
