"""Stragglers, early stopping, the batch-size finder, stacks: each by itself."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from phalanx.core.gang.collectives import ANSWER_SUFFIX, ASK_SUFFIX, LastCollective, compare
from phalanx.core.telemetry.profiles import StragglerWatch, scores
from phalanx.errors import SpecInvalid, TrainingError
from phalanx.train import batch_size
from phalanx.train.gang import randomness, stacks
from phalanx.train.step.early_stop import EarlyStopping
from support.waiting import wait_until

pytestmark = pytest.mark.integration


# -- stragglers ------------------------------------------------------------------------------------


def test_a_score_compares_with_the_fastest():
    assert scores([0.1, 0.2, 0.0, 0.1]) == [1.0, 0.5, 1.0, 1.0]
    assert scores([0.0, 0.0]) == [1.0, 1.0]


def test_only_who_is_slow_again_and_again_is_a_straggler():
    watch = StragglerWatch(windows=5, least=3)
    slow, even = [1.0, 1.5, 1.0], [1.0, 1.1, 1.2]
    found = [watch.observe(times) for times in (slow, even, slow, even, slow, even, even, even)]
    assert found == [[], [], [], [], [1], [], [], []]


# -- early stopping --------------------------------------------------------------------------------


def counts(values, agreed=lambda value: value, **options):
    early = EarlyStopping(
        **{"patience": 2, "mode": "min", "min_delta": 0.0, **options}, agreed=agreed
    )
    return [early.update(value) for value in values], early


def test_it_stops_after_so_many_updates_without_an_improvement():
    assert counts([3, 2, 2.5, 1, 1, 1])[0] == [False, False, False, False, False, True]
    assert counts([1, 2, 3, 2, 3], mode="max")[0] == [False] * 4 + [True]
    assert counts([3, 2.95, 2.9], min_delta=0.2)[0] == [False, False, True]
    assert counts([float("nan"), float("nan")])[0] == [False, True]


def test_its_count_goes_on_after_a_resume_and_its_value_is_rank_0s():
    _, early = counts([3, 4])
    _, other = counts([])
    other.load_state_dict(early.state_dict())
    assert other.update(3.5)
    assert counts([1, 2, 3], agreed=lambda value: -value)[0] == [False] * 3
    with pytest.raises(SpecInvalid, match="mode"):
        counts([], mode="best")


# -- the batch-size finder -------------------------------------------------------------------------


class Machine:
    """Steps that take as long as they are told, and memory that ends."""

    def __init__(self, cost, memory=10**9):
        self.now, self.cost, self.memory, self.tried = 0.0, cost, memory, []

    def step(self, size):
        self.tried.append(size)
        if size > self.memory:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        self.now += self.cost(size)

    def find(self, **options):
        return batch_size.find(self.step, state=[], clock=lambda: self.now, **options)


def test_the_knee_is_where_more_samples_bring_no_more_speed():
    assert Machine(lambda size: 1.0 + size / 32).find(largest=4096) == 512
    assert Machine(lambda size: max(size, 64) / 64).find() == 64
    assert Machine(lambda size: 1.0).find(largest=128) == 128


def test_memory_ends_the_search_and_the_last_interval_is_halved():
    machine = Machine(lambda size: 1.0, memory=100)
    assert machine.find() == 96
    assert 128 in machine.tried
    with pytest.raises(TrainingError, match="not even one"):
        Machine(lambda size: 1.0, memory=0).find()
    with pytest.raises(ZeroDivisionError):
        Machine(lambda size: 1 / 0).find()


def test_everything_a_try_touched_is_put_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.eval()
    before = [one.clone() for one in model.state_dict().values()]
    rng, held = randomness.capture(), opt.state_dict()

    def step(size):
        model.train()
        opt.zero_grad()
        model(torch.randn(size + 1, 3)).sum().backward()
        opt.step()

    batch_size.find(step, state=[model, opt], largest=4)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert randomness.capture() == rng and opt.state_dict() == held
    assert not model[2].training and all(one.grad is None for one in model.parameters())
    # The control: a step does touch all of that.
    step(4)
    assert randomness.capture() != rng and opt.state_dict() != held


# -- stacks ----------------------------------------------------------------------------------------

HANGS = """
import sys, threading
from pathlib import Path
from phalanx.train.gang import stacks
if sys.argv[2] == "listen":
    stacks.install_handler(Path(sys.argv[1]))
def stuck_in_here():
    print("ready", flush=True)
    sys.stdin.read()
stuck_in_here()
"""


@pytest.mark.parametrize("mode", ["listen", "deaf"])
def test_a_rank_that_hangs_tells_where_and_goes_on(tmp_path, mode):
    report = tmp_path / "r00000.report"
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, str(report), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        assert rank.stdout.readline() == "ready\n"
        stacks.request_stacks([rank.pid])
        if mode == "deaf":
            assert rank.wait(60) == -signal.SIGUSR1
            return
        stacks.request_stacks([rank.pid])
        rank.stdin.close()
        assert rank.wait(60) == 0
    text = stacks.stacks_file(report).read_text()
    assert "stuck_in_here" in text


def test_asking_who_is_gone_and_listening_nowhere_do_no_harm(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(60)
    stacks.request_stacks([child.pid])
    stacks.install_handler(None)
    stacks.install_handler(tmp_path / "missing" / "r.report")
    assert os.getpid()


COLLECTIVES = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from phalanx.train.gang import stacks
report = Path(sys.argv[1])
stacks.install_handler(report)
stacks.install_handler(report)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
dist.all_reduce(torch.zeros(3))
if rank == 1:
    print("absent", flush=True)
    sys.stdin.read()
dist.all_reduce(torch.zeros(5))
dist.destroy_process_group()
"""


def test_a_rank_in_a_collective_tells_which_one(tmp_path):
    environ = dict(os.environ)
    reports = [tmp_path / f"r{rank:05d}.report" for rank in (0, 1)]
    ranks = []
    for rank, report in enumerate(reports):
        os.mkfifo(report.with_suffix(ASK_SUFFIX))
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", COLLECTIVES, str(report), str(tmp_path / "store")],
                env={**environ, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
    assert ranks[1].stdout.readline() == b"absent\n"

    def answers():
        for report in reports:
            pipe = os.open(report.with_suffix(ASK_SUFFIX), os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"?")
            os.close(pipe)
        found = [report.with_suffix(ANSWER_SUFFIX) for report in reports]
        if not all(one.exists() for one in found):
            return None
        rows = [json.loads(one.read_text()) for one in found]
        last = [LastCollective(**group) for row in rows for group in row]
        return last if len(last) == 2 and last[0].number > last[1].number else None

    first, second = wait_until(answers, "the collectives of both ranks")
    assert (first.operation, first.sizes, first.done) == ("all_reduce", "[[5]]", False)
    assert (second.operation, second.sizes, second.done) == ("all_reduce", "[[3]]", True)
    assert compare({0: [first], 1: [second]}).ranks == (1,)
    for rank in reversed(ranks):
        rank.communicate()
        assert rank.returncode == 0
