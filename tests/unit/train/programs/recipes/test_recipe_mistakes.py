"""What people get wrong about data and weights is said in one sentence."""

import json

import pytest
import torch

from phalanx.errors import UserError
from phalanx.train.programs.recipes import datasets, starting, trainer
from phalanx.train.programs.recipes.__main__ import main
from phalanx.train.programs.recipes.settings import Recipe

pytestmark = pytest.mark.unit


def test_weights_that_are_not_there(tmp_path):
    recipe = Recipe(pretrained=str(tmp_path / "away"))
    with pytest.raises(UserError, match=r"--pretrained: .*no committed checkpoint"):
        starting.load_weights(torch.nn.Linear(1, 1), recipe)


def test_a_mistake_is_left_for_the_supervisor(tmp_path, monkeypatch, capsys):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert main(["--model", "resnet19"]) == 1
    assert capsys.readouterr().err.startswith("phalanx recipe train: --model: must be resnet18")
    left = json.loads(file.read_text())["message"]
    assert left["message"].startswith("SpecInvalid: --model")
    assert "Traceback" not in left["extraInfo"]["py_callstack"]


def test_an_epoch_has_as_many_steps_on_whatever_ranks_are_there():
    recipe = Recipe(batch_size=4, gradient_accumulation_steps=2)
    # Of 50 samples 48 make six batches on two ranks, two for a step.
    assert trainer.steps_of(recipe, 50, 2) == 3
    assert trainer.steps_of(recipe, 42, 2) == 3  # the last of half as many
    with pytest.raises(UserError, match=r"7 samples .* less than a batch on 2 ranks, 8"):
        trainer.steps_of(recipe, 7, 2)


def test_the_rate_comes_down_where_training_ends():
    def rates(**wishes):
        recipe = Recipe(model="gpt", lr=1.0, epochs=3, **wishes)
        optimizer = trainer.optimizer_of(recipe, torch.nn.Linear(2, 2))
        schedule = trainer.schedule_of(recipe, optimizer, 4)
        return [schedule.lr_lambdas[0](step) for step in range(13)]

    assert rates()[0] == 1 and rates()[6] == pytest.approx(0.5) and rates()[12] == 0
    assert rates(max_steps=6)[3] == pytest.approx(0.5) and rates(max_steps=6)[6] == 0
    assert rates(warmup_epochs=1.0)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_half_of_cifar(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    recipe = Recipe(dataset="cifar10", data_path=str(tmp_path))
    with pytest.raises(UserError, match=r"test_batch\.bin: there is no such file"):
        datasets.images(recipe)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(UserError, match="not a multiple of 3073"):
        datasets.images(recipe)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    assert datasets.images(recipe)[2] == 10


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(UserError, match="pickles, which are not read"):
        datasets.images(Recipe(dataset="cifar10", data_path=str(tmp_path)))
