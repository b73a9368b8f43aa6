"""The recipe's flags and file: everything wrong is named before torch is loaded."""

import json
import subprocess
import sys

import pytest

from phalanx.errors import SpecInvalid
from phalanx.train.programs.recipes import settings
from phalanx.train.programs.recipes.__main__ import main

pytestmark = pytest.mark.unit
R5 = """
model: {name: resnet50, pretrained: true, num_classes: 100}
training: {epochs: 90, batch_size: 256, learning_rate: 0.4, momentum: 0.9, weight_decay: 0.0001,
           lr_scheduler: cosine, warmup_epochs: 5}
distributed: {backend: nccl, num_workers: 4, gpus_per_worker: 2, gradient_accumulation_steps: 2,
              mixed_precision: bf16}
checkpointing: {enabled: true, frequency: 500, keep_last_n: 5, save_optimizer: true}
"""


def read(*words):
    return settings.read(list(words))[0]


def test_the_file_people_know_and_flags_over_it(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(R5)
    words = ("--config", str(file), "--dataset", "imagenet", "--data-path", "/data")
    found = read(*words, "--lr", "0.2", "--use-gradient-checkpointing")
    assert (found.model, found.epochs, found.lr, found.batch_size) == ("resnet50", 90, 0.2, 256)
    assert (found.mixed_precision, found.gradient_accumulation_steps) == ("bf16", 2)
    assert found.gradient_checkpointing and found.pretrained == "true"
    assert (found.backend, found.scale_lr, found.find_batch_size) == ("nccl", "none", False)
    job = settings.as_job(found)
    assert job["checkpoint"] == {"every": "500 steps", "keep": {"last": 5}}
    assert job["resources"] == {"slots_per_node": 8, "slots_per_rank": 2}


def test_every_flag_that_other_trainers_have_is_known():
    flags = (
        "--model resnet18 --dataset imagenet --data-path /d --num-workers 2 --batch-size 4 --epochs 1"
        " --lr 0.1 --warmup-epochs 1 --mixed-precision fp16 --gradient-accumulation-steps 2"
        " --use-gradient-checkpointing --checkpoint-freq 10 --checkpoint-dir /c --resume-from latest"
        " --num-dataloader-workers 1 --prefetch-factor 2 --profile-steps 5 --find-batch-size"
        " --scale-lr linear --pretrained true"
    )
    found = read(*flags.split())
    assert (found.find_batch_size, found.scale_lr, found.pretrained) == (True, "linear", "true")


def test_switches_stand_for_values(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "{model: {pretrained: false}, data: {path: x}, training: {scale_lr: true},"
        " distributed: {mixed_precision: true}}"
    )
    found = read("--config", str(file))
    assert (found.pretrained, found.scale_lr, found.mixed_precision) == ("", "linear", "bf16")


def test_numbers_as_people_write_them(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("{data: {path: x}, training: {learning_rate: 1e-3, weight_decay: 5e-4}}")
    found = read("--config", str(file))
    assert (found.lr, found.weight_decay) == (1e-3, 5e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {nam: x}", "model.nam: is unknown; did you mean name?"),
        ("trainin: {epochs: 1}", "trainin: is unknown; did you mean training?"),
        ("{model: {name: gpt, pretrained: true}, data: {path: x}}", "no published weights fit gpt"),
        ("checkpointing: {save_optimizer: false}", "the optimizer is always saved"),
        ("checkpointing: {enabled: false}", "checkpoints cannot be switched off"),
        ("{distributed: {backend: mpi}, data: {path: x}}", "--backend: must be"),
        ("[1", "cannot be read"),
        ("3", "must have the sections"),
        ("training: {epochs: many}", "--epochs: must be a int (got 'many')"),
        ("training: {epochs: 0}", "--epochs: must be at least 1"),
        ("training: {learning_rate: fast}", "--lr: must be a float (got 'fast')"),
        ("{model: {name: gpt, scale: .inf}, data: {dataset: x}}", "--scale: must be above 0"),
        ("{training: {label_smoothing: 1}, data: {path: x}}", "--label-smoothing: must be"),
        ("{model: {image_size: 4}, data: {path: x}}", "--image-size: must be at least 8"),
        ("model: {name: resnet19}", "--model: must be resnet18, resnet50"),
        ("model: {name: gpt}", "--dataset: gpt reads a text"),
        ("model: {name: resnet18}", "--data-path: is required: the folder of cifar10"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, words):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(SpecInvalid) as raised:
        read("--config", str(file))
    assert words in str(raised.value)


def test_a_check_is_light():
    code = (
        "import sys; from phalanx.train.programs.recipes.__main__ import main;"
        " code = main(['--model', 'gpt', '--dataset', 'x', '--check']);"
        " print('torch' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    job, heavy = done.stdout.splitlines()
    assert json.loads(job)["name"] == "gpt" and heavy == "False"


TEXT = ("--model", "gpt", "--dataset", "book.txt")


def test_params_of_a_trial_are_named_like_flags_or_keys_of_the_file():
    params = {"learning_rate": 1, "batch-size": 16, "mixed_precision": True, "scale": "0.5"}
    found = settings.with_params(read(*TEXT, "--lr", "0.1", "--clip", "2"), params)
    assert (found.lr, found.batch_size, found.mixed_precision) == (1, 16, "bf16")
    assert (found.scale, found.clip) == (0.5, 2)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"learning_rat": 0.1}, "params.learning_rat: is unknown"),
        ({"batch-sise": 8}, "params.batch-sise: is unknown; did you mean batch_size?"),
        ({"lr": 1, "learning_rate": 1}, "params.lr: names the same setting as learning_rate"),
        ({"batch-size": 0}, "params.batch-size: must be at least 1"),
        ({"learning_rate": "fast"}, "params.learning_rate: must be a float"),
    ],
)
def test_params_that_are_no_settings_are_refused(params, words):
    with pytest.raises(SpecInvalid) as raised:
        settings.with_params(read(*TEXT), params)
    assert str(raised.value).startswith(words)


def test_the_params_in_the_environment_are_those_of_the_trainer(monkeypatch):
    trained = []
    monkeypatch.setattr("phalanx.train.programs.recipes.trainer.train", trained.append)
    monkeypatch.setenv("PHALANX_PARAMS", '{"lr": 0.25, "clip": 1}')
    assert main([*TEXT, "--lr", "0.5", "--seed", "3"]) == 0
    assert [(one.lr, one.clip, one.seed) for one in trained] == [(0.25, 1, 3)]


def test_the_study_of_a_search():
    space = {"lr": [1e-4, 1e-2], "model": ["gpt", "bert"]}
    study = settings.as_study(read(*TEXT, "--epochs", "3", "--seed", "5"), space)
    assert study == {
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "search": {"method": "auto", "seed": 5},
        "rungs": {"rule": "asha", "unit": "epoch", "min": 1, "max": 3},
    }
    assert "rungs" not in settings.as_study(read(*TEXT, "--epochs", "2"), space)
    assert "rungs" not in settings.as_study(read(*TEXT, "--max-steps", "9"), space)
    images = settings.as_study(read("--data-path", "x"), {"model": ["resnet18", "vit_b_16"]})
    assert images["objective"] == {"metric": "val_acc", "goal": "maximize"}


@pytest.mark.parametrize(
    ("words", "space", "said"),
    [
        ((), {"epochs": [3, 9]}, "space.epochs: is the length of every whole trial"),
        ((), {"num-workers": [1, 2]}, "space.num-workers: all trials have the same ranks"),
        ((), {"frequency": [1, 2]}, "space.frequency: is the same in all trials"),
        ((), {"rate": [1, 2]}, "space.rate: is unknown"),
        ((), {"batch-size": [8, 0]}, "space.batch-size: must be at least 1 (got 0)"),
        (("--resume-from", "j-3"), {"lr": [1, 2]}, "--resume-from: does not go with a search"),
    ],
)
def test_what_a_search_cannot_vary_is_named(words, space, said):
    with pytest.raises(SpecInvalid) as raised:
        settings.as_study(read(*TEXT, *words), space)
    assert str(raised.value).startswith(said) and len(raised.value.problems) == 1


def test_one_search_has_one_objective():
    recipe = read("--dataset", "a-folder")
    with pytest.raises(SpecInvalid, match=r"space\.model: .* different objectives"):
        settings.as_study(recipe, {"model": ["gpt", "resnet18"]})
