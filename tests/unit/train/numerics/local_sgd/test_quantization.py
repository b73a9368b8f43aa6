"""Quantized values of an exchange, and the residuals of compression, without processes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.train.numerics.compression.codecs import CODECS, NoErrorFeedback, orthogonalize
from phalanx.train.numerics.compression.error_feedback import Residuals
from phalanx.train.numerics.local_sgd.exchange import BLOCK, pack, part_length, unpack
from phalanx.train.settings import CompressionSettings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("bits", "top"), [(8, 127), (4, 7)])
def test_every_value_is_off_by_at_most_half_a_step_of_its_block(bits, top):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3 * BLOCK, generator=generator) * torch.tensor(
        [1e-6, 1.0, 1e6]
    ).repeat_interleave(BLOCK)
    packed = pack(values, bits)
    assert packed.numel() == 3 * (BLOCK * bits // 8 + 4)
    error = (unpack(packed, bits) - values).abs().view(3, BLOCK)
    step = values.view(3, BLOCK).abs().amax(1, keepdim=True) / top
    assert (error <= step * 0.5001).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros(bits):
    assert not unpack(pack(torch.zeros(BLOCK), bits), bits).any()


@given(st.integers(1, 10**6), st.integers(1, 64))
@settings(max_examples=50)
def test_parts_are_whole_blocks_and_hold_everything(num, world):
    part = part_length(num, world)
    assert part % BLOCK == 0
    assert part * world >= num > (part - BLOCK) * world


def test_residuals_keep_what_was_not_sent_only_of_applied_steps():
    residuals = Residuals()
    gradient = torch.tensor([4.0, 8.0])
    residuals.add("w", gradient, scale=2.0)[0] = 0.0
    residuals.settle(applied=True)
    again = residuals.add("w", gradient, scale=2.0)
    assert again.tolist() == [2.0, 8.0], "true gradients, and what was left of the last step"
    residuals.settle(applied=False)
    assert residuals.state_dict()["w"].tolist() == [[0.0, 4.0]]


def test_without_error_feedback_nothing_is_kept():
    residuals = NoErrorFeedback()
    residuals.add("w", torch.ones(2), scale=1.0)
    residuals.settle(applied=True)
    assert residuals.state_dict() == {}


def test_columns_become_orthonormal():
    matrix = torch.randn(20, 4, generator=torch.Generator().manual_seed(2))
    orthogonalize(matrix)
    assert torch.allclose(matrix.t() @ matrix, torch.eye(4), atol=1e-5)


@pytest.mark.parametrize(
    ("method", "small", "large"), [("powersgd", (3,), (64, 64)), ("topk", (9, 9), (2048,))]
)
def test_a_method_compresses_only_where_that_saves_bytes(method, small, large):
    codec = CODECS[method](CompressionSettings(method=method), seed=1)
    rows = [("a", torch.zeros(small)), ("b", torch.zeros(large))]
    whole, compressed = codec._divided(rows)
    assert [tuple(one.shape) for one in whole] == [small]
    assert [name for name, _ in compressed] == ["b"]


def test_the_state_of_powersgd_holds_factors_of_applied_steps_only():
    codec = CODECS["powersgd"](CompressionSettings(method="powersgd"), seed=1)
    codec._next_q["w"] = torch.ones(3, 1)
    codec.settle(applied=False)
    assert codec.state_dict() == {"owed": {}, "q": {}}
    codec._next_q["w"] = torch.ones(3, 1)
    codec.settle(applied=True)
    assert list(codec.state_dict()["q"]) == ["w"]
