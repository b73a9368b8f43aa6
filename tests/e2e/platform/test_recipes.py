"""The recipe and the scaling benchmark as a user starts them."""

import json
from pathlib import Path

import pytest

from e2e.platform.harness import Platform
from phalanx.kit.text import parse_job_label

pytestmark = [pytest.mark.e2e, pytest.mark.extras]  # whole trainings
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = ("--scale", "0.1", "--block", "32", "--batch-size", "4", "--max-steps", "4")


def test_a_recipe_is_a_job(platform: Platform) -> None:
    words = ["recipe", "train", "--model", "gpt", "--dataset", EXAMPLES / "gpt" / "book.txt"]
    words += ["--num-workers", 2, "--checkpoint-freq", 2, "--keep-last-n", 1]
    words += ["--num-dataloader-workers", 0, *SMALL]
    planned = platform.run(*words, "--dry-run").stdout
    assert "2 steps" in planned and "phalanx.train.programs.recipes" in planned
    job = platform.run(*words, "--detach").stdout.split()[-1]
    view = platform.wait_state(job, "succeeded")
    assert view.name == "gpt" and view.progress.step == 4
    num = parse_job_label(job)
    assert num is not None
    with platform.client() as client:
        (kept,) = [one for one in client.checkpoints(num) if one.state == "valid"]
        names = {one.name for one in client.metrics(num).series}
    assert kept.step == 4 and {"loss", "lr", "val_loss"} <= names
    refused = platform.run("recipe", "train", "--model", "resnet19", check=False)
    assert refused.returncode == 1 and "--model: must be" in refused.stderr
    assert "--use-gradient-checkpointing" in platform.run("recipe", "flags").stdout


@pytest.mark.proof
def test_a_search_of_settings_is_a_study(platform: Platform, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("{lr: [0.001, 0.004], batch-size: {int: [8, 16]}}")
    words = ["recipe", "train", "--model", "gpt", "--dataset", EXAMPLES / "gpt" / "book.txt"]
    words += ["--scale", "0.1", "--block", "32", "--epochs", 3, "--lr-scheduler", "constant"]
    words += ["--num-dataloader-workers", 0, "--num-trials", 3, "--search-space", space]
    platform.run(*words)
    trials = json.loads(platform.run("sweep", "trials", "s-1", "--json").stdout)
    assert len(trials) == 3 and all(one["value"] is not None for one in trials)
    # ASHA compares after epochs 1 and 3, and promotes one trial at least.
    assert max(one["unit"] for one in trials) == 3
    with platform.client() as client:
        for one in trials:
            (rates,) = client.metrics(one["job"], names=["lr"], ranks=(0,)).series
            assert {round(rate, 6) for rate in rates.values if rate} == {one["params"]["lr"]}


def test_a_recipe_measures_its_batch_size_and_scales_its_rate(platform: Platform) -> None:
    words = ["recipe", "train", "-n", 2, "--model", "gpt", "--dataset", EXAMPLES / "gpt/book.txt"]
    words += ["--scale", "0.1", "--block", "32", "--max-steps", "3", "--lr", "0.001"]
    words += [
        "--find-batch-size",
        "--scale-lr",
        "linear",
        "--num-dataloader-workers",
        0,
        "--detach",
    ]
    job = platform.run(*words).stdout.split()[-1]
    platform.wait_state(job, "succeeded")
    assert "samples per rank, measured at the first start" in platform.run("logs", job).stdout


def test_scaling_is_measured_and_drawn(platform: Platform, tmp_path: Path) -> None:
    words = ["bench", "scaling", "--model", "resnet18", "--counts", "1,2,64", "--steps", 3]
    words += ["--scale", 0.1, "--batch-size", 2, "--price", 3, "--plot", tmp_path / "s.svg"]
    done = platform.run(*words, "--json")
    assert "64 ranks cannot be placed" in done.stderr
    table = json.loads(done.stdout)
    assert [row["ranks"] for row in table] == [1, 2]
    assert table[0]["speed_up"] == 1 and table[1]["speed_up"] > 0 < table[1]["cost_per_epoch"]
    assert "<svg" in (tmp_path / "s.svg").read_text()
    refused = platform.run("bench", "scaling", "--counts", "two", check=False)
    assert refused.returncode == 1 and "numbers of ranks" in refused.stderr
    refused = platform.run("bench", "scaling", "--plot", tmp_path / "away" / "a.svg", check=False)
    assert refused.returncode == 1 and "there is no folder" in refused.stderr
