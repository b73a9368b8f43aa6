"""The ready-made trainer: every model learns something small, on two ranks, and resumes."""

import dataclasses
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from e2e.training.gang import HERE
from phalanx.train.programs import recipes

pytestmark = [pytest.mark.e2e, pytest.mark.extras]  # whole trainings
EXAMPLES = HERE.parents[2] / "examples"
MODULE = Path(recipes.__file__).with_name("__main__.py")
SMALL = ("--scale", "0.1", "--num-dataloader-workers", "0", "--batch-size", "8", "--lr", "0.01")


@pytest.fixture
def recipe(gang):
    def make(*args, name="job", **options):
        job = gang(name=name, world=2, every="5 steps", **options)

        class Plain(type(job)):
            def start(self):
                spawn, nursery = self.nursery.spawn, self.nursery
                nursery.spawn = lambda env, argv, *rest: spawn(env, [argv[0], *argv[3:]], *rest)
                try:
                    return super().start()
                finally:
                    nursery.spawn = spawn

        fields = {one.name: getattr(job, one.name) for one in dataclasses.fields(job)}
        return Plain(**{**fields, "script": MODULE, "args": tuple(map(str, args))})

    return make


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("made", EXAMPLES / "resnet" / "make_images.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path_factory.mktemp("pictures")
    module.main(root, per_class=16)
    return root


def values(job, name):
    return [one["values"][name] for one in job.records(0, kind="metric") if name in one["values"]]


def test_a_text_is_learnt_and_a_killed_run_ends_as_an_uninterrupted_one(recipe):
    words = (
        "--model",
        "gpt",
        "--dataset",
        EXAMPLES / "gpt" / "book.txt",
        "--block",
        "32",
        "--max-steps",
        "24",
        *SMALL,
    )
    whole = recipe(*words, name="whole").start().finish()
    losses = values(whole, "loss")
    assert losses[-1] < 0.8 * losses[0] and values(whole, "val_loss")
    job = recipe(*words, name="killed").start()
    job.wait_for_step(12)
    job.kill()
    job.start().finish()
    assert job.records(0, kind="restored")[0]["exact"]
    assert values(job, "val_loss") == values(whole, "val_loss")


def test_a_folder_of_images_and_a_profile_on_the_way(recipe, pictures):
    job = (
        recipe(
            "--model",
            "resnet18",
            "--dataset",
            pictures,
            "--image-size",
            "32",
            "--epochs",
            "5",
            "--max-steps",
            "16",
            "--profile-steps",
            "2",
            "--mixed-precision",
            "bf16",
            *SMALL,
        )
        .start()
        .finish()
    )
    assert values(job, "val_acc") and job.records(0, kind="profile")


@pytest.mark.parametrize(
    "model",
    [
        "resnet50",
        pytest.param("resnet101", marks=pytest.mark.proof),
        "vit_b_16",
        pytest.param("bert", marks=pytest.mark.proof),
    ],
)
def test_every_other_model_trains(recipe, pictures, model):
    data = EXAMPLES / "bert" / "book.txt" if model == "bert" else pictures
    job = (
        recipe(
            "--model",
            model,
            "--dataset",
            data,
            "--image-size",
            "32",
            "--block",
            "32",
            "--max-steps",
            "4",
            "--use-gradient-checkpointing",
            "--gradient-accumulation-steps",
            "2",
            *SMALL,
        )
        .start()
        .finish()
    )
    assert len(values(job, "loss")) >= 4 and job.records(0, kind="done")[0]["step"] == 4


def test_cifars_own_files_are_read(recipe, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 10, (40, 3073), dtype=np.uint8)
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        rows.tofile(folder / name)
    job = recipe("--data-path", tmp_path, "--epochs", "1", "--warmup-epochs", "0.5", *SMALL)
    job.start().finish()
    assert job.records(0, kind="done")[0]["step"] == 5
    shutil.rmtree(folder)
