"""Scripts written for torchrun, unmodified: recovered, with metrics and checkpoints in the registry."""

import pytest
import torch

from e2e.frameworks.foreign import committed, example, metric, wait_committed
from e2e.platform.harness import kill

pytestmark = [pytest.mark.extras, pytest.mark.e2e]


def test_killed_and_recovered_with_its_own_snapshots(platform):
    calm = platform.submit(example("torchrun", "--epochs=8"))
    job = platform.submit(example("torchrun", "--epochs=8", "--pause=0.7"))
    rank = platform.rank_pids(job)[1]
    wait_committed(platform, job)
    kill(rank)
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    said = platform.run("logs", job).stdout
    resumed = [line for line in said.splitlines() if "resuming at epoch" in line]
    assert len(resumed) == 3 and "epoch 0" not in resumed[0].split("resuming at")[1].split()
    # Metrics: every epoch, as the script printed it, and the same values as without a kill.
    usual = platform.wait_state(calm, "succeeded")
    assert metric(platform, job, "loss") == metric(platform, calm, "loss")
    assert sorted(metric(platform, job, "loss")) == list(range(8))
    assert view.progress.high_water_step == 7
    # Checkpoints: verified, with the newest step and metrics in their manifests, kept as the spec says.
    kept = committed(view)
    assert 1 <= len(kept) <= 3
    assert kept[0].manifest.step == 7 and "loss" in kept[0].manifest.metrics
    assert view.progress.checkpoint_step == 7
    newest = torch.load(kept[0].path / "snapshot.pt", weights_only=True)
    other = torch.load(committed(usual)[0].path / "snapshot.pt", weights_only=True)
    assert newest["epoch"] == 7
    assert all(torch.equal(newest["model"][name], other["model"][name]) for name in other["model"])


def test_an_exception_is_the_one_line_cause(platform):
    """`@record` writes TORCHELASTIC_ERROR_FILE; the platform reads it."""
    spec = example(
        "torchrun", "--epochs=8", "--fail-at=3", recovery={"rank_crash": 0, "user_error": 0}
    )
    job = platform.submit(spec)
    view = platform.wait_state(job, "failed")
    assert "asked to fail in epoch 3" in view.failure.message
    assert view.failure.exception == "ValueError"
