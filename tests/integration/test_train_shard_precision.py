"""What shards in half precision leave on every rank between a forward pass and its backward pass."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from phalanx.train import precision
from phalanx.train.strategies import Shards, shard_options

pytestmark = pytest.mark.integration
CPU = torch.device("cpu")
WIDTH = 64


class Wishes:
    seed, exact, ddp = 0, True, {}


@pytest.fixture
def alone_in_a_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return x


def trained(options):
    """Bytes of weights that are kept for the backward pass; the gradients."""
    torch.manual_seed(0)
    model = Net()
    precision.cast_forward(model, "bf16", CPU)
    model = Shards(options).wrap(model, CPU, Wishes())
    kept = {}

    def keep(tensor):
        if tuple(tensor.shape) == (WIDTH, WIDTH):
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        out = model(torch.ones(2, WIDTH))
    num_bytes = sum(one.untyped_storage().nbytes() for one in kept.values())
    out.square().mean().backward()
    return num_bytes, [one.grad.full_tensor() for one in model.parameters()]


def test_no_casts_of_whole_blocks_are_kept(alone_in_a_group):
    num_bytes, found = trained(shard_options("bf16", {}))
    casts, plain = trained({})
    # The control: gathered in fp32, autocast's copies of the blocks before the last one stay.
    assert num_bytes == 0 and casts >= 2 * 2 * WIDTH * WIDTH
    assert all(one.dtype == torch.float32 for one in found)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=1e-4)


def test_a_policy_of_ones_own_stands():
    mine = {"mp_policy": object(), "reshard_after_forward": False}
    assert shard_options("bf16", mine) == mine
    assert shard_options("fp32", {}) == {}
