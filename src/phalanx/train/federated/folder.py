"""The files of a coordinator: models, the current round, and its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phalanx.checkpoint.digest import digest_of
from phalanx.errors import CheckpointCorrupt, RestoreMismatch
from phalanx.launch.files import write_file
from phalanx.train.numerics.local_sgd import wire

Tensors = Mapping[str, torch.Tensor]
_KEPT = 2


class FederationFolder:
    """The files of a federation: `round-…` for each model, `answers/…` and `cohort.json` for the round."""

    def __init__(self, root: Path) -> None:
        """Create the directories. Raises OSError."""
        self._root = root
        (root / "answers").mkdir(parents=True, exist_ok=True)

    def write_model(self, number: int, model: Mapping[str, Any]) -> None:
        """Write the model after round `number`, and delete older ones. Raises OSError."""
        self._write(self._model(number), model)
        self.clear_answers()
        for path in sorted(self._root.glob("round-*.tensors"))[:-_KEPT]:
            path.unlink(missing_ok=True)

    def newest_model(self) -> tuple[int, dict[str, Any]] | None:
        """Return the newest intact model and its round; damaged ones are skipped.

        Raises CheckpointCorrupt when there are some and all of them are.
        """
        problems = []
        for path in sorted(self._root.glob("round-*.tensors"), reverse=True):
            number = int(path.stem.removeprefix("round-"))
            try:
                return number, self._read(path)
            except CheckpointCorrupt as error:
                problems.append(error.message)
        if problems:
            raise CheckpointCorrupt("; ".join(problems))
        return None

    def write_cohort(self, number: int, sites: set[str]) -> None:
        """Write the sites of round `number`. Raises OSError."""
        self.clear_answers()
        body = {"round": number, "sites": sorted(sites)}
        write_file(self._root / "cohort.json", json.dumps(body).encode())

    def cohort(self, number: int) -> set[str]:
        """Return the sites of this round; empty if it had not begun."""
        try:
            body = json.loads((self._root / "cohort.json").read_bytes())
            return set(body["sites"]) if body["round"] == number else set()
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    def write_answer(self, number: int, site: str, answer: Mapping[str, Any]) -> None:
        """Write a site's answer durably. Raises OSError."""
        self._write(self._answer(number, site), answer)

    def answers(self, number: int, sites: set[str]) -> dict[str, dict[str, Any]]:
        """Return the intact answers of this round."""
        found = {}
        for site in sorted(sites):
            path = self._answer(number, site)
            if path.exists():
                try:
                    found[site] = self._read(path)
                except CheckpointCorrupt:
                    path.unlink(missing_ok=True)
        return found

    def clear_answers(self) -> None:
        """Delete the round's sites and answers. Raises OSError."""
        (self._root / "cohort.json").unlink(missing_ok=True)
        for path in (self._root / "answers").iterdir():
            path.unlink(missing_ok=True)

    def _model(self, number: int) -> Path:
        return self._root / f"round-{number:06d}.tensors"

    def _answer(self, number: int, site: str) -> Path:
        # A site's name may hold anything; a file's may not.
        return self._root / "answers" / f"{number:06d}-{site.encode().hex()}.tensors"

    @staticmethod
    def _write(path: Path, value: Mapping[str, Any]) -> None:
        data = wire.encode(value)
        write_file(path, digest_of(data).encode() + b"\n" + data)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            digest, _, data = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise CheckpointCorrupt(f"{path}: {error.strerror or error}") from error
        text = digest.decode(errors="replace")
        try:
            good = digest_of(data, like=text) == text
        except (ValueError, KeyError):
            good = False
        if not good:
            raise CheckpointCorrupt(f"{path}: the bytes do not match their digest")
        found = wire.decode(bytearray(data))
        assert isinstance(found, dict)
        return found


def load_weights(model: nn.Module, weights: Tensors, what: str) -> None:
    """Load weights. Raises RestoreMismatch when they are of another model."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RestoreMismatch(
            f"{what} is of another model: {' '.join(str(error).split())}",
            "the coordinator and all sites need the same model; another one needs another directory",
        ) from None
