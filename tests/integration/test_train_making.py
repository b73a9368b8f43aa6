"""Models made without memory: first weights, what keeps its identity, what the ranks hold."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from phalanx.core.gang.meshes import Layout
from phalanx.errors import NotSupported
from phalanx.train.numerics import precision
from phalanx.train.parallel import materialize
from phalanx.train.parallel.grid import GridStrategy
from phalanx.train.parallel.strategies import ReplicaStrategy, ShardStrategy, SingleRank

pytestmark = pytest.mark.integration
CPU = torch.device("cpu")


@dataclass
class Wishes:
    seed: int = 3
    exact: bool = True
    ddp: dict = field(default_factory=dict)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def alone_in_a_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def hollow(make=Net):
    with torch.device("meta"):
        return make()


def prepared(strategy, model=None, seed=3):
    model = hollow() if model is None else model
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    strategy.receive(model, CPU, Wishes(seed))
    wrapped = strategy.wrap(model, CPU, Wishes(seed))
    strategy.adopt(opt)
    return model, wrapped, opt


def weights(model):
    return {name: whole(one).detach().clone() for name, one in model.state_dict().items()}


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def alike(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_first_weights_are_the_same_under_every_strategy(alone_in_a_group):
    wanted = weights(prepared(SingleRank())[0])
    assert len({one.double().sum().item() for one in wanted.values() if one.ndim == 2}) == 5
    for strategy in (ReplicaStrategy(), ShardStrategy({}), GridStrategy(Layout(dp=1), {}, {})):
        model, _, _ = prepared(strategy)
        assert alike(weights(model), wanted), strategy.name
    assert not alike(weights(prepared(SingleRank(), seed=4)[0]), wanted)


def test_optimizers_made_before_train_what_got_the_memory(alone_in_a_group):
    for strategy in (SingleRank(), ReplicaStrategy(), ShardStrategy({})):
        model, wrapped, opt = prepared(strategy)
        before = weights(model)
        wrapped(torch.arange(32.0).reshape(4, 8).cos()).square().sum().backward()
        opt.step()
        kept = [
            name for name, one in model.named_parameters() if torch.equal(whole(one), before[name])
        ]
        assert kept == [], strategy.name


def test_global_randomness_is_left_alone(alone_in_a_group):
    torch.manual_seed(11)
    wanted = torch.rand(3)
    torch.manual_seed(11)
    prepared(ShardStrategy({}))
    assert torch.equal(torch.rand(3), wanted)


def test_a_shared_weight_stays_shared():
    def make():
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        return model

    model, _, _ = prepared(SingleRank(), hollow(make))
    assert model[0].weight is model[1].weight
    assert not model[0].weight.is_meta


def test_what_cannot_begin_is_named(alone_in_a_group):
    class Mute(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4))

    for strategy in (SingleRank(), ShardStrategy({})):
        with pytest.raises(NotSupported, match=r"1 \(Mute\).*without a method reset_parameters"):
            prepared(strategy, hollow(lambda: nn.Sequential(nn.Linear(4, 4), Mute())))


def test_parameters_from_before_are_empty_once_they_are_sharded(alone_in_a_group):
    model = Net()
    early = list(model.parameters())
    sizes = [one.numel() for one in early]
    prepared(ShardStrategy({}), model)
    assert [one.numel() for one in early] == [0] * len(early)
    model = Net()
    early = list(model.parameters())
    prepared(ReplicaStrategy(), model)
    assert [one.numel() for one in early] == sizes


def warmed_up():
    """A model, and an optimizer that has made some steps with it already."""
    torch.manual_seed(7)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, opt)
    return model, opt


def step(model, opt):
    opt.zero_grad()
    model(torch.arange(32.0).reshape(4, 8).cos()).square().sum().backward()
    opt.step()


@pytest.mark.parametrize("forgetful", [False, True])
def test_what_an_optimizer_knew_before_goes_along(alone_in_a_group, monkeypatch, forgetful):
    if forgetful:  # the negative control
        monkeypatch.setattr(materialize, "split_state", lambda state, owner, optimizer: {})
    model, opt = warmed_up()
    step(model, opt)
    wanted = weights(model)
    for strategy in (ShardStrategy({}), GridStrategy(Layout(dp=1), {}, {})):
        model, opt = warmed_up()
        wrapped = strategy.wrap(model, CPU, Wishes())
        strategy.adopt(opt)
        assert set(opt.state) == set(model.parameters())
        step(wrapped, opt)
        found = weights(model)
        near = [torch.allclose(found[name], one, atol=1e-6) for name, one in wanted.items()]
        assert all(near) is not forgetful


def test_what_an_optimizer_knew_and_nobody_can_split_is_named(alone_in_a_group):
    model, opt = warmed_up()
    opt.state[model.head.weight]["row"] = torch.zeros(4)
    strategy = ShardStrategy({})
    strategy.wrap(model, CPU, Wishes())
    with pytest.raises(NotSupported, match=r"AdamW's row has shape \[4\].*before prepare\(\)"):
        strategy.adopt(opt)
    model = hollow()
    opt = torch.optim.AdamW(model.parameters())
    opt.load_state_dict(warmed_up()[1].state_dict())
    strategy.wrap(model, CPU, Wishes())
    with pytest.raises(NotSupported, match="AdamW's exp_avg was loaded while the model had no mem"):
        strategy.adopt(opt)


def test_the_users_own_malloc_settings_stand(monkeypatch):
    asked = []

    class Library:
        def __init__(self, name):
            self.mallopt = lambda what, value: asked.append((what, value))

    monkeypatch.setattr(materialize.ctypes, "CDLL", Library)
    materialize.return_large_blocks(CPU)
    assert asked == [(-3, 4 << 20)]
    materialize.return_large_blocks(torch.device("cuda"))
    for name, value in (
        ("MALLOC_MMAP_THRESHOLD_", "65536"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"),
    ):
        with monkeypatch.context() as inside:
            inside.setenv(name, value)
            materialize.return_large_blocks(CPU)
    assert len(asked) == 1


@pytest.mark.extras
@pytest.mark.proof
def test_shards_ask_for_huge_pages_before_torch_makes_a_tensor(tmp_path):
    """Torch looks once, at its first tensor: a process of its own shows that `init` comes in time."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, phalanx.train as pt\n"
        "run = pt.init(strategy=sys.argv[1])\n"
        "import ctypes, resource\n"
        "ctypes.CDLL(None).mallopt(-3, 1 << 20)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(3):\n"
        "    torch.empty(16 << 20).fill_(1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )

    def faults(strategy, **env):
        # One rank of one: the strategy is looked at, and nothing is shared.
        done = subprocess.run(
            [sys.executable, script, strategy],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **env},
        )
        return int(done.stdout)

    pages = 3 * (64 << 20) // os.sysconf("SC_PAGE_SIZE")
    if faults("ddp", THP_MEM_ALLOC_ENABLE="1") > pages / 2:
        pytest.skip("this machine has no huge pages to give")
    assert faults("auto") < pages / 2 < faults("ddp")
    assert faults("auto", THP_MEM_ALLOC_ENABLE="0") > pages / 2  # what the user says stands


def test_whole_gradients_and_sharded_ones_are_unscaled_together(alone_in_a_group):
    """Stages of tensor parallel layers beside plain ones have both; torch takes one kind in a call."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    whole = nn.Parameter(torch.ones(2))
    sharded = nn.Parameter(distribute_tensor(torch.ones(2), mesh, [Shard(0)]))
    scale = precision.LossScale(initial=8.0)
    for one in (whole, sharded):
        scale.scaled((one * 3).sum()).backward()
    scale.unscale([whole, sharded])
    assert whole.grad.tolist() == sharded.grad.full_tensor().tolist() == [3.0, 3.0]
