"""The coordinator: sends the model to sites and computes the next one from their answers."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phalanx.core.contract.records import (
    DoneRecord,
    MetricRecord,
    PhaseRecord,
    StepRecord,
    WarningRecord,
)
from phalanx.core.training.federation import Federation, Phase, Rules
from phalanx.errors import CheckpointCorrupt, Problem, SpecInvalid, TrainingError
from phalanx.kit.clock import Clock, SystemClock
from phalanx.launch.authentication import AuthenticatedListener, AuthenticatedPeer, derive
from phalanx.train.federated.folder import FederationFolder, Tensors, load_weights
from phalanx.train.gang import context
from phalanx.train.gang.report import report_to
from phalanx.train.numerics.local_sgd import wire
from phalanx.train.numerics.local_sgd.outer_step import outer_step
from phalanx.train.settings import OuterSettings

_LOOK_S = 0.05
_TALK_S = 600.0
# Sites ask twice a second: one that has not for so long does not come for the final weights.
_LINGER_S = 15.0
# Conversations at once, of all sites and of one; further ones are closed, and the site asks again.
_MOST_TALKS = 256
_TALKS_OF_SITE = 4
_MOST_SAMPLES = 1 << 53
# Names, metrics and the space between tensors, beside what the weights themselves need.
_AROUND_BYTES = 64 << 20


class Coordinator:
    """The coordinator of one federation. `serve` runs it to its end.

    `directory` is where it keeps what it needs to go on after a kill; under a launcher the job's checkpoint
    directory serves. A round begins with at least `min_sites` sites and counts when as many have answered
    within `round_s` seconds. `server_lr` and `server_momentum` are of the step from one model to the next:
    1 and 0 are FedAvg. `token` is the coordinator's own secret: each site proves that it has the token
    that `site_token` derives from it for the site's name, so no site can claim the name of another.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each wish
        self,
        model: nn.Module,
        *,
        num_rounds: int,
        token: str,
        min_sites: int = 2,
        round_s: float = 3600.0,
        gather_s: float = 2.0,
        server_lr: float = 1.0,
        server_momentum: float = 0.0,
        directory: str | Path | None = None,
        on_round: Callable[[int, dict[str, float]], None] = lambda number, metrics: None,
        clock: Clock | None = None,
    ) -> None:
        """Create the coordinator, or resume it from its directory.

        `on_round` gets each round's number and metrics once the new model is written; after a kill in
        between it is not called for that round.

        Raises SpecInvalid, CheckpointCorrupt when what was kept is damaged, and RestoreMismatch when it is
        of another model.
        """
        info = context.read()
        folder = directory or info.checkpoint_dir
        if folder is None:
            raise SpecInvalid([Problem("directory", "is required: the launcher names no folder")])
        if not token:
            raise SpecInvalid([Problem("token", "is required: sites authenticate with it")])
        try:
            rules = Rules(
                num_rounds=num_rounds, min_sites=min_sites, round_s=round_s, gather_s=gather_s
            )
        except ValueError as error:
            raise SpecInvalid([Problem("Coordinator", str(error))]) from None
        self.model, self._token = model, token
        self._talking: Counter[str] = Counter()
        kept = model.state_dict().values()
        self._most_bytes = _AROUND_BYTES + 2 * sum(one.numel() * one.element_size() for one in kept)
        self._on_round, self._clock = on_round, clock or SystemClock()
        self._outer = OuterSettings(lr=server_lr, momentum=server_momentum)
        self._momentum: dict[str, torch.Tensor] = {}
        self._folder = FederationFolder(Path(folder) / "federation")
        self._federation = Federation(rules)
        self._answers: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._seen_s: dict[str, float] = {}
        self._told: set[str] = set()
        self._report = report_to(info.report_file, self._clock.now)
        self._resume()

    def _resume(self) -> None:
        kept = self._folder.newest_model()
        if kept is None:
            self._folder.write_model(0, self._kept())
            return
        number, state = kept
        load_weights(self.model, state["weights"], "what the coordinator's directory holds")
        self._momentum = dict(state["momentum"])
        cohort = self._folder.cohort(number + 1)
        now_s = self._clock.monotonic()
        self._seen_s = dict.fromkeys([*state["sites"], *cohort], now_s)
        self._answers = self._folder.answers(number + 1, cohort)
        self._federation.resume(number, cohort, set(self._answers), now_s)

    def _kept(self) -> dict[str, Any]:
        return {
            "weights": dict(self.model.state_dict()),
            "momentum": dict(self._momentum),
            "sites": sorted(self._seen_s),
        }

    @property
    def rounds_done(self) -> int:
        """Return the number of closed rounds."""
        return self._federation.closed

    # -- serving ---------------------------------------------------------------------------------

    def serve(self, host: str = "", port: int = 0, *, ready: Callable[[int], None] = print) -> None:
        """Answer sites at this address until all rounds are done and the sites have the final weights.

        `ready` gets the port. Raises OSError when the address cannot be had.
        """
        server = socket.create_server((host, port), backlog=1024)
        with AuthenticatedListener(server, self._secret_of) as listener:
            self._report.write(PhaseRecord("ready"))
            ready(listener.port)
            while not self._over():
                self._look()
                with contextlib.suppress(TimeoutError):
                    peer = listener.accept(_LOOK_S)
                    if not self._admit(peer.name):
                        peer.line.close()
                        continue
                    threading.Thread(target=self._talk, args=(peer,), daemon=True).start()
        self._report.write(DoneRecord(self._federation.closed))
        self._report.close()

    def _over(self) -> bool:
        """Return whether all rounds are done and every connected site has the final weights."""
        if self._federation.phase is not Phase.DONE:
            return False
        since_s = self._clock.monotonic() - _LINGER_S
        with self._lock:
            return all(site in self._told for site, at in self._seen_s.items() if at > since_s)

    def _look(self) -> None:
        """Begin or end a round that is due."""
        with self._lock:
            now_s, federation = self._clock.monotonic(), self._federation
            if federation.begins(now_s):
                self._answers = {}
                self._folder.write_cohort(federation.closed + 1, federation.cohort)
            elif federation.ends(now_s):
                if federation.counts:
                    self._close()
                else:
                    federation.abandon()
                    self._folder.clear_answers()
                    self._warn(f"round {federation.closed + 1}: too few sites answered in time")

    def _close(self) -> None:
        """Compute the new model from the answers, in the order of the sites' names."""
        rows = [self._answers[site] for site in sorted(self._federation.answered)]
        metrics = weighted_metrics(rows)
        state = dict(self.model.state_dict())
        mean = weighted_mean(rows, state)
        trained = {name: state[name] for name, _ in self.model.named_parameters()}
        done = {name: one - mean[name] for name, one in trained.items()}
        outer_step(self._outer, trained, done, self._momentum)
        for name in state.keys() - trained.keys():
            state[name].copy_(mean[name])
        number = self._federation.closed + 1
        self._folder.write_model(number, self._kept())
        dropped = sorted(self._federation.cohort - self._federation.answered)
        self._federation.close()
        if dropped:
            self._warn(f"round {number}: no answer from {', '.join(dropped)}")
        self._report.write(StepRecord(step=number, epoch=0, consumed=number))
        self._report.write(MetricRecord(step=number, values=metrics))
        self._on_round(number, metrics)

    def _warn(self, message: str) -> None:
        self._report.write(WarningRecord(message))

    # -- one site --------------------------------------------------------------------------------

    def _secret_of(self, site: str) -> bytes | None:
        return site_token(self._token, site).encode() if site else None

    def _admit(self, site: str) -> bool:
        """Count a conversation, of which a site may have a few and all sites together many."""
        with self._lock:
            if self._talking[site] >= _TALKS_OF_SITE or self._talking.total() >= _MOST_TALKS:
                return False
            self._talking[site] += 1
            return True

    def _talk(self, peer: AuthenticatedPeer) -> None:
        """Handle one request of a site, which has proven its name. A site that disconnects repeats it."""
        line = peer.line
        with line, self._counted(peer.name), contextlib.suppress(OSError, TrainingError):
            line.settimeout(_TALK_S)
            try:
                message = wire.receive(line, self._most_bytes)
            except (wire.MessageTooLarge, CheckpointCorrupt) as error:
                wire.refuse(line, str(error))
                return
            wire.send(line, self.answer(peer.name, message))

    @contextlib.contextmanager
    def _counted(self, site: str) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._talking[site] -= 1
                self._talking += Counter()  # drops sites without conversations

    def answer(self, site: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one message of a site."""
        try:
            if message["do"] == "work":
                return self._work(site)
            if message["do"] == "submit":
                return self._submit(site, message)
            return {"refused": f"unknown operation {message['do']!r}"}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return {"refused": f"{type(error).__name__}: {error}"}

    def _work(self, site: str) -> dict[str, Any]:
        with self._lock:
            self._seen_s[site] = self._clock.monotonic()
            if self._federation.phase is Phase.DONE:
                self._told.add(site)
                return {"do": "leave", "round": self._federation.closed, "weights": self._weights()}
            if self._federation.wants_work(site, self._clock.monotonic()):
                number = self._federation.closed + 1
                return {"do": "train", "round": number, "weights": self._weights()}
            return {"do": "wait"}

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: one.detach().clone() for name, one in self.model.state_dict().items()}

    def _submit(self, site: str, message: Mapping[str, Any]) -> dict[str, Any]:
        number = int(message["round"])
        answer = {
            "weights": message["weights"],
            "count": int(message["count"]),
            "metrics": {str(key): float(value) for key, value in message["metrics"].items()},
        }
        if why := unusable(answer, self.model.state_dict()):
            self._warn(f"round {number}: the answer of {site} is not used: {why}")
            return {"refused": why}
        with self._lock:
            if not self._federation.may_answer(site, number):
                # It was taken already, or came too late: either way there is nothing more to do.
                return {"taken": site in self._federation.answered}
            self._folder.write_answer(number, site, answer)
            self._answers[site] = answer
            self._federation.answer(site)
        return {"taken": True}


def site_token(token: str, name: str) -> str:
    """Return the token of the site with this name, from the coordinator's own token."""
    return derive(token.encode(), "federation", "site", name)


def unusable(answer: Mapping[str, Any], like: Tensors) -> str:
    """Return why a site's answer cannot be used; empty where it can."""
    weights = answer["weights"]
    if not 1 <= answer["count"] <= _MOST_SAMPLES:
        return f"a count of {answer['count']} samples is not valid"
    if not all(isinstance(one, torch.Tensor) for one in weights.values()):
        return "not all weights are tensors"
    if set(weights) != set(like):
        return "the weights are of another model"
    for name, one in weights.items():
        if one.shape != like[name].shape or one.dtype != like[name].dtype:
            return f"{name} has shape {list(one.shape)}, the model's has {list(like[name].shape)}"
        if one.is_floating_point() and not bool(one.isfinite().all()):
            return f"{name} is not finite"
    return ""


def weighted_mean(rows: list[dict[str, Any]], like: Tensors) -> dict[str, torch.Tensor]:
    """Return the mean of the sites' weights, weighted by samples; of integers, the largest."""
    total = sum(row["count"] for row in rows)
    found = {}
    for name, one in like.items():
        if one.is_floating_point():
            parts = (row["weights"][name].double() * (row["count"] / total) for row in rows)
            found[name] = torch.stack(list(parts)).sum(0).to(one.dtype)
        else:
            found[name] = torch.stack([row["weights"][name] for row in rows]).amax(0)
    return found


def weighted_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric over the sites that report it, weighted by samples."""
    found = {"sites": float(len(rows)), "samples": float(sum(row["count"] for row in rows))}
    for name in sorted({name for row in rows for name in row["metrics"]}):
        having = [row for row in rows if math.isfinite(row["metrics"].get(name, math.nan))]
        total = sum(row["count"] for row in having)
        if total:
            found[name] = sum(row["metrics"][name] * row["count"] for row in having) / total
    return found
