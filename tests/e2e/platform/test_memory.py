"""GuardState that ends on one rank, through the whole platform."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.harness import BIN, Platform, probe_spec
from phalanx.core.training.guards import GUARD_STATE_FILE
from phalanx.launch.cgroup import why_no_limits

pytestmark = pytest.mark.e2e
TRAINING = Path(__file__).parents[1] / "training"
WORDS = "--epochs 1 --norm layer --dropout 0 --samples 108 --batch-size 12 --memory-at 2"


def starving(out: Path, *flags: str, **spec: Any) -> dict[str, Any]:
    return {
        **probe_spec(out),
        "run": [str(BIN / "python"), "care_job.py", "--out", str(out), *WORDS.split(), *flags],
        "workdir": str(TRAINING),
        "checkpoint": {"every": "1 step", "async": False},
        **spec,
    }


@pytest.mark.extras
def test_show_says_whether_the_limits_on_cpus_and_memory_are_enforced(
    platform: Platform, tmp_path: Path
) -> None:
    limits = {"cpus": 1, "memory": "1GB"}
    job = platform.submit({**probe_spec(tmp_path / "x"), "run": ["true"], "resources": limits})
    platform.wait_state(job, "succeeded")
    why = why_no_limits()
    shown = " ".join(platform.run("show", str(job)).stdout.split())
    assert (f"the limits on cpus and memory are not enforced: {why}" in shown) == bool(why)
    free = platform.submit({**probe_spec(tmp_path / "y"), "run": ["true"]})
    platform.wait_state(free, "succeeded")
    assert "not enforced" not in platform.run("show", str(free)).stdout


@pytest.mark.proof
def test_out_of_memory_is_another_generation_with_half_the_micro_batch(
    platform: Platform, tmp_path: Path
) -> None:
    """A real limit on one rank; the same weights as a run that switches at the same step."""
    out, other = tmp_path / "oom", tmp_path / "switch"
    job = platform.submit(starving(out, "--memory-mb", "576"))
    switch = platform.submit(starving(other, "--raise-at", "2", "--switch-to", "6"))
    view = platform.wait_state(job, "succeeded")
    assert (view.attempts, view.restarts) == (1, 1)
    assert [one.cause for one in view.lineage.restarts] == ["oom"]
    assert view.failure is not None and view.failure.rank == 1
    assert view.checkpoint_dir is not None
    assert json.loads((Path(view.checkpoint_dir) / GUARD_STATE_FILE).read_text())["halvings"] == 1
    assert platform.wait_state(switch, "succeeded").restarts == 1
    digests = [json.loads(Path(f"{one}.json").read_text())["digest"] for one in (out, other)]
    assert digests[0] == digests[1]
