"""Batch norm over several ranks against one process with the concatenated batch.

The ranks are threads here: arithmetic needs no network.
"""

import pytest
import torch
from torch import nn

from integration.thread_gang import Meeting, on_threads
from phalanx.train.numerics import batch_norm

pytestmark = pytest.mark.integration


class ThreadLink:
    """What a process group does, between threads."""

    def __init__(self, meeting, rank, factor):
        self.meeting, self.rank, self.factor = meeting, rank, factor

    def gather(self, row):
        return torch.stack(self.meeting.exchange(self.rank, row.clone()))


def net(dims):
    torch.manual_seed(0)
    if dims == 2:
        head = [nn.Flatten(), nn.Linear(36, 2)]
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), *head).double()
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


def batch(dims, size):
    generator = torch.Generator().manual_seed(1)
    shape = (size, 3, 5, 5) if dims == 2 else (size, 3)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 50
    return x, torch.randn((size, 2), generator=generator, dtype=torch.float64)


def facts(model, outputs, factor=1.0):
    gradients = [p.grad * factor for p in model.parameters()]
    buffers = [b.double() for b in model.buffers()]
    return outputs.detach(), gradients, buffers


def alone(dims, size):
    model = net(dims)
    x, y = batch(dims, size)
    for _ in range(2):
        model.zero_grad()
        out = model(x)
        (out - y).square().mean().backward()
    return facts(model, out)


def together(dims, sizes, convert=batch_norm.synchronize, weights=None):
    """The gang's outputs, its reduced gradients, and every rank's buffers."""
    world, total = len(sizes), sum(sizes)
    meeting = Meeting(world)
    x, y = batch(dims, total)
    # Made here: threads that seed the one global generator would disturb one another.
    models = [net(dims) for _ in sizes]

    def rank(at):
        model = models[at]
        lo = sum(sizes[:at])
        spare = sizes[at] == 0
        mine = slice(0, 1) if spare else slice(lo, lo + sizes[at])
        factor = weights[at] if weights else sizes[at] * world / total
        convert(model, ThreadLink(meeting, at, factor))
        for _ in range(2):
            model.zero_grad()
            out = model(x[mine])
            (out - y[mine]).square().mean().backward()
        return facts(model, out if not spare else out[:0], factor)

    found = on_threads(world, rank)
    outputs = torch.cat([one[0] for one in found])
    gradients = [sum(rows) / world for rows in zip(*(one[1] for one in found), strict=True)]
    return outputs, gradients, [one[2] for one in found]


def distance(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 4, 1), (3, 2, 0), (7, 1, 2, 3)])
def test_it_equals_one_process_with_the_whole_batch(dims, sizes):
    outputs, gradients, buffers = alone(dims, sum(sizes))
    got = together(dims, sizes)
    assert distance([outputs], [got[0]]) < 1e-6
    assert distance(gradients, got[1]) < 1e-6
    for one in got[2]:
        assert distance(buffers, one) < 1e-6
        assert all(torch.equal(a, b) for a, b in zip(one, got[2][0], strict=True))


def test_each_ranks_own_batch_norm_would_not():
    outputs, gradients, _ = alone(1, 10)
    own = together(1, (5, 3, 2), convert=lambda model, link: model[1].track_running_stats)
    assert distance([outputs], [own[0]]) > 1e-2 and distance(gradients, own[1]) > 1e-3


def test_taking_all_ranks_for_equal_would_be_wrong_where_shares_are_not():
    """The negative control of the weights: what torch's own class computes."""
    outputs, gradients, _ = alone(1, 10)
    equal = together(1, (5, 4, 1), weights=(1.0, 1.0, 1.0))
    assert distance([outputs], [equal[0]]) < 1e-6 and distance(gradients, equal[1]) > 1e-3


def test_conversion_keeps_objects_names_and_evaluation():
    model = net(2)
    before = dict(model.named_parameters())
    x, _ = batch(2, 3)
    expected = net(2).eval()(x)
    assert batch_norm.synchronize(model, ThreadLink(Meeting(1), 0, 1.0)) == 1
    assert isinstance(model[1], nn.BatchNorm2d)
    assert list(model.state_dict()) == list(net(2).state_dict())
    assert all(before[name] is one for name, one in model.named_parameters())
    assert torch.equal(model.eval()(x), expected)
    assert batch_norm.synchronize(model, ThreadLink(Meeting(1), 0, 1.0)) == 0


def test_one_value_per_channel_is_refused():
    model = net(1)
    batch_norm.synchronize(model, ThreadLink(Meeting(1), 0, 1.0))
    with pytest.raises(ValueError, match="more than 1 value"):
        model(batch(1, 1)[0])


def test_gradients_are_right_by_finite_differences():
    model = nn.BatchNorm1d(3).double()
    batch_norm.synchronize(model, ThreadLink(Meeting(1), 0, 1.0))
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, (x,))
