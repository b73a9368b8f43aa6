"""The workers' side of parameter servers: connections, the outer step and the agreement."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from phalanx.errors import TrainingError
from phalanx.launch.authentication import authenticate
from phalanx.train.gang.agreement import Agreement
from phalanx.train.gang.groups import Connection
from phalanx.train.numerics.local_sgd import wire
from phalanx.train.numerics.local_sgd.outer_step import Named, OuterStep
from phalanx.train.numerics.local_sgd.rounds import LocalRounds
from phalanx.train.settings import SyncSettings
from phalanx.train.state import tree

Address = tuple[str, int]


def shard_of(name: str, num_servers: int) -> int:
    """Return the server of a parameter, from its name alone."""
    return zlib.crc32(name.encode()) % num_servers


class ServerConnections:
    """A worker's connections to all servers. Used by one thread."""

    def __init__(
        self, addresses: Sequence[Address], worker: int, place: tuple[int, int], secret: bytes
    ) -> None:
        """Connect to the servers, which know the same secret. Raises OSError."""
        self._worker, self._place = worker, place
        self._peers = []
        for address in addresses:
            peer = socket.create_connection(address)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers.append(authenticate(peer, secret).line)

    def __len__(self) -> int:
        """Return the number of servers."""
        return len(self._peers)

    def ask(self, do: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send one message to each of the first servers at the same time; returns their answers.

        Raises TrainingError when one refuses, ConnectionError when one is gone.
        """
        peers = self._peers[: len(messages)]
        for peer, message in zip(peers, messages, strict=True):
            head = {"do": do, "place": list(self._place), "worker": self._worker}
            wire.send(peer, {**head, **message})
        answers = [wire.receive(peer) for peer in peers]
        for number, answer in enumerate(answers):
            if why := answer.get("refused"):
                raise TrainingError(f"parameter server {number} refused: {why}")
            if tuple(answer.get("place", ())) != self._place:
                raise TrainingError(f"parameter server {number} belongs to another generation")
        return answers

    def parts(self, tensors: Named) -> list[dict[str, torch.Tensor]]:
        """Group tensors by the server that holds them."""
        found: list[dict[str, torch.Tensor]] = [{} for _ in self._peers]
        for name, one in tensors.items():
            found[shard_of(name, len(self._peers))][name] = one.detach()
        return found

    def close(self) -> None:
        """Leave the servers; those that have ended are ignored."""
        try:
            self.ask("bye", [{} for _ in self._peers])
        except (OSError, TrainingError):
            pass
        finally:
            for peer in self._peers:
                peer.close()
            self._peers = []


class ServerOuterStep(OuterStep):
    """The outer step of one model on the servers."""

    def __init__(self, servers: ServerConnections, model: int, loads: bool, lags: bool) -> None:
        """Create the step. `loads`: this worker loads the first weights. `lags`: workers do not wait."""
        self._servers, self._model, self._loads = servers, model, loads
        self.averages_buffers, self.lags = not lags, lags
        self._clock = 0
        self._start: dict[str, Named] = {}
        self._momentum: dict[str, torch.Tensor] = {}
        self._ready = False

    def step(self, at: str, done: Named, outer: Named) -> int:
        """Push this worker's change, and pull the new weights."""
        self._load()
        self._clock += 1
        messages = [
            {"model": self._model, "clock": self._clock, "done": part}
            for part in self._servers.parts(done)
        ]
        self._take([one["weights"] for one in self._servers.ask("push", messages)], outer)
        return sum(one.numel() * one.element_size() for one in done.values())

    def _load(self) -> None:
        if self._ready:
            return
        self._ready = True
        if not self._loads:
            return
        weights = self._servers.parts(self._start["weights"])
        momentum = self._servers.parts(self._start["momentum"])
        head = {"model": self._model, "clock": self._clock}
        rows = zip(weights, momentum, strict=True)
        self._servers.ask("load", [{**head, "weights": w, "momentum": m} for w, m in rows])
        self._start = {}

    def shared(self, outer: Named) -> Named:
        """Return the servers' weights after all pushes. Collective."""
        self._load()
        answers = self._servers.ask("snapshot", [{"model": self._model}] * len(self._servers))
        found = {name: one.clone() for name, one in outer.items()}
        self._take([one["weights"] for one in answers], found)
        self._momentum = {}
        for one in answers:
            self._momentum |= one["momentum"]
        return found

    @staticmethod
    def _take(parts: Sequence[Named], outer: Named) -> None:
        with torch.no_grad():
            for part in parts:
                for name, one in part.items():
                    outer[name].copy_(one)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that belongs to the weights of the last `shared`."""
        return {"momentum": dict(sorted(self._momentum.items())), "clock": self._clock}

    def load_state_dict(self, state: Mapping[str, Any], outer: Named) -> None:
        """Start from these weights, and from this state if it is not empty."""
        self._clock, self._ready = int(state.get("clock", 0)), False
        if self._loads:
            saved = state.get("momentum", {}).items()
            self._start = {
                "weights": {name: one.clone() for name, one in outer.items()},
                "momentum": {name: tree.cloned(one) for name, one in saved if name in outer},
            }


class ServerAgreement:
    """Agreement through the first server: no worker waits for another."""

    def __init__(self, servers: ServerConnections, every: int) -> None:
        self._servers, self._every = servers, every
        self._requests = 0

    def propose(self, step: int, requests: int) -> None:
        """Record the requests; the next due `agree` sends them."""
        self._requests |= requests

    def agree(self, step: int) -> int:
        """Return the requests that all workers follow at this step."""
        if step % self._every:
            return 0
        mine, self._requests = self._requests, 0
        message = {"tick": step // self._every, "requests": mine}
        return int(self._servers.ask("ask", [message])[0]["agreed"])

    def close(self) -> None:
        """Do nothing: the rounds own the connection."""


class ServerRounds(LocalRounds):
    """Rounds of workers with parameter servers."""

    def __init__(
        self, wishes: SyncSettings, servers: ServerConnections, rank: int, tell: Callable[..., None]
    ) -> None:
        lags = wishes.staleness > 0
        super().__init__(
            wishes, lambda at: ServerOuterStep(servers, at, loads=rank == 0, lags=lags), tell
        )
        self._servers = servers

    def agreement(self, connection: Connection) -> Agreement:
        """Create an agreement through the first server."""
        return ServerAgreement(self._servers, self._wishes.control_every or 1)

    def close(self) -> None:
        """Leave the servers."""
        self._servers.close()
