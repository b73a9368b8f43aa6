"""A guard's word reaches the control plane: another generation without the batch, or the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.harness import BIN, Platform, probe_spec

pytestmark = pytest.mark.e2e
TRAINING = Path(__file__).parents[1] / "training"


def poisoned(out: Path, policy: str) -> dict[str, Any]:
    spec = probe_spec(out)
    words = [
        str(BIN / "python"),
        "care_job.py",
        "--out",
        str(out),
        "--epochs",
        "1",
        "--poison",
        "17",
    ]
    return {
        **spec,
        "run": words,
        "workdir": str(TRAINING),
        "training": {"on_non_finite": policy},
        "checkpoint": {"every": "3 steps"},
    }


@pytest.mark.extras
def test_rolling_back_is_a_new_generation_that_passes_the_batch_over(
    platform: Platform, tmp_path: Path
) -> None:
    out = tmp_path / "back"
    job = platform.submit(poisoned(out, "rollback"))
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    assert "gradients were not finite" in (view.failure.message if view.failure else "")
    with platform.client() as client:
        (found,) = [one.data for one in client.history(view.num) if one.kind == "guarded"]
    assert (found["what"], found["origin"], found["action"]) == ("non_finite", "data", "rollback")
    assert len(found["ranks"]) == 1 and found["nodes"] == ["local"]
    assert all(loss == loss for loss in json.loads(Path(f"{out}.json").read_text())["losses"])


@pytest.mark.extras
def test_stopping_for_good_fails_the_job_with_its_cause(platform: Platform, tmp_path: Path) -> None:
    job = platform.submit(poisoned(tmp_path / "stop", "stop"))
    view = platform.wait_state(job, "failed")
    assert view.restarts == 0
    assert view.reason is not None and view.reason.code == "diverged"
    assert "gradients were not finite" in view.reason.message
