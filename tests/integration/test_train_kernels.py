"""The first call of each elementwise function in a training process is made by one thread."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import phalanx.train as pt
from phalanx.train.numerics.kernels import DTYPES, FUNCTIONS, choose_kernels

pytestmark = pytest.mark.integration


class FirstCalls(TorchDispatchMode):
    """Notes the first call of each function for each type: its number of elements."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.removesuffix("_")
        if args and isinstance(args[0], torch.Tensor):
            self.found.setdefault((name, args[0].dtype), args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def unlaunched(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_init_calls_every_function_before_the_script_can(unlaunched):
    with FirstCalls() as calls:
        run = pt.init()
        torch.ones(9216).sqrt()
    run.finish()
    called = {
        (name, dtype): calls.found.get((name, dtype)) for name in FUNCTIONS for dtype in DTYPES
    }
    called = {
        key: calls.found.get((f"special_{key[0]}", key[1])) if number is None else number
        for key, number in called.items()
    }
    assert set(called.values()) == {1}, called


def test_choosing_kernels_draws_no_random_number():
    before = torch.get_rng_state()
    choose_kernels()
    assert torch.equal(before, torch.get_rng_state())
