"""A parameter server: a rank that holds a part of the weights for the workers.

A server knows no model, only tensors by name. It belongs to one generation of one attempt: a message of
another one is refused, and so nothing of a gang that was fenced off reaches the weights. What it holds
is in the workers' checkpoints, and comes back from there.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from phalanx.core.training.staleness import Clocks, SharedRequests
from phalanx.errors import TrainingError
from phalanx.train.numerics.local_sgd import wire
from phalanx.train.numerics.local_sgd.outer_step import outer_step
from phalanx.train.settings import SyncSettings

Place = tuple[int, int]
_LOOK_S = 0.05


class ParameterShard:
    """The tensors of one model on one server."""

    def __init__(self, wishes: SyncSettings, num_workers: int) -> None:
        self._outer, self._num = wishes.outer, num_workers
        self._together = wishes.staleness == 0
        self._weights: dict[str, torch.Tensor] = {}
        self._momentum: dict[str, torch.Tensor] = {}
        self._waiting: dict[int, Mapping[str, torch.Tensor]] = {}
        self._asking: set[int] = set()
        self.clocks = Clocks(num_workers, wishes.staleness)
        self.loaded = False
        self.looks = 0
        self.shown: dict[str, Any] = {}

    def load(self, weights: Mapping[str, torch.Tensor], momentum: Mapping[str, torch.Tensor],
             clock: int) -> None:  # fmt: skip
        """Load weights and momentum after `clock` exchanges."""
        self._weights, self._momentum = dict(weights), dict(momentum)
        self.clocks.start(clock)
        self.loaded = True

    def push(self, worker: int, clock: int, done: Mapping[str, torch.Tensor]) -> None:
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

    def _step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        if gradients:
            outer_step(self._outer, self._weights, gradients, self._momentum)

    def look(self, worker: int) -> int:
        """Request a snapshot for a worker; returns the number of the snapshot that will answer it.

        There is one look once all have asked: no worker has pushed anything that others do not see. What it
        shows is in `shown`, whatever those push that have seen it first.
        """
        self._asking.add(worker)
        number = self.looks + 1
        if len(self._asking) == self._num:
            self._asking = set()
            self.looks, self.shown = number, self._state()
        return number

    def _state(self) -> dict[str, Any]:
        return {
            "weights": {name: one.clone() for name, one in self._weights.items()},
            "momentum": {name: one.clone() for name, one in self._momentum.items()},
        }

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights."""
        return {name: one.clone() for name, one in self._weights.items()}


class ParameterServer:
    """The server's answers to workers, each on its own thread."""

    def __init__(self, wishes: SyncSettings, num_workers: int, place: Place) -> None:
        self._wishes, self._num, self._place = wishes, num_workers, place
        self._shelves: dict[int, ParameterShard] = {}
        self._decisions = SharedRequests(num_workers)
        self._left: set[int] = set()
        self._changed = threading.Condition()

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one message; waits for other workers where needed."""
        place = tuple(message.get("place", ()))
        if place != self._place:
            return self._refusal(f"{place} is not the generation of this server, {self._place}")
        work: Callable[[Mapping[str, Any]], dict[str, Any]] | None
        work = getattr(self, f"_do_{message.get('do')}", None)
        if work is None:
            return self._refusal(f"{message.get('do')!r} is not known")
        try:
            with self._changed:
                found = work(message)
                self._changed.notify_all()
        except (KeyError, TypeError, ValueError) as error:
            return self._refusal(str(error))
        return {"place": list(self._place), **found}

    def _refusal(self, why: str) -> dict[str, Any]:
        return {"place": list(self._place), "refused": why}

    def _shelf(self, message: Mapping[str, Any]) -> ParameterShard:
        number = int(message["model"])
        return self._shelves.setdefault(number, ParameterShard(self._wishes, self._num))

    def _do_load(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shelf = self._shelf(message)
        shelf.load(message["weights"], message["momentum"], int(message["clock"]))
        return {}

    def _do_push(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shelf, worker = self._shelf(message), int(message["worker"])
        self._changed.wait_for(lambda: shelf.loaded)
        shelf.push(worker, int(message["clock"]), message["done"])
        self._changed.notify_all()
        self._changed.wait_for(lambda: shelf.clocks.may_go_on(worker))
        return {"weights": shelf.weights()}

    def _do_look(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shelf = self._shelf(message)
        self._changed.wait_for(lambda: shelf.loaded)
        number = shelf.look(int(message["worker"]))
        self._changed.notify_all()
        self._changed.wait_for(lambda: shelf.looks >= number)
        return shelf.shown

    def _do_ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        tick, requests = int(message["tick"]), int(message["requests"])
        return {"agreed": self._decisions.ask(int(message["worker"]), tick, requests)}

    def _do_bye(self, message: Mapping[str, Any]) -> dict[str, Any]:
        worker = int(message["worker"])
        self._left.add(worker)
        for shelf in self._shelves.values():
            shelf.clocks.leave(worker)
        return {}

    def request(self, bits: int) -> None:
        """Record requests that this server received itself."""
        with self._changed:
            self._decisions.request(bits)

    @property
    def deserted(self) -> bool:
        """Return whether all workers have left."""
        return len(self._left) == self._num


def listen() -> socket.socket:
    """Listen on every interface, at a free port."""
    room = socket.create_server(("", 0), backlog=256)
    room.settimeout(_LOOK_S)
    return room


def serve(
    room: socket.socket, server: ParameterServer, token: str, look: Callable[[], None]
) -> None:
    """Answer until all workers have left; calls `look` at least every 50 ms."""
    with room:
        while not server.deserted:
            look()
            try:
                peer, _ = room.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_talk, args=(peer, server, token), daemon=True).start()


def _talk(peer: socket.socket, server: ParameterServer, token: str) -> None:
    """Serve one worker's connection: the token first, then messages and answers."""
    # A worker that goes away without good-bye ends the generation; that is for others to say.
    with peer, contextlib.suppress(OSError, TrainingError):
        peer.settimeout(wire.TOKEN_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = wire.receive(peer, wire.SMALL_BYTES)
        if not isinstance(first, str) or not hmac.compare_digest(first.encode(), token.encode()):
            return
        peer.settimeout(None)
        while True:
            wire.send(peer, server.answer(wire.receive(peer)))
