"""Several pools and a queue over real processes: an eviction that costs nothing but time."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform.harness import HERE, Platform, probe_spec
from phalanx.schemas.api.jobs import SubmitRequest

pytestmark = pytest.mark.e2e
KEEP_WARM = 0
POOLS = {
    "schema": 1,
    "pools": [
        {"name": "reserved", "slot_type": "H100", "nodes": [{"name": "n0", "slots": 3}]},
        {
            "name": "spot",
            "spot": True,
            "taints": ["spot"],
            "nodes": [{"name": "s", "count": 2, "slots": 1}],
        },
    ],
}
PROJECTS = {"schema": 1, "projects": [{"name": "small", "max_slots": 2}]}
QUICK = {"framework": "none", "run": "sleep 0.2"}


@pytest.fixture(scope="module", autouse=True)
def _estate(platform: Platform) -> None:
    for verb, file in (("pools", POOLS), ("projects", PROJECTS)):
        path = platform.root / f"{verb}.yaml"
        path.write_text(yaml.safe_dump(file))
        platform.run(verb, "apply", "-f", path)


def hand_in(platform: Platform, **spec: Any) -> str:
    """Submit without code, in milliseconds: what it meets must not be over by then."""
    with platform.client() as client:
        view = client.submit(SubmitRequest(spec={"schema": 1, **spec})).job
    assert view is not None
    return view.label


@pytest.mark.extras
def test_an_evicted_job_saves_waits_and_ends_bit_identical(platform: Platform, tmp_path: Path):
    """A job of higher priority pushes a training job aside and gives the slots back."""
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    where = {"pool": "reserved", "priority": 30, "workdir": str(HERE)}
    platform.wait_state(
        platform.submit({**probe_spec(calm, "--epochs=3", "--samples=480"), **where}), "succeeded"
    )
    go = tmp_path / "go"
    flags = ("--epochs=3", "--samples=480", "--step-s=0.2", f"--until={go}")
    low = platform.submit({**probe_spec(hit, *flags), **where})
    platform.wait_steps(3, hit)
    waiting = {"framework": "none", "run": ["sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done"]}
    high = hand_in(
        platform, **waiting, resources={"slots_per_node": 3}, pool="reserved", priority="high"
    )
    platform.wait_state(high, "running")
    view = platform.show(low)
    # It saved on the way out: nothing is done again.
    assert (view.attempts, view.reason.code) == (1, "preempted")
    go.touch()
    assert platform.wait_state(low, "running", "succeeded").attempts == 2
    view = platform.wait_state(low, "succeeded")
    assert (view.attempts, view.restarts) == (2, 0)
    assert (view.lineage.missed, view.lineage.duplicated, view.lineage.redone) == (0, 0, 0)
    assert hit.read_text() == calm.read_text()
    told = platform.run("why", low).stdout
    assert f"makes room for {high} (3 slots, priority 75)" in told
    assert "to its next step" in told


def test_pools_quotas_and_drained_nodes(platform: Platform):
    spot = {**QUICK, "pool": "spot", "placement": {"tolerate": "spot"}}
    platform.run("nodes", "drain", "s-0", "--reason", "fan")
    wide = hand_in(platform, **spot, resources={"nodes": 2})
    narrow = hand_in(platform, **spot)
    assert platform.wait_state(narrow, "succeeded").attempts == 1
    assert platform.show(wide).state == "queued"
    assert "s-0" in platform.run("why", wide).stdout
    platform.run("nodes", "undrain", "s-0")
    platform.wait_state(wide, "succeeded")
    refused = platform.root / "too-large.yaml"
    refused.write_text("{run: x, project: small, resources: {slots_per_node: 3}}")
    done = platform.run("submit", refused, check=False)
    assert (done.returncode, "may hold at most 2 slots, the job needs 3" in done.stderr) == (
        1,
        True,
    )
