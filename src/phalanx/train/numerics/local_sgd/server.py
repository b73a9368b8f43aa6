"""A parameter server: a rank that holds a part of the weights for the workers.

A server has no model, only tensors by name. It belongs to one generation of one attempt and refuses
messages of any other, so a gang that has been fenced off cannot change the weights. The workers'
checkpoints hold the server's state, and the workers load it from there.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from phalanx.core.training.staleness import Clocks, SharedRequests
from phalanx.errors import TrainingError
from phalanx.launch.authentication import AuthenticatedListener
from phalanx.train.numerics.local_sgd import wire
from phalanx.train.numerics.local_sgd.outer_step import Named, outer_step
from phalanx.train.settings import SyncSettings

Place = tuple[int, int]
_ACCEPT_S = 0.05


class ParameterShard:
    """The tensors of one model on one server."""

    def __init__(self, wishes: SyncSettings, num_workers: int) -> None:
        self._outer, self._num = wishes.outer, num_workers
        self._together = wishes.staleness == 0
        self._weights: dict[str, torch.Tensor] = {}
        self._momentum: dict[str, torch.Tensor] = {}
        self._waiting: dict[int, Named] = {}
        self._asking: set[int] = set()
        self.clocks = Clocks(num_workers, wishes.staleness)
        self.loaded = False
        self.snapshots = 0  # the number of them
        self.snapshot: dict[str, Any] = {}  # the last one

    def load(self, weights: Named, momentum: Named, clock: int) -> None:
        """Load weights and momentum after `clock` exchanges."""
        self._weights, self._momentum = dict(weights), dict(momentum)
        self.clocks.start(clock)
        self.loaded = True

    def push(self, worker: int, clock: int, done: Named) -> None:
        """Apply a worker's change at once, or the mean of all workers' changes in rank order."""
        self.clocks.advance(worker, clock)
        if not self._together:
            self._step({name: one / self._num for name, one in done.items()})
            return
        self._waiting[worker] = done
        if len(self._waiting) == self._num:
            rows = [self._waiting[at] for at in range(self._num)]
            self._waiting = {}
            self._step({name: torch.stack([row[name] for row in rows]).mean(0) for name in done})

    def _step(self, gradients: Named) -> None:
        if gradients:
            outer_step(self._outer, self._weights, gradients, self._momentum)

    def request_snapshot(self, worker: int) -> int:
        """Request a snapshot for a worker; returns the number of the snapshot that will answer it.

        The snapshot is made when all workers have asked, so it holds every push that was made before, and
        is kept in `snapshot`: later pushes do not change it.
        """
        self._asking.add(worker)
        number = self.snapshots + 1
        if len(self._asking) == self._num:
            self._asking = set()
            self.snapshots, self.snapshot = number, self._state()
        return number

    def _state(self) -> dict[str, Any]:
        momentum = {name: one.clone() for name, one in self._momentum.items()}
        return {"weights": self.weights(), "momentum": momentum}

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights."""
        return {name: one.clone() for name, one in self._weights.items()}


class ParameterServer:
    """Answers the workers' messages. Each worker's connection has a thread of its own."""

    def __init__(self, wishes: SyncSettings, num_workers: int, place: Place) -> None:
        self._wishes, self._num, self._place = wishes, num_workers, place
        self._shards: dict[int, ParameterShard] = {}
        self._decisions = SharedRequests(num_workers)
        self._left: set[int] = set()
        self._changed = threading.Condition()

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one message; waits for other workers where needed."""
        place = tuple(message.get("place", ()))
        if place != self._place:
            return self._refusal(
                f"the message is of (attempt, generation) {place}, the server of {self._place}"
            )
        work: Callable[[Mapping[str, Any]], dict[str, Any]] | None
        work = getattr(self, f"_do_{message.get('do')}", None)
        if work is None:
            return self._refusal(f"there is no operation {message.get('do')!r}")
        try:
            with self._changed:
                found = work(message)
                self._changed.notify_all()
        except (KeyError, TypeError, ValueError) as error:
            return self._refusal(str(error))
        return {"place": list(self._place), **found}

    def _refusal(self, why: str) -> dict[str, Any]:
        return {"place": list(self._place), "refused": why}

    def _shard(self, message: Mapping[str, Any]) -> ParameterShard:
        number = int(message["model"])
        return self._shards.setdefault(number, ParameterShard(self._wishes, self._num))

    def _do_load(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shard = self._shard(message)
        shard.load(message["weights"], message["momentum"], int(message["clock"]))
        return {}

    def _do_push(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shard, worker = self._shard(message), int(message["worker"])
        self._changed.wait_for(lambda: shard.loaded)
        shard.push(worker, int(message["clock"]), message["done"])
        self._changed.notify_all()
        self._changed.wait_for(lambda: shard.clocks.may_go_on(worker))
        return {"weights": shard.weights()}

    def _do_snapshot(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shard = self._shard(message)
        self._changed.wait_for(lambda: shard.loaded)
        number = shard.request_snapshot(int(message["worker"]))
        self._changed.notify_all()
        self._changed.wait_for(lambda: shard.snapshots >= number)
        return shard.snapshot

    def _do_ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        tick, requests = int(message["tick"]), int(message["requests"])
        return {"agreed": self._decisions.ask(int(message["worker"]), tick, requests)}

    def _do_bye(self, message: Mapping[str, Any]) -> dict[str, Any]:
        worker = int(message["worker"])
        self._left.add(worker)
        for shard in self._shards.values():
            shard.clocks.leave(worker)
        return {}

    def request(self, bits: int) -> None:
        """Record requests that this server received itself."""
        with self._changed:
            self._decisions.request(bits)

    @property
    def all_left(self) -> bool:
        """Return whether all workers have left."""
        return len(self._left) == self._num


def serve(
    listener: AuthenticatedListener, server: ParameterServer, poll: Callable[[], None]
) -> None:
    """Answer until all workers have left; calls `poll` at least every 50 ms."""
    with listener:
        while not server.all_left:
            poll()
            try:
                peer = listener.accept(_ACCEPT_S).line
            except TimeoutError:
                continue
            threading.Thread(target=_talk, args=(peer, server), daemon=True).start()


def _talk(peer: socket.socket, server: ParameterServer) -> None:
    """Serve the connection of one worker, which has proven that it belongs to the gang."""
    # A worker that disconnects without `bye` has failed: the supervisor ends its generation.
    with peer, contextlib.suppress(OSError, TrainingError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            wire.send(peer, server.answer(wire.receive(peer)))
