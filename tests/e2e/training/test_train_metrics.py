"""What ranks measure while they train, and the examples, with real processes."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phalanx.core.telemetry.instruments import INSTRUMENTS, is_part
from phalanx.launch.ports import free_port

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"


def own_values(job, rank):
    """The platform's values of one rank: the sum of counters, the newest of the rest."""
    found = {}
    for record in job.records(rank, kind="metric"):
        for name, value in record["values"].items():
            if is_part(name) or name == "training_samples":
                found[name] = found.get(name, 0) + value
            elif name in INSTRUMENTS:
                found[name] = value
    return found


def num_observed(values, name):
    return sum(
        value for key, value in values.items() if key.startswith(f"{name}|") and key[-3:] != "sum"
    )


def test_every_rank_measures_every_step(gang):
    job = gang("--epochs", "2").start().finish()
    done = job.records(0, kind="done")[0]["step"]
    consumed = 0
    for rank in range(3):
        values = own_values(job, rank)
        for name in ("step_time_seconds", "computation_time_seconds", "data_loading_time_seconds"):
            assert num_observed(values, name) == done
            assert values[name] > 0
        parts = sum(
            values[f"{name}|sum"]
            for name in (
                "computation_time_seconds",
                "data_loading_time_seconds",
                "optimizer_time_seconds",
            )
        )
        assert 0 < parts <= values["step_time_seconds|sum"]
        # Measured by the reducer: gradients travelled, and part of that was not hidden.
        assert num_observed(values, "gradient_sync_time_seconds") >= 1
        travelled = values["gradient_sync_time_seconds|sum"]
        assert travelled >= values["communication_time_seconds|sum"] >= 0
        assert values["process_resident_memory_bytes"] > 50_000_000
        own = sum(row["hi"] - row["lo"] for row in job.records(rank, kind="ledger"))
        assert values["training_samples"] == own > 0
        consumed += own
        # Rank 0 saves every ten steps; whoever waits for it stands still as well.
        assert num_observed(values, "checkpoint_stall_seconds") >= done // 10
    assert consumed > 0


def run_example(gang, nursery, name, *args, world=2):
    """An example as it stands, on warm ranks."""
    job = gang(name=name.replace("/", "-"), world=world, every="1000 steps")
    job.generation = 0
    job.here().mkdir(parents=True)
    port = free_port()
    job.pids = [
        nursery.spawn(job.env(rank, port), [EXAMPLES / name, *args], job.here() / f"r{rank}.out")
        for rank in range(world)
    ]
    return job.finish()


@pytest.fixture
def images(tmp_path):
    """Ten classes that differ by their colour."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 4)):
        for label in range(10):
            folder = tmp_path / "images" / part / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 40, (32, 32, 3))
                noise[..., label % 3] += 20 * label
                Image.fromarray(noise.astype("uint8")).save(folder / f"{number:04d}.png")
    return tmp_path / "images"


def test_the_image_example_trains_on_a_folder(gang, nursery, images):
    job = run_example(
        gang,
        nursery,
        "cifar/train.py",
        "--data",
        images,
        "--epochs",
        "2",
        "--width",
        "4",
        "--batch-size",
        "10",
        "--workers",
        "0",
        "--samples",
        "60",
        "--lr",
        "0.02",
    )
    assert job.records(0, kind="done")[0]["step"] == 6
    assert job.output().count("val_acc") == 2
    assert job.records(0, kind="checkpoint")


def test_the_image_example_says_what_is_missing(gang, nursery, tmp_path):
    with pytest.raises(AssertionError, match="there is no folder"):
        run_example(gang, nursery, "cifar/train.py", "--data", tmp_path / "nowhere")


def test_the_text_example_learns_the_readme(gang, nursery):
    job = run_example(
        gang,
        nursery,
        "chargpt/train.py",
        "--data",
        ROOT / "README.md",
        "--epochs",
        "3",
        "--width",
        "32",
        "--depth",
        "1",
        "--write",
        "20",
        "--lr",
        "1e-2",
    )
    losses = [
        one["values"]["loss"] for one in job.records(0, kind="metric") if "loss" in one["values"]
    ]
    assert losses[-1] < 0.9 * losses[0]
    assert "val_loss" in job.output()


@pytest.mark.parametrize("name", ["cifar", "chargpt", "digits"])
def test_examples_change_a_plain_loop_in_few_lines(name):
    """The lines that a plain PyTorch script would not have."""
    source = (EXAMPLES / name / "train.py").read_text()
    loop = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    ours = [line for line in ast.unparse(loop).splitlines() if "run." in line or "pt." in line]
    assert 5 <= len(ours) <= 16, "\n".join(ours)


def test_a_report_is_what_the_measuring_costs(gang):
    """The control: without a report file nobody measures, and training is the same."""
    job = gang("--epochs", "1")
    measured = job.start().finish().result
    silent = dataclasses.replace(job, root=job.root.with_name("silent"), generation=-1)
    silent.root.mkdir()
    silent.extra = {"PHALANX_REPORT_FILE": ""}
    assert silent.start().finish().result["digest"] == measured["digest"]
    assert not list(silent.root.rglob("*.report"))
