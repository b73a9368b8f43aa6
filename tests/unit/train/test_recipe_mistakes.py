"""What people get wrong about data and weights is said in one sentence."""

import pytest
import torch

from phalanx.errors import UserError
from phalanx.train.recipes import datasets, trainer
from phalanx.train.recipes.settings import Recipe

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("wish", ["pretrained", "resume_from"])
def test_weights_that_are_not_there(tmp_path, wish):
    recipe = Recipe(**{wish: str(tmp_path / "away")})
    flag = "--" + wish.replace("_", "-")
    with pytest.raises(UserError, match=f"{flag}: .*no committed checkpoint"):
        trainer._begin_with(torch.nn.Linear(1, 1), recipe)


def test_half_of_cifar(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    recipe = Recipe(dataset="cifar10", data_path=str(tmp_path))
    with pytest.raises(UserError, match=r"test_batch\.bin: there is no such file"):
        datasets.images(recipe)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(UserError, match="no rows of 3073"):
        datasets.images(recipe)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    assert datasets.images(recipe)[2] == 10
