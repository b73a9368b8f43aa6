"""Parameters of runs: arguments, nested values, bounds, and secrets that are withheld."""

from __future__ import annotations

import math
from typing import Any

import pytest

from phalanx.core.contract.job import RankCommand
from phalanx.core.experiments.parameters import (
    MAX_PARAMS,
    MAX_VALUE,
    ParamSource,
    RunParam,
    config_files,
    differing,
    effective,
    flattened,
    params_of,
    read_arguments,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("command", "params"),
    [
        ("python train.py --lr 0.1 --epochs=3", {"lr": 0.1, "epochs": 3}),
        ("torchrun --nproc-per-node 8 ./train.py --weight-decay 1e-4", {"weight_decay": 1e-4}),
        ("python -m trainer --amp --name big", {"amp": True, "name": "big"}),
        (
            "python train.py model.depth=18 +opt.name=sgd ~old",
            {"model.depth": 18, "opt.name": "sgd"},
        ),
        ("python train.py --betas 0.9 0.999 --scale -2", {"betas": "0.9 0.999", "scale": -2}),
        ("python train.py --lr 0.1 data/train -b 32", {"lr": 0.1, "b": 32}),
        ("LR=3 python train.py --lr 1 && rm -rf --force x", {"lr": 1}),
        ("bash -c 'python train.py --lr 0.2 | tee log'", {"lr": 0.2}),
        (
            "python train.py --resume --lr=none --fast=True --pad=null",
            {
                "resume": True,
                "lr": "none",
                "fast": True,
                "pad": None,
            },
        ),
        ("python train.py", {}),
    ],
)
def test_arguments(command: str, params: dict[str, Any]) -> None:
    assert read_arguments(RankCommand.of(command).arguments) == params


def test_words_of_a_list_are_taken_as_they_are() -> None:
    words = ["python", "train.py", "--name", "a b; c", "--lr", "0.1"]
    assert read_arguments(RankCommand.of(words).arguments) == {"name": "a b; c", "lr": 0.1}


def test_configuration_files_among_the_arguments() -> None:
    words = ["--config", "conf/a.yaml", "--extra=b.toml", "s3://x/c.json", "a.txt", "conf/a.yaml"]
    assert config_files(words) == ["conf/a.yaml", "b.toml"]


def test_nested_values_are_flat_and_bounded() -> None:
    nested = {"opt": {"lr": 0.1, "betas": [0.9, 0.99]}, "layers": [{"n": 1}, {"n": 2}], "none": {}}
    assert dict(flattened(nested)) == {
        "opt.lr": 0.1,
        "opt.betas": "[0.9,0.99]",
        "layers.0.n": 1,
        "layers.1.n": 2,
        "none": "{}",
    }
    assert len(flattened({str(number): 1 for number in range(MAX_PARAMS + 5)})) == MAX_PARAMS
    assert dict(flattened({"a": "x" * 900, "b" * 300: 1})) == {"a": "x" * MAX_VALUE}
    assert dict(flattened({"a": math.nan, "b": 10**30, "c": object})) == {
        "a": "nan",
        "b": "a whole number with more than 63 bits",
        "c": str(object),
    }


def test_a_small_tree_of_aliases_that_is_large_when_written_out_ends() -> None:
    tree: Any = [{"a": 1}, {"a": 2}]
    for _ in range(60):
        tree = [tree, tree]
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert len(flattened({"tree": tree, "endless": endless})) <= MAX_PARAMS


def test_secrets_are_withheld_and_numbers_never_are() -> None:
    values = {"api_key": "abc", "hub": {"token": "t0"}, "max_tokens": 512, "url": "s3://u:pw@host"}
    shown = {one.name: one.value for one in params_of(ParamSource.CONFIG, values)}
    assert shown == {
        "api_key": "(withheld)",
        "hub.token": "(withheld)",
        "max_tokens": 512,
        "url": "(withheld)",
    }


def test_the_value_of_the_last_source_counts() -> None:
    found = [
        RunParam("lr", 0.3, ParamSource.SCRIPT),
        RunParam("lr", 0.1, ParamSource.CONFIG),
        RunParam("lr", 0.2, ParamSource.ARGUMENT),
        RunParam("seed", 1, ParamSource.CONFIG),
    ]
    assert {name: one.value for name, one in effective(found).items()} == {"lr": 0.3, "seed": 1}


def test_what_differs_between_runs() -> None:
    runs = [{"lr": 0.1, "seed": 1, "new": None}, {"lr": 0.2, "seed": 1}, {"lr": 0.1, "seed": 1}]
    assert differing(runs) == ["lr", "new"]
    assert differing(runs[:1]) == []
