"""The recipe's flags and file: everything wrong is named before torch is loaded."""

import json
import subprocess
import sys

import pytest

from phalanx.errors import SpecInvalid
from phalanx.train.programs.recipes import settings

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
