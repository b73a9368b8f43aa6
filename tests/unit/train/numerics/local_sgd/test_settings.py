import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.training import rounds
from phalanx.errors import SpecInvalid
from phalanx.train import start
from phalanx.train.gang.context import RankInfo
from phalanx.train.numerics.local_sgd.exchange import BLOCK, pack, part_length, unpack
from phalanx.train.numerics.local_sgd.outer_step import outer_step
from phalanx.train.numerics.local_sgd.server_ranks import as_worker, is_server
from phalanx.train.settings import OuterSettings, SyncSettings, parse

pytestmark = pytest.mark.unit


def test_a_name_or_a_mapping_says_it():
    assert SyncSettings.parse("diloco") == SyncSettings(
        method="diloco", every=50, outer=OuterSettings(lr=0.7, momentum=0.9, nesterov=True)
    )
    assert SyncSettings.parse("local_sgd").outer == OuterSettings()
    assert SyncSettings.parse({"method": "diloco", "outer": {"lr": 0.5}}).outer.momentum == 0.9
    assert SyncSettings.parse("server").every == 1
    assert SyncSettings.parse(False) == SyncSettings() and not SyncSettings().is_local


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("dilco", "did you mean diloco"),
        ({"method": "diloco", "evry": 5}, "did you mean every"),
        ({"method": "diloco", "outer": {"momentm": 0.5}}, "did you mean outer.momentum"),
        ({"method": "diloco", "every": 0}, "every must be a whole number, at least 1"),
        ({"method": "diloco", "every": 3, "fragments": 4}, "fragments must be at most `every`"),
        ({"method": "diloco", "quantize": "int2"}, "quantize must be none, int8 or int4"),
        ({"method": "diloco", "outer": {"lr": 0}}, "outer.lr must be a number above 0"),
        ({"method": "diloco", "outer": {"momentum": 1.0}}, "below 1"),
        ({"method": "local_sgd", "outer": {"nesterov": True}}, "needs a momentum"),
        ({"method": "diloco", "outer": "sgd"}, "outer must be a mapping"),
        ({"method": "diloco", "staleness": 2}, "staleness is only for server"),
        ({"method": "server", "quantize": "int8"}, "quantize is only for local_sgd or diloco"),
    ],
)
def test_what_makes_no_sense_is_named(value, word):
    with pytest.raises(SpecInvalid, match=word):
        parse({"sync": value})


def test_servers_without_a_worker_are_refused_before_the_layout_of_workers():
    options = parse({"sync": {"method": "server", "servers": 2}, "strategy": {"fsdp": 2}})
    with pytest.raises(SpecInvalid, match="2 servers leave no worker"):
        start.start(options, environ={})


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 300))
def test_every_fragment_has_its_turn_once_in_any_round(every, num, begin):
    num = min(num, every)
    steps = range(begin + 1, begin + every + 1)
    turns = [at for step in steps for at in rounds.due(step, every, num)]
    assert sorted(turns) == list(range(num))


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_fragments_hold_every_tensor_once_and_in_order(sizes, num):
    cut = rounds.fragments(sizes, num)
    assert [at for part in cut for at in part] == list(range(len(sizes)))
    if sizes:
        assert len(cut) == min(num, len(sizes)) and all(len(part) for part in cut)
        heaviest = max(sum(sizes[at] for at in part) for part in cut)
        assert heaviest <= sum(sizes) / len(cut) + 2 * max(sizes)


@pytest.mark.parametrize(("bits", "most"), [(8, 1 / 254), (4, 1 / 14)])
def test_quantised_values_are_off_by_half_a_step_of_their_block_at_most(bits, most):
    values = torch.randn(8 * BLOCK, generator=torch.Generator().manual_seed(0))
    values[:BLOCK] = 0.0
    values[BLOCK : 2 * BLOCK] *= 1e-6
    packed = pack(values, bits)
    assert packed.numel() == 8 * (BLOCK * bits // 8 + 4)
    off = (unpack(packed, bits) - values).view(-1, BLOCK).abs().amax(1)
    assert (off <= values.view(-1, BLOCK).abs().amax(1) * (most + 1e-6)).all()


def test_what_is_not_finite_stays_so_and_spoils_its_own_block_only():
    values = torch.ones(2 * BLOCK)
    values[3] = float("nan")
    back = unpack(pack(values, 8), 8)
    assert not back[:BLOCK].isfinite().any() and (back[BLOCK:] == 1).all()


@given(st.integers(1, 10_000), st.integers(1, 9))
def test_parts_are_whole_blocks_that_hold_everything(num, world):
    part = part_length(num, world)
    assert part % BLOCK == 0 and 0 <= world * part - num < world * BLOCK


def test_the_outer_step_is_that_of_the_paper():
    """Nesterov as in DiLoCo, written out, over three rounds of two tensors."""
    wishes = OuterSettings(lr=0.7, momentum=0.9, nesterov=True)
    outer = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    expected = {name: one.clone() for name, one in outer.items()}
    kept: dict[str, torch.Tensor] = {}
    velocity = {name: torch.zeros_like(one) for name, one in outer.items()}
    for number in range(1, 4):
        gradients = {name: one * 0.1 * number for name, one in outer.items()}
        gradients = {name: one.clone() for name, one in gradients.items()}
        for name, gradient in gradients.items():
            velocity[name] = 0.9 * velocity[name] + gradient
            expected[name] = expected[name] - 0.7 * (gradient + 0.9 * velocity[name])
        outer_step(wishes, outer, gradients, kept)
        for name in outer:
            assert torch.allclose(outer[name], expected[name])
            assert outer[name].grad is None


def test_servers_are_counted_on_the_node_that_they_are_on():
    """Nodes of three ranks and one rank: the last rank, alone on its node, leaves no worker there."""
    sync = parse({"sync": {"method": "server", "servers": 1}}).sync

    def at(rank: int, local_rank: int, local: int, world: int = 4) -> RankInfo:
        return RankInfo(rank=rank, world_size=world, local_rank=local_rank, local_world_size=local)

    assert [is_server(sync, at(rank, rank, 3)) for rank in range(3)] == [False] * 3
    with pytest.raises(SpecInvalid, match="1 servers leave no worker on a node of 1 ranks"):
        is_server(sync, at(3, 0, 1))
    # The other way round, one rank and three: a small first node has its worker.
    assert not is_server(sync, at(0, 0, 1))
    assert [is_server(sync, at(1 + local, local, 3)) for local in range(3)] == [False, False, True]
    assert as_worker(sync, at(0, 0, 1)).local_world_size == 1
    assert as_worker(sync, at(1, 0, 3)).local_world_size == 2
