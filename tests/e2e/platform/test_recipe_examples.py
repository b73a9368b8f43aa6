"""The four recipes as their examples submit them, and every flag that other trainers have."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from e2e.platform.harness import BIN, Platform, kill
from phalanx.kit.text import parse_job_label
from phalanx.train.programs.recipes import images, texts
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras]  # whole trainings
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BOOK = EXAMPLES / "gpt" / "book.txt"


def copied(name: str, root: Path) -> Path:
    """The example's folder."""
    folder = root / name
    shutil.copytree(EXAMPLES / name, folder)
    recipe = folder / "recipe.yaml"
    # So that there is time to kill it and to pause it.
    recipe.write_text(recipe.read_text().replace("epochs: 2", "epochs: 5"))
    return folder


def series(platform: Platform, job: str, name: str) -> list[float]:
    num = parse_job_label(job)
    assert num is not None
    with platform.client() as client:
        (found,) = client.metrics(num, names=[name], ranks=(0,)).series
    return [value for value in found.values if value is not None]


MODELS = {
    "resnet": lambda: images.ResNet("resnet50", 4, 32, 0.125),
    "vit": lambda: images.ViT(4, 32, 0.17),
    "gpt": lambda: texts.Transformer(64, 0.17, causal=True),
    "bert": lambda: texts.Transformer(64, 0.17, causal=False),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "gpt" else pytest.mark.proof) for name in MODELS],
)
def test_an_example_is_killed_paused_resumed_and_exported(
    platform: Platform, tmp_path: Path, name: str
) -> None:
    folder = copied(name, tmp_path)
    job = platform.run("submit", folder / "job.yaml").stdout.split()[-1]
    wait_until(lambda: platform.show(job).progress.checkpoint_step, "a checkpoint")
    kill(platform.rank_pids(job)[1])
    wait_until(lambda: platform.show(job).restarts, "a restart")
    if not platform.show(job).is_terminal:
        platform.run("pause", job, check=False)  # it may be over by now
        view = platform.wait_state(job, "paused", "succeeded")
        if view.state == "paused":
            platform.run("resume", job)
    view = platform.wait_state(job, "succeeded")
    assert (view.lineage.missed, view.lineage.duplicated) == (0, 0)
    text = platform.run("show", job).stdout
    assert "every resume exact" in text
    if name in ("gpt", "bert"):
        scores = series(platform, job, "val_loss")
        assert scores[-1] < scores[0] < 5.6  # that of a guess is log(256)
    else:
        assert 0.3 < series(platform, job, "val_acc")[-1] <= 1  # that of a guess is a quarter
    out = tmp_path / "model.pt"
    platform.run("checkpoints", "export", job, out)
    model = MODELS[name]()
    model.load_state_dict(torch.load(out, weights_only=True))
    assert all(bool(one.isfinite().all()) for one in model.state_dict().values())


# What each flag is to show in the dry run, or in the run itself.
FLAGS = {
    "--model": ("resnet18",),
    "--dataset": ("imagenet",),
    "--data-path": None,
    "--num-workers": (2,),
    "--batch-size": (4,),
    "--epochs": (2,),
    "--lr": (0.05,),
    "--warmup-epochs": (1,),
    "--mixed-precision": ("bf16",),
    "--gradient-accumulation-steps": (2,),
    "--use-gradient-checkpointing": (),
    "--checkpoint-freq": (3,),
    "--resume-from": ("latest",),
    "--num-dataloader-workers": (1,),
    "--prefetch-factor": (3,),
    "--profile-steps": (2,),
    "--image-size": (32,),
    "--scale": (0.125,),
    "--seed": (3,),
    "--num-classes": (9,),
    "--momentum": (0.8,),
    "--weight-decay": (0.001,),
    "--lr-scheduler": ("constant",),
    "--label-smoothing": (0.1,),
    "--clip": (1.0,),
    "--keep-last-n": (2,),
}


@pytest.mark.proof
def test_every_flag_at_once_then_another_job_goes_on(platform: Platform, tmp_path: Path) -> None:
    folder = copied("resnet", tmp_path)
    platform.run("submit", folder / "job.yaml", "--dry-run")

    subprocess.run([BIN / "python", "make_images.py", "images"], cwd=folder, check=True)
    words: list[object] = []
    for flag, values in FLAGS.items():
        words += [flag, *((folder / "images",) if values is None else values)]
    planned = platform.run("recipe", "train", *words, "--dry-run").stdout
    assert "3 steps" in planned and "slots_per_node: 2" in planned
    job = platform.run("recipe", "train", *words, "--detach").stdout.split()[-1]
    view = platform.wait_state(job, "succeeded")
    # 480 pictures, 8 in a batch of two ranks, 2 batches in a step, 2 epochs.
    assert view.progress.step == 60 and view.world_size == 2
    manifest = json.loads(platform.run("checkpoints", "show", job, "--json").stdout)
    assert manifest["global_batch"] == 16
    rates = series(platform, job, "lr")
    assert rates[0] < rates[-1] == 0.05  # up over an epoch, then level
    kept = json.loads(platform.run("checkpoints", "list", job, "--json").stdout)["good"]
    assert len(kept) == 2
    # Another job goes on where that one ended, with its optimizer and its place in the data.
    again = [job if word == "latest" else word for word in words]
    again[again.index("--epochs") + 1] = 3
    other = platform.run("recipe", "train", *again, "--detach").stdout.split()[-1]
    view = platform.wait_state(other, "succeeded")
    assert view.progress.step == 90 and len(series(platform, other, "val_acc")) == 2
    # One that takes the weights only begins at its first step.
    fine = [*words, "--pretrained", job, "--max-steps", 2]
    third = platform.run("recipe", "train", *fine, "--detach").stdout.split()[-1]
    assert platform.wait_state(third, "succeeded").progress.step == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dataset", "nothing.txt"), "there is no "),
        (("--dataset", BOOK, "--batch-size", 4096), "less than a batch on 2 ranks"),
        (("--dataset", BOOK, "--resume-from", "j-99"), "there is no committed checkpoint"),
    ],
)
def test_what_can_only_be_seen_on_the_ranks_fails_at_once(
    platform: Platform, words: tuple[object, ...], said: str
) -> None:
    flags = ["--model", "gpt", "--scale", 0.1, "--num-dataloader-workers", 0, *words]
    done = platform.run("recipe", "train", "-n", 2, *flags, check=False)
    assert done.returncode == 100 and said in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    job = platform.jobs()[0]
    assert job.restarts == 0 and job.reason.code == "user_error"
