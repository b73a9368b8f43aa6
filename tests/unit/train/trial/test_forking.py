"""A fork's parameters are in effect after the parent's optimizer and schedule were restored."""

import copy

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from phalanx.train.trial.forking import OptimizerOptions

pytestmark = pytest.mark.unit

SCHEDULES = {
    "none": None,
    "step": lambda opt: StepLR(opt, 2, 0.5),
    "cosine": lambda opt: CosineAnnealingLR(opt, 10, eta_min=0.001),
    "lambda": lambda opt: LambdaLR(opt, lambda step: 1 / (1 + step)),
}
MADE = {
    "sgd": lambda p: SGD([torch.nn.Parameter(torch.ones(2))], lr=p["lr"], momentum=p["m"]),
    "adamw": lambda p: AdamW([torch.nn.Parameter(torch.ones(2))], lr=p["lr"], weight_decay=p["m"]),
}


def made(kind, schedule, params, steps=0):
    optimizer = MADE[kind](params)
    scheduler = SCHEDULES[schedule] and SCHEDULES[schedule](optimizer)
    options = OptimizerOptions(params)
    options.watch(optimizer)
    for _ in range(steps):
        optimizer.step()
        if scheduler:
            scheduler.step()
    return optimizer, scheduler, options


def forked(kind, schedule, params, parent):
    optimizer, scheduler, options = made(kind, schedule, params)
    optimizer.load_state_dict(copy.deepcopy(parent[0].state_dict()))
    if scheduler:
        scheduler.load_state_dict(copy.deepcopy(parent[1].state_dict()))
    options.resume(parent[2].state_dict())
    options.apply([optimizer], [scheduler] if scheduler else [])
    return optimizer, scheduler


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fork_has_the_rate_of_a_run_that_began_with_its_parameters(kind, schedule):
    parent = made(kind, schedule, {"lr": 0.1, "m": 0.5}, steps=3)
    child, scheduler = forked(kind, schedule, {"lr": 0.3, "m": 0.9}, parent)
    wanted, schedule_of, _ = made(kind, schedule, {"lr": 0.3, "m": 0.9}, steps=3)
    for _ in range(4):
        (one,), (other,) = child.param_groups, wanted.param_groups
        assert one["lr"] == pytest.approx(other["lr"], rel=1e-12)
        name = "momentum" if kind == "sgd" else "weight_decay"
        assert one[name] == 0.9
        for stepped in (child, scheduler, wanted, schedule_of):
            if stepped is not None:
                stepped.step()


@pytest.mark.parametrize("kind", MADE)
def test_a_fork_without_a_change_has_the_parents_options_bit_for_bit(kind):
    parent = made(kind, "cosine", {"lr": 0.1, "m": 0.5}, steps=3)
    child, scheduler = forked(kind, "cosine", {"lr": 0.1, "m": 0.5}, parent)
    assert child.state_dict()["param_groups"] == parent[0].state_dict()["param_groups"]
    assert scheduler.state_dict() == parent[1].state_dict()
