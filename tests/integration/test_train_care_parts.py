"""Precision, recomputing, fingerprints and the memory file, without ranks."""

import json
import sys
from collections import namedtuple

import pytest
import torch
from torch import nn

from phalanx.checkpoint import list_checkpoints
from phalanx.core.contract.records import to_json
from phalanx.core.training.guards import GUARD_STATE_FILE, GuardState, Skip
from phalanx.errors import SpecInvalid, TrainingError
from phalanx.train import settings, start
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.numerics import precision, recompute
from phalanx.train.step import guard, guard_state
from phalanx.train.step.guard_state import GuardStateFile

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "a b")


class Told:
    """A report that only remembers."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append((record.kind, to_json(record, 0)))


# -- precision -------------------------------------------------------------------------------------


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = None

    def forward(self, x):
        y = self.layer(x)
        self.seen = y.dtype
        return Pair({"y": [y, 3]}, (y, torch.arange(2)))


def test_the_forward_pass_is_in_half_precision_and_its_outputs_are_not():
    model = Many()
    names = list(model.state_dict())
    precision.cast_forward(model, "bf16", CPU)
    out = model(torch.ones(2, 4))
    assert model.seen is torch.bfloat16 and list(model.state_dict()) == names
    assert isinstance(out, Pair) and out.a["y"][0].dtype is torch.float32
    assert out.a["y"][1] == 3 and out.b[1].dtype is torch.int64
    out.a["y"][0].sum().backward()
    assert model.layer.weight.grad.dtype is torch.float32
    full = Many()
    precision.cast_forward(full, "fp32", CPU)
    full(torch.ones(2, 4))
    assert full.seen is torch.float32


def scaled_steps(gradients, **options):
    """The scale after steps with such gradients, ours and torch's."""
    ours = precision.LossScale(**options)
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=options["initial"], growth_interval=options["interval"]
    )
    found = []
    for value in gradients:
        pair = []
        for scale in (ours, theirs):
            weight = nn.Parameter(torch.ones(1))
            opt = torch.optim.SGD([weight], lr=1.0)
            loss = (weight * value).sum()
            if scale is ours:
                scale.scaled(loss).backward()
                scale.unscale([weight])
                scale.unscale([weight])
                if not bool(torch.isfinite(weight.grad).all()):
                    scale.overflowed()
                scale.settle()
                pair.append((scale.scale, weight.grad.item()))
            else:
                scale.scale(loss).backward()
                scale.unscale_(opt)
                scale.step(opt)
                scale.update()
                pair.append((scale.get_scale(), weight.grad.item()))
        found.append(pair)
    return found, ours, theirs


def test_the_scale_moves_as_torchs_does():
    inf = float("inf")
    found, ours, theirs = scaled_steps(
        [1.0, 2.0, 3.0, inf, 1.0, inf, inf, 1.0, 1.0, 1.0, 1.0], initial=8.0, interval=3
    )
    assert all(mine == torchs for mine, torchs in found)
    saved = theirs.state_dict()
    assert ours.state_dict() == {key: saved[key] for key in ("scale", "_growth_tracker")}
    back = precision.LossScale()
    back.load_state_dict(ours.state_dict())
    assert back.state_dict() == ours.state_dict()


def test_at_the_smallest_scale_an_overflow_is_somebody_elses_fault():
    scale = precision.LossScale(initial=2.0)
    assert scale.overflowed()
    assert not precision.LossScale(initial=1.0).overflowed()
    assert not precision.Scale().overflowed()


def test_a_step_without_the_scaled_backward_is_refused():
    with pytest.raises(TrainingError, match=r"run\.backward"):
        precision.LossScale().unscale([nn.Parameter(torch.ones(1))])


# -- recomputing -----------------------------------------------------------------------------------


class Blocky(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def trained(names):
    torch.manual_seed(0)
    model = Blocky()
    num = recompute.recompute_blocks(model, names)
    for _ in range(3):
        model(torch.randn(6, 4)).square().sum().backward()
    return num, [*(p.grad for p in model.parameters()), *model.buffers()]


def test_recomputed_blocks_give_the_same_bits_statistics_included(monkeypatch):
    _, plain = trained(False)
    num, again = trained(True)
    assert num == 2 and trained(["Linear"])[0] == 2
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    # The control: without putting them back, batch norms would count every batch twice.
    monkeypatch.setattr(
        recompute, "buffers_kept", lambda module: recompute.contextlib.nullcontext()
    )
    _, twice = trained(True)
    assert not all(torch.equal(one, other) for one, other in zip(plain, twice, strict=True))


def test_blocks_that_are_not_there_are_named():
    with pytest.raises(SpecInvalid, match="Layer"):
        recompute.recompute_blocks(Blocky(), ["Layer"])
    with pytest.raises(SpecInvalid, match="ModuleList"):
        recompute.recompute_blocks(nn.Linear(1, 1), True)


# -- fingerprints ----------------------------------------------------------------------------------


def with_gradients(*values):
    found = []
    for value in values:
        parameter = nn.Parameter(torch.zeros_like(value))
        parameter.grad = value
        found.append(parameter)
    return found


def test_a_fingerprint_knows_every_bit_and_place_and_every_nan():
    torch.manual_seed(0)
    one, other = torch.randn(5, 3), torch.randn(7)
    one[2, 1] = float("nan")
    base = guard.fingerprint(with_gradients(one, other))
    assert guard.fingerprint(with_gradients(one.clone(), other.clone())) == base
    flipped = other.clone()
    flipped.view(torch.int32)[3] ^= 1
    swapped = other.clone()
    swapped[[0, 1]] = other[[1, 0]]
    moved = one.clone()
    moved[2, 1], moved[0, 0] = 0.0, float("nan")
    for pair in ((one, flipped), (one, swapped), (moved, other)):
        assert guard.fingerprint(with_gradients(*pair)) != base


@pytest.fixture
def alone(monkeypatch):
    """A run of one process inside this one."""
    hook = sys.excepthook
    made = []

    def make(**options):
        made.append(start.start(settings.parse(options), environ={}))
        return made[-1]

    yield make
    for run in made:
        run.finish()
    sys.excepthook = hook


def test_without_a_loader_a_bad_step_is_left_out_and_the_next_one_counts(alone):
    run = alone(on_non_finite="skip")
    model = nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    model, opt, sched = run.prepare(model, opt, sched)
    rates, weights = [], []
    for factor in (1.0, float("nan"), float("nan"), float("inf"), 1.0):
        opt.zero_grad()
        (model(torch.ones(1, 2)) * factor).sum().backward()
        opt.step()
        sched.step()
        rates.append(sched.get_last_lr()[0])
        weights.append(model.weight.detach().clone())
    assert rates == [0.05, 0.05, 0.05, 0.05, 0.025]
    assert torch.equal(weights[0], weights[3]) and not torch.equal(weights[3], weights[4])


# -- the memory file -------------------------------------------------------------------------------


def keeper(tmp_path):
    told = Told()
    return GuardStateFile(tmp_path / "store", RankInfo(), LocalChannel(), told), told


def test_a_memory_is_kept_and_found_however_long(tmp_path):
    file, told = keeper(tmp_path)
    assert file.open() == GuardState()
    full = GuardState(tuple(Skip(0, at, at + 1, at, "non_finite") for at in range(200)), 3)
    file.keep(full)
    assert keeper(tmp_path)[0].open() == full and not told.records
    assert [path.name for path in (tmp_path / "store").iterdir()] == [GUARD_STATE_FILE]
    assert list_checkpoints(tmp_path / "store") == []


def test_after_a_kill_by_the_kernel_the_next_generation_halves_once(tmp_path):
    """No rank could write it down; where one did, it is not done again."""
    info = RankInfo(attempt=2, generation=3, restart_cause="oom")
    file = GuardStateFile(tmp_path / "store", info, LocalChannel(), Told())
    assert file.open() == GuardState(halvings=1, halved_in=(2, 2)) == file.open()
    file.keep(GuardState(halvings=3, halved_in=(2, 2)))
    assert file.open().halvings == 3
    calm = GuardStateFile(
        tmp_path / "store", RankInfo(attempt=2, generation=4), LocalChannel(), Told()
    )
    assert calm.open().halvings == 3
    crashed = RankInfo(attempt=2, generation=4, restart_cause="rank_crash")
    assert GuardStateFile(tmp_path / "store", crashed, LocalChannel(), Told()).open().halvings == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 9}', "\x00\xff"])
def test_a_memory_that_cannot_be_read_is_none_and_says_so(tmp_path, text):
    file, told = keeper(tmp_path)
    file.keep(GuardState())
    (tmp_path / "store" / GUARD_STATE_FILE).write_bytes(text.encode("latin1"))
    assert file.open() == GuardState()
    assert told.records[0][0] == "warn"


def test_a_failed_write_leaves_the_old_memory(tmp_path, monkeypatch):
    file, _ = keeper(tmp_path)
    file.keep(GuardState(halvings=1))

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(guard_state.os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        file.keep(GuardState(halvings=2))
    assert file.open() == GuardState(halvings=1)
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_only_want_of_memory_is_taken_for_it(monkeypatch):
    called = []
    monkeypatch.setattr(sys, "excepthook", lambda *parts: called.append("before"))
    hook = guard_state.install_memory_hook(lambda: called.append("memory"))
    for error in (ValueError("x"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        hook(type(error), error, None)
    assert called == ["before", "memory", "before", "memory", "before"]
    real = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: x"
    assert guard_state.is_out_of_memory(RuntimeError(real))
    assert json.dumps(GuardState().to_json())
