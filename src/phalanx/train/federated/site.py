"""A site: trains the federation's model on local data."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from phalanx.errors import TrainingError
from phalanx.kit.clock import backoff_s
from phalanx.launch.authentication import NotAuthenticated, authenticate
from phalanx.train.federated.folder import load_weights
from phalanx.train.numerics.local_sgd import wire

_TALK_S = 600.0
_ASK_EVERY_S = 0.5


class Site:
    """One site of a federation.

        site = Site("coordinator:9000", name="hospital-3", token=…)
        for round in site.rounds(model):
            …train model on own data, adding site.proximal() to the loss…
            site.submit(count=len(data), loss=mean_loss)

    With `prox` above 0, `proximal` is FedProx's term, else 0. A coordinator that does not answer is asked
    again for `patience_s` seconds. `token` is the site's own: `federated.site_token` makes it from that
    of the coordinator.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        token: str,
        prox: float = 0.0,
        patience_s: float = 3600.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the site; `address` is `host:port`. Raises ValueError."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"address must be host:port, not {address!r}")
        self._address, self._name, self._token = (host, int(port)), name, token
        self._prox, self._patience_s, self._sleep = prox, patience_s, sleep
        self._model: nn.Module | None = None
        self._given: dict[str, torch.Tensor] = {}
        self._round = 0
        self._submitted = False

    def rounds(self, model: nn.Module) -> Iterator[int]:
        """Yield the numbers of this site's rounds; `model` has the federation's weights.

        At the end it has the final ones. Raises TrainingError when the coordinator refuses, is gone,
        or has another model.
        """
        self._model = model
        while True:
            answer = self._ask({"do": "work"})
            if answer["do"] == "wait":
                self._sleep(_ASK_EVERY_S)
                continue
            load_weights(model, answer["weights"], "what the coordinator gives")
            if answer["do"] == "leave":
                return
            self._round, self._submitted = int(answer["round"]), False
            self._given = {
                name: one.detach().clone()
                for name, one in model.named_parameters()
                if one.requires_grad
            }
            yield self._round
            if not self._submitted:
                raise TrainingError(
                    f"round {self._round} ended without an answer",
                    "call site.submit(count=…) at the end of every round",
                )

    def proximal(self) -> torch.Tensor:
        """Return prox / 2 × the squared distance from the round's first weights (Li et al. 2020)."""
        assert self._model is not None, "may only be called inside a round"
        parameters = dict(self._model.named_parameters())
        total = torch.zeros((), device=next(iter(parameters.values())).device)
        if self._prox:
            for name, given in self._given.items():
                total = total + (parameters[name] - given).square().sum()
        return total * (self._prox / 2)

    def submit(self, *, count: int, **metrics: float) -> bool:
        """Submit the weights, the number of samples they were trained on, and metrics.

        False where they came too late for the round. Raises TrainingError when they cannot be used.
        """
        assert self._model is not None, "may only be called inside a round"
        state = {name: one.detach() for name, one in self._model.state_dict().items()}
        plain = {name: float(value) for name, value in metrics.items()}
        answer = {"round": self._round, "weights": state, "count": count, "metrics": plain}
        reply = self._ask({"do": "submit", **answer})
        self._submitted = True
        return bool(reply["taken"])

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, repeated while the coordinator does not answer: it may be restarting."""
        began, failures, rng = time.monotonic(), 0, random.Random()
        while True:
            try:
                answer = self._ask_once(message)
            except NotAuthenticated as error:
                raise TrainingError(
                    f"the coordinator refused: the token is not that of site {self._name}",
                    "federated.site_token(token, name) makes it from the coordinator's token",
                ) from error
            except OSError as error:
                failures += 1
                if time.monotonic() - began > self._patience_s:
                    host, port = self._address
                    raise TrainingError(
                        f"no coordinator answers at {host}:{port}: {error}"
                    ) from error
                self._sleep(backoff_s(failures, first_s=0.2, max_s=5.0, rng=rng))
                continue
            if why := answer.get("refused"):
                raise TrainingError(f"the coordinator refused: {why}")
            return answer

    def _ask_once(self, message: Mapping[str, Any]) -> dict[str, Any]:
        with socket.create_connection(self._address, timeout=_TALK_S) as peer:
            authenticate(peer, self._token.encode(), self._name)
            wire.send(peer, message)
            found = wire.receive(peer)
            assert isinstance(found, dict)
            return found
