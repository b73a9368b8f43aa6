"""What each method promises, checked by three real ranks; every failure names the method."""

import os
import sys

import torch
import torch.distributed as dist

from phalanx.train.numerics.compression.codecs import CODECS
from phalanx.train.settings import CompressionSettings

SHAPES = {"wide": (40, 60), "conv": (8, 4, 9, 9), "bias": (17,)}
STEPS = 5


def gradients(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def mean(step):
    rows = [gradients(rank, step) for rank in range(dist.get_world_size())]
    return {name: sum(row[name] for row in rows) / len(rows) for name in SHAPES}


def everybody(tensor):
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor.contiguous())
    return rows


def reduced(codec, step, scale=1.0, applied=True):
    mine = {name: one * scale for name, one in gradients(dist.get_rank(), step).items()}
    codec.reduce(list(mine.items()), scale, step)
    codec.settle(applied)
    return {name: one / scale for name, one in mine.items()}


def owed(codec):
    state = codec.state_dict()["owed"]
    return {name: one.full_tensor().mean(0) for name, one in state.items()}


def check_nothing_is_lost(name, wishes):
    """What all steps sent, and what is still owed, is what the gradients were."""
    codec = CODECS[name](wishes, 3)
    sent = {key: torch.zeros(shape) for key, shape in SHAPES.items()}
    true = {key: torch.zeros(shape) for key, shape in SHAPES.items()}
    for step in range(STEPS):
        for key, one in reduced(codec, step, scale=2.0**step).items():
            sent[key] += one
            true[key] += mean(step)[key]
            assert all(torch.equal(one, other) for other in everybody(one)), (
                f"{name}: {key} differs"
            )
    left = owed(codec)
    for key in SHAPES:
        rest = true[key] - sent[key] - left.get(key, 0)
        assert rest.abs().max() < 1e-5, f"{name}: {key} lost {rest.abs().max()}"
    assert (true["wide"] - sent["wide"]).abs().max() > 0.1, f"{name}: nothing was compressed"


def check_whole_is_exact(name, wishes, gradients):
    """All elements, or as many columns as the mean has: the mean itself."""
    codec = CODECS[name](wishes, 3)
    rows = [gradients(rank) for rank in range(dist.get_world_size())]
    found = rows[dist.get_rank()]
    expected = {key: sum(row[key] for row in rows) / len(rows) for key in found}
    codec.reduce(list(found.items()), 1.0, 0)
    for key, one in expected.items():
        assert torch.allclose(found[key], one, atol=1e-5), f"{name}: {key} is not the mean"


def outer_product(rank):
    generator = torch.Generator().manual_seed(rank)
    return {
        "wide": torch.randn(40, 1, generator=generator) @ torch.randn(1, 60, generator=generator)
    }


def check_a_refused_step_leaves_no_trace(name, wishes):
    kept, other = CODECS[name](wishes, 3), CODECS[name](wishes, 3)
    reduced(kept, 0), reduced(other, 0)
    reduced(other, 1, applied=False)
    one, two = reduced(kept, 2), reduced(other, 2)
    assert all(torch.equal(one[key], two[key]) for key in SHAPES), f"{name}: a trace is left"


def check_without_feedback_it_is_lost(name, wishes):
    codec = CODECS[name](wishes, 3)
    reduced(codec, 0)
    assert codec.state_dict()["owed"] == {}, f"{name}: remembers"


def main():
    dist.init_process_group("gloo")
    for name in CODECS:
        check_nothing_is_lost(name, CompressionSettings.parse({"method": name, "fraction": 0.1}))
        check_a_refused_step_leaves_no_trace(name, CompressionSettings.parse({"method": name}))
        plain = CompressionSettings.parse({"method": name, "error_feedback": False})
        check_without_feedback_it_is_lost(name, plain)
    # randomk draws with repetition, so it has no setting that sends everything
    everything = CompressionSettings.parse({"method": "topk", "fraction": 1.0})
    check_whole_is_exact("topk", everything, lambda rank: gradients(rank, 0))
    enough = CompressionSettings.parse({"method": "powersgd", "rank": dist.get_world_size()})
    check_whole_is_exact("powersgd", enough, outer_product)
    dist.barrier()
    dist.destroy_process_group()
    print("all checked", os.environ["RANK"])


if __name__ == "__main__":
    sys.exit(main())
