"""At 3 ranks, a trial that was promoted, paused or forked without a change ends in the state of one that
was never paused: models, optimizers, schedulers, random generators and all, bit for bit.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from integration import test_train_trials as trials
from phalanx import checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.extras]
# A user's pause: the stop comes in the middle of an epoch.
PAUSING = (
    trials.SCRIPT.replace(
        "        opt.step()\n",
        "        opt.step()\n"
        "        step += 1\n"
        "        if run.is_main and step == 3 and os.environ.get('PAUSE'):\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n",
    )
    .replace("import sys, torch", "import os, signal, sys, torch\nstep = 0\nimport torch")
    .replace("batch_size=4", "batch_size=2")
)


def final_state(folder: Path) -> dict[str, str]:
    """The digests of the checkpoint that 3 ranks made at their end."""
    newest = checkpoint.resume_order(checkpoint.scan(folder))[0]
    assert newest.manifest.why == "final" and newest.manifest.world_size == 3
    return digests(newest.path)


def digests(path: Path) -> dict[str, str]:
    """The digest of each section of a checkpoint, and of every rank's random generators."""
    from phalanx.train.state import checkpoint_reader

    state, rng = checkpoint_reader.read_state(path, checkpoint.verify(path))
    # The trial's own record differs: its number, and the report that it made last.
    sections = {name: one for name, one in state.items() if name != "trial"} | {"rng": rng}
    return {name: _digest(one) for name, one in sections.items()}


def _digest(value: Any) -> str:
    whole = hashlib.sha256()
    _feed(whole, value)
    return whole.hexdigest()


def _feed(whole: Any, value: Any) -> None:
    import torch

    if hasattr(value, "read"):
        value = value.read()
    if isinstance(value, torch.Tensor):
        whole.update(f"{value.dtype}{tuple(value.shape)}".encode())
        whole.update(value.contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else b"")
        whole.update(b"" if value.dim() else repr(value.item()).encode())
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            whole.update(repr(key).encode())
            _feed(whole, value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            _feed(whole, one)
    else:
        assert not re.search(r" object at 0x", repr(value)), value
        whole.update(repr(value).encode())


def test_a_promoted_a_paused_and_a_forked_trial_equal_one_that_was_never_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "SCRIPT", PAUSING)
    trials.start(tmp_path, "whole", None, ranks=3, lr=0.1)
    expected = final_state(tmp_path / "whole")
    assert {"models", "optimizers", "rng"} <= expected.keys()

    *_, reported, _ = trials.start(tmp_path, "promoted", 2, ranks=3, lr=0.1)
    # The guard of this test: digests see other models, optimizers and generators.
    early = digests(Path(reported.checkpoint))
    assert all(early[name] != expected[name] for name in ("models", "optimizers", "rng"))
    trials.start(tmp_path, "promoted", 9, ranks=3, lr=0.1)
    assert final_state(tmp_path / "promoted") == expected

    trials.start(tmp_path, "paused", None, ranks=3, lr=0.1, env={"PAUSE": "1"})
    # All ranks agree to stop a little later, in the middle of an epoch of two steps.
    assert checkpoint.scan(tmp_path / "paused").good[0].manifest.step in (3, 5)
    trials.start(tmp_path, "paused", None, ranks=3, lr=0.1)
    assert final_state(tmp_path / "paused") == expected

    fork = {"PHALANX_FORK_OF": f"j-1:{reported.checkpoint}", "PHALANX_TRIAL": "1"}
    trials.start(tmp_path, "forked", None, ranks=3, lr=0.1, env=fork)
    assert final_state(tmp_path / "forked") == expected
