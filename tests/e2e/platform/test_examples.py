"""Every example spec runs as it stands, and shows what it is there to show."""

import json
import struct
from pathlib import Path

import pytest
import yaml

from e2e.platform.harness import BIN, Platform, kill
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def follow(platform: Platform, spec: str) -> tuple[str, str]:
    """Run one to its end; returns its label and what it printed."""
    done = platform.run("submit", EXAMPLES / spec, "--follow")
    return platform.jobs()[0].label, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "fsdp",
        "diloco",
        *(pytest.param(one, marks=pytest.mark.proof) for one in ("bf16", "guards", "server")),
    ],
)
def test_strategies(platform: Platform, name: str):
    job, text = follow(platform, f"strategies/{name}.yaml")
    view = platform.show(job)
    assert view.state == "succeeded"
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    manifest = json.loads(platform.run("checkpoints", "show", job, "--json").stdout)
    assert manifest["strategy"] == (name if name in ("fsdp", "diloco", "server") else "ddp")
    if name != "guards":  # its last batch may be the poisoned one
        assert "loss nan" not in text


@pytest.mark.parametrize("name", ["stream", "shares"])
def test_data(platform: Platform, name: str):
    job, _ = follow(platform, f"data/{name}.yaml")
    view = platform.show(job)
    assert view.state == "succeeded"
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    manifest = json.loads(platform.run("checkpoints", "show", job, "--json").stdout)
    assert manifest["data"] == {"num_samples": 600, "fingerprint": "readings:v1"}


def test_runs_are_found_and_compared(platform: Platform):
    slow, _ = follow(platform, "experiments/slow.yaml")
    fast, _ = follow(platform, "experiments/fast.yaml")
    query = ("group:line", "param:data.slope=3", "--sort", "param:lr")

    def compared() -> list[list[str]]:
        lines = platform.run("runs", *query, "--metric", "loss").stdout.splitlines()
        return [line.split("\t")[:5] for line in lines]

    wait_until(lambda: all(row[-1] for row in compared()))
    rows = compared()
    assert rows[0] == ["RUN", "NAME", "STATE", "lr", "loss"]
    assert [row[0] for row in rows[1:]] == [slow, fast]
    assert float(rows[1][4]) > float(rows[2][4])
    found = platform.run("compare", "--query", "group:line").stdout
    assert "lr\t0.9\t0.1" in found


def test_which_checkpoints_stay(platform: Platform):
    job, _ = follow(platform, "checkpoints/keep.yaml")
    made = json.loads(platform.run("checkpoints", job, "--json").stdout)
    kept = [one for one in made if one["state"] == "valid"]
    assert {100, 200} <= {one["step"] for one in kept}
    assert min(one["metrics"]["loss"] for one in kept if "loss" in one["metrics"]) == min(
        one["metrics"]["loss"] for one in made if "loss" in one["metrics"]
    )
    # A final save of a step that the schedule has saved replaces the earlier one.
    assert max(one["step"] for one in kept) == max(one["step"] for one in made)
    here = json.loads(platform.run("checkpoints", "list", job, "--json").stdout)["good"]
    assert {one["step"] for one in here} == {one["step"] for one in kept}


def test_a_model_for_other_programs(platform: Platform, tmp_path: Path):
    job, _ = follow(platform, "checkpoints/auto.yaml")
    out = tmp_path / "model.safetensors"
    platform.run("checkpoints", "export", job, out)
    data = out.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    names = set(json.loads(data[8 : 8 + size])) - {"__metadata__"}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_folders_of_any_framework_are_checkpoints(platform: Platform):
    job, text = follow(platform, "frameworks/linear.yaml")
    assert "round 12: accuracy 0.9" in text
    view = platform.show(job)
    assert (view.progress.step, view.progress.checkpoint_step) == (12, 12)
    found = json.loads(platform.run("checkpoints", job, "--json").stdout)
    valid = [one for one in found if one["state"] == "valid"]
    assert 2 <= len(valid) <= 3
    assert max(one["metrics"]["accuracy"] for one in valid) == max(
        one["metrics"]["accuracy"] for one in found
    )
    assert platform.run("checkpoints", "verify", job).stdout.count(": valid") == len(valid)


def test_alone_with_copies_elsewhere(platform: Platform, tmp_path: Path):
    pytest.importorskip("obstore")
    import subprocess

    script = EXAMPLES / "checkpoints" / "train.py"
    words = ["--dir", tmp_path / "near", "--store", f"file://{tmp_path}/far", "--epochs", "1"]
    subprocess.run([BIN / "python", script, *map(str, words)], check=True, timeout=120)
    verified = platform.run("checkpoints", "verify", f"file://{tmp_path}/far").stdout
    assert verified.count(": valid") == 2


def test_sites_that_never_share_data(platform: Platform):
    """A coordinator and a site are killed on the way; both jobs recover, and the rounds go on."""
    folder = EXAMPLES / "federated"
    platform.run("submit", folder / "coordinator.yaml")
    coordinator = platform.jobs()[0].label
    platform.run("submit", folder / "sites.yaml")
    sites = platform.jobs()[0].label

    def rounds() -> int:
        return platform.output(coordinator).count("round ")

    wait_until(lambda: rounds() >= 2, "two rounds")
    kill(platform.rank_pids(coordinator)[0])
    wait_until(lambda: rounds() >= 4, "two more")
    kill(platform.rank_pids(sites)[1])
    platform.wait_state(sites, "succeeded")
    view = platform.wait_state(coordinator, "succeeded")
    assert view.restarts >= 1
    text = platform.run("logs", coordinator).stdout
    final = float(text.rsplit("accuracy ", 1)[1].split()[0])
    assert final > 0.9
    # A round is told after it is kept: a kill in between leaves one untold, never one undone.
    told = [number for number in range(1, 11) if f"round {number}:" in text]
    assert told[-1] == 10 and len(told) >= 9


def test_a_trainer_and_the_evaluator_of_its_checkpoints(platform: Platform):
    """A trainer's rank dies: both roles start again, and nothing is missed or seen twice."""
    spec = yaml.safe_load((EXAMPLES / "roles" / "job.yaml").read_text())
    # Four times as long: on a busy machine the job must not be over before its rank is found.
    spec["roles"]["trainer"]["run"] = "python train.py --epochs 80"
    job = platform.submit({**spec, "workdir": str(EXAMPLES / "roles")})
    rank = platform.rank_pids(job)[1]
    # The training takes a few seconds, however slowly a busy control plane answers: look at the disk.
    store = Path(platform.show(job).checkpoint_dir or "")
    wait_until(lambda: any(store.glob("step-*/MANIFEST.json")), "a checkpoint")
    kill(rank)
    view = platform.wait_state(job, "succeeded")
    assert (view.restarts, view.progress.high_water_step) == (1, 5120)
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    printed = platform.run("logs", job, "--role", "evaluator").stdout
    assert "step 5120: val_loss" in printed, printed
    with platform.client() as client:
        (curve,) = client.metrics(view.num, role="evaluator", names=["val_loss"]).series
    assert (curve.role, curve.rank, curve.steps[-1]) == ("evaluator", 2, 5120)


def test_one_world_over_unequal_nodes(platform: Platform):
    """Two ranks on the first node and one on each of two others are one world."""
    job, text = follow(platform, "roles/unequal.yaml")
    view = platform.show(job)
    assert (view.state, view.world_size, "epoch 5/5" in text) == ("succeeded", 4, True)
    assert [(one.name, one.world, one.world_size) for one in view.roles] == [
        ("master", "master", 4),
        ("worker", "master", 4),
    ]
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
