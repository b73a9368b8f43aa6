"""The parts of the training library in one process: trees, reports, randomness, loaders, gates."""

import json
import os
import random
import subprocess
import sys
import time
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    TensorDataset,
    WeightedRandomSampler,
)

from phalanx.checkpoint import tensorfile
from phalanx.core.contract import records as reports
from phalanx.core.contract.checkpointing import SaveInterval
from phalanx.core.contract.records import StepRecord, WarningRecord
from phalanx.core.training.batches import BatchPlan
from phalanx.errors import (
    CheckpointCorrupt,
    RestoreMismatch,
    SpecInvalid,
    TrainingError,
)
from phalanx.train.data import loader as data
from phalanx.train.data import ordering
from phalanx.train.gang import context, failure, randomness
from phalanx.train.gang.report import CHUNK_BYTES, Journal, NoReport, ReportFile
from phalanx.train.state import restoring, tree

pytestmark = pytest.mark.integration


def through_a_file(value, tmp_path):
    body, blobs = tree.flatten(value)
    path = tmp_path / "x"
    path.write_bytes(b"".join(bytes(piece) for piece in tensorfile.lay_out(body, blobs)))
    body, blobs = tensorfile.parse(bytearray(path.read_bytes()), "x")
    return tree.unflatten(body, blobs, "x")


# -- trees -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path, dtype):
    raw = torch.randint(0, 2, (3, 5)).to(dtype)
    for tensor in (raw, raw.t(), raw[1:2, ::2], raw[0, 0], raw[:0]):
        back = through_a_file({"t": tensor}, tmp_path)["t"]
        assert back.dtype == dtype and back.shape == tensor.shape
        assert torch.equal(
            back.contiguous().reshape(-1).view(torch.uint8),
            tensor.contiguous().reshape(-1).view(torch.uint8),
        )


def test_structures_come_back_with_their_types(tmp_path):
    value = {
        "tuple": (1, [2.5, None], "x"),
        "set": {1, 2},
        "bytes": b"\0\xff",
        3: "int key",
        "nested": OrderedDict(a={0: {"step": torch.tensor(1.0)}}),
        "inf": float("-inf"),
        "array": np.arange(6).reshape(2, 3),
        "np": np.float64(0.1),
        "dtype": torch.bfloat16,
        "$money": 1,
        "true": True,
        "empty": {},
    }
    back = through_a_file(value, tmp_path)
    assert back["tuple"] == (1, [2.5, None], "x") and back["set"] == {1, 2}
    assert back["bytes"] == b"\0\xff" and back[3] == "int key" and back["$money"] == 1
    assert back["nested"]["a"][0]["step"] == 1.0 and back["inf"] == float("-inf")
    assert back["array"].shape == (2, 3) and back["np"] == 0.1 and back["dtype"] == torch.bfloat16
    assert back["true"] is True and back["empty"] == {}


def test_what_only_a_pickle_could_hold_is_refused_with_its_place():
    with pytest.raises(TrainingError, match=r"\.a\.fn\[1\] holds a function"):
        tree.flatten({"a": {"fn": [1, lambda: 0]}})
    with pytest.raises(TrainingError, match=r"\.s"):
        tree.flatten({"s": torch.ones(2).to_sparse()})


def test_a_tree_that_points_nowhere_is_corrupt():
    with pytest.raises(CheckpointCorrupt, match="state"):
        tree.unflatten({"a": {"$tensor": 4}}, [], "state")
    with pytest.raises(CheckpointCorrupt, match="evil"):
        tree.unflatten({"$evil": 1}, [], "state")


# -- restoring -------------------------------------------------------------------------------------


def trained(steps):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        opt.step()
        opt.zero_grad()
    return model, opt


def advanced(saved, times):
    """Restore `times` times from the same dictionary, with a step after each."""
    model, opt = trained(0)
    for _ in range(times):
        restoring.optimizer(opt, saved, "here")
        model(torch.ones(2, 4)).square().sum().backward()
        opt.step()
    return opt.state_dict()["state"][0]["exp_avg"].clone()


def test_one_state_can_be_restored_twice(monkeypatch):
    _, opt = trained(3)
    saved = tree.cloned(restoring.optimizer_state(opt))
    before = saved["state"]["state"][0]["exp_avg"].clone()
    advanced(saved, 1)
    assert torch.equal(saved["state"]["state"][0]["exp_avg"], before)
    # The negative control: without cloning, the optimizer goes on writing into what it was given.
    monkeypatch.setattr(restoring, "cloned", lambda value: value)
    advanced(saved, 1)
    assert not torch.equal(saved["state"]["state"][0]["exp_avg"], before)


def test_a_model_that_does_not_fit_is_named():
    saved = nn.Linear(4, 3).state_dict()
    with pytest.raises(
        RestoreMismatch, match=r"weight has shape \[3, 5\], the checkpoint has \[3, 4\]"
    ):
        restoring.model(nn.Linear(5, 3), saved, "step-1")
    with pytest.raises(
        RestoreMismatch, match=r"weight is torch.float64, the checkpoint has torch.float32"
    ):
        restoring.model(nn.Linear(4, 3).double(), saved, "step-1")
    with pytest.raises(RestoreMismatch, match="bias is not in the model"):
        restoring.model(nn.Linear(4, 3, bias=False), saved, "step-1")


def test_an_optimizer_that_does_not_fit_is_named():
    model, opt = trained(1)
    saved = restoring.optimizer_state(opt)
    with pytest.raises(RestoreMismatch, match="the class is SGD, the checkpoint has AdamW"):
        restoring.optimizer(torch.optim.SGD(model.parameters(), 0.1), saved, "step-1")
    other = torch.optim.AdamW(nn.Linear(9, 3).parameters())
    with pytest.raises(
        RestoreMismatch, match=r"parameter 0 has shape \[3, 9\], the checkpoint has \[3, 4\]"
    ):
        restoring.optimizer(other, saved, "step-1")


# -- randomness ------------------------------------------------------------------------------------


def draw():
    return torch.rand(1).item(), np.random.randn(), random.gauss(0, 1)


def test_a_generator_state_comes_back_exactly_gauss_caches_included():
    draw()
    state = randomness.capture()
    first = [draw() for _ in range(3)]
    randomness.seed_everything(99)
    randomness.restore(state)
    assert [draw() for _ in range(3)] == first
    with pytest.raises(ValueError, match="state"):
        randomness.restore(state[: len(state) // 2])


def test_undisturbed_hides_every_draw():
    randomness.seed_everything(1)
    expected = [draw(), draw()]
    randomness.seed_everything(1)
    got = [draw()]
    with randomness.undisturbed():
        randomness.seed_sample(5)
        draw()
    assert [*got, draw()] == expected


def test_seeds_differ_in_every_part():
    seeds = {randomness.mix(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 1 << 64 for seed in seeds)


# -- loaders ---------------------------------------------------------------------------------------


class Augmented(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, at):
        return at, torch.rand(1).item(), float(np.random.rand()), random.random()


class Course:
    """A run that only counts."""

    keeps_batches = False

    def __init__(self, start=(0, 0)):
        self.start, self.shares, self.ended = start, [], 0

    def start_pass(self):
        return self.start

    def boundary(self):
        pass

    def finish_pass(self):
        self.ended += 1

    def begin(self, share):
        self.shares.append(share)

    def again(self):
        return False


def samples(world=1, start=(0, 0), **options):
    """Every rank's samples, merged in the order of their positions."""
    merged = []
    for rank in range(world):
        course = Course(start)
        loader = data.positioned(
            DataLoader(Augmented(), batch_size=4, shuffle=True, **options),
            course,
            seed=1,
            place=(rank, world),
            reference_world=2,
            accumulate=1,
            device=torch.device("cpu"),
        )
        for batch, share in zip(loader, _live(course.shares), strict=False):
            rows = list(zip(*(column.tolist() for column in batch), strict=True))
            merged += [] if share.spare else list(zip(range(share.lo, share.hi), rows, strict=True))
        assert course.ended == 1
    return [row for _, row in sorted(merged)]


def _live(shares):
    at = 0
    while True:
        yield shares[at]
        at += 1


def test_samples_and_their_randomness_do_not_depend_on_world_size_workers_or_restart():
    alone = samples()
    assert sorted(row[0] for row in alone) == list(range(23))
    assert [row[0] for row in alone] != list(range(23))
    assert samples(world=3) == alone
    assert samples(start=(0, 8)) == alone[8:]
    assert samples(num_workers=2, multiprocessing_context="fork") == alone
    assert samples(start=(1, 0)) != alone


def test_without_the_seeds_randomness_would_depend_on_the_company(monkeypatch):
    monkeypatch.setattr(randomness, "seed_sample", lambda seed: None)
    assert samples(world=3) != samples()


def test_loading_does_not_disturb_the_global_generators():
    for options in ({}, {"num_workers": 1, "multiprocessing_context": "fork"}):
        randomness.seed_everything(7)
        expected = draw()
        randomness.seed_everything(7)
        samples(**options)
        assert draw() == expected


def test_a_users_sampler_is_drawn_under_the_seed_of_the_pass():
    sampler = WeightedRandomSampler([0.1] * 22 + [9.0], 23)
    order = ordering.SamplerOrder(sampler, 23, seed=1)
    assert order(0).tolist() == order(0).tolist() != order(1).tolist()


def test_evaluation_gives_every_sample_once_and_may_be_repeated():
    seen = []
    for rank in range(3):
        loader = data.EvaluationLoader(
            DataLoader(TensorDataset(torch.arange(23)), batch_size=4),
            (rank, 3),
            1,
            torch.device("cpu"),
        )
        assert [x.tolist() for (x,) in loader] == [x.tolist() for (x,) in loader]
        assert len(list(loader)) == len(loader)
        seen += [value for (x,) in loader for value in x.tolist()]
    assert seen == list(range(23))


def test_a_plan_for_a_smaller_gang_keeps_the_global_batch():
    loader = data.positioned(
        DataLoader(Augmented(), batch_size=4),
        Course(),
        seed=1,
        place=(0, 1),
        reference_world=3,
        accumulate=1,
        device=torch.device("cpu"),
    )
    assert loader.plan == BatchPlan(23, 12) and len(loader) == 2 and loader.batch_size == 4


# -- reports ---------------------------------------------------------------------------------------


def records(path):
    body = path.read_bytes()
    size = reports.committed_length(body[: reports.HEADER_BYTES])
    return [r for _, r in reports.decode(body[reports.HEADER_BYTES :][:size])]


def test_reports_grow_beyond_their_first_chunk(tmp_path):
    path = tmp_path / "r"
    report = ReportFile(path, now=lambda: 7)
    text = "x" * 1000
    for step in range(2 * CHUNK_BYTES // 1000):
        report.write(WarningRecord(f"{step} {text}"))
    report.close()
    found = records(path)
    assert [int(r["message"].split()[0]) for r in found] == list(range(2 * CHUNK_BYTES // 1000))
    assert found[0]["t"] == 7


def test_a_full_disk_drops_and_counts_and_says_so_later(tmp_path, monkeypatch):
    full = False
    allocate = os.posix_fallocate

    def refuse(*args):
        if full:
            raise OSError(28, "No space left on device")
        allocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    report = ReportFile(tmp_path / "r", now=lambda: 1)
    full = True
    for _ in range(CHUNK_BYTES // 500):
        report.write(WarningRecord("x" * 1000))
    before = len(records(tmp_path / "r"))
    assert before * 1000 < CHUNK_BYTES and report.dropped > 0
    full = False
    for _ in range(200):
        report.write(StepRecord(step=1))
    after = records(tmp_path / "r")[before:]
    assert after[0]["k"] == "warn" and "could not be written" in after[0]["message"]
    report.close()


def test_a_rank_that_starts_on_a_full_disk_reports_once_there_is_room(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        report = ReportFile(tmp_path / "r", now=lambda: 1)
        for _ in range(3):
            report.write(StepRecord(step=1))
    for _ in range(200):
        report.write(StepRecord(step=1))
    report.close()
    first, *steps = records(tmp_path / "r")
    assert first["k"] == "warn" and "could not be written" in first["message"]
    assert int(first["message"].split()[0]) + len(steps) == 203


def test_a_report_that_cannot_be_made_does_not_raise(tmp_path):
    (tmp_path / "file").write_text("")
    report = ReportFile(tmp_path / "file" / "r", now=lambda: 1)
    report.write(StepRecord(step=1))
    report.close()
    assert report.dropped == 1


def test_metrics_are_read_a_step_later_and_never_at_once(tmp_path):
    class Lazy:
        reads = 0

        def detach(self):
            return self

        def item(self):
            Lazy.reads += 1
            return 0.5

    report = ReportFile(tmp_path / "r", now=lambda: 1)
    journal = Journal(report)
    journal.log(1, {"loss": Lazy(), "n": 3})
    assert Lazy.reads == 0 and records(tmp_path / "r") == []
    journal.log(1, {"acc": float("nan")})
    journal.log(2, {"loss": torch.tensor(2.0), "bad": "text"})
    assert records(tmp_path / "r")[0]["values"] == {"loss": 0.5, "n": 3, "acc": "nan"}
    journal.flush()
    warn, metric = records(tmp_path / "r")[1:]
    assert "bad" in warn["message"] and metric["values"] == {"loss": 2.0} and metric["step"] == 2
    report.close()


# -- the environment -------------------------------------------------------------------------------


def test_outside_a_launcher_it_is_one_process_with_no_files():
    info = context.read({})
    assert (info.rank, info.world_size, info.launched) == (0, 1, False)
    assert info.checkpoint_dir is info.report_file is info.control_file is None


def test_plain_torchrun_gives_ranks_and_no_platform():
    info = context.read(
        {
            "RANK": "2",
            "WORLD_SIZE": "3",
            "LOCAL_RANK": "2",
            "LOCAL_WORLD_SIZE": "3",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
    )
    assert info.launched and info.rank == 2 and info.reference_world == 3 and info.one_node


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("10s", SaveInterval(seconds=10)),
        ("1h30m", SaveInterval(seconds=5400)),
        ("500 steps", SaveInterval(steps=500)),
        ("1 epoch", SaveInterval(epochs=1)),
        ("", SaveInterval(seconds=600)),
        ("auto", SaveInterval(seconds=60, auto=True)),
    ],
)
def test_how_often_to_save(text, every):
    assert SaveInterval.parse(text) == every


def test_every_variable_that_makes_no_sense_is_named_at_once():
    with pytest.raises(SpecInvalid) as caught:
        context.read(
            {
                "PHALANX_ATTEMPT": "x",
                "PHALANX_CHECKPOINT_EVERY": "soon",
                "PHALANX_CHECKPOINT_KEEP": '{"last": 0}',
                "PHALANX_GRACE_S": "-1",
            }
        )
    assert [problem.path for problem in caught.value.problems] == [
        "PHALANX_ATTEMPT",
        "PHALANX_GRACE_S",
        "PHALANX_CHECKPOINT_EVERY",
        "PHALANX_CHECKPOINT_KEEP",
    ]


def test_importing_the_library_does_not_import_torch():
    code = "import sys, phalanx.train; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_first_failure_stays_in_the_error_file(tmp_path):
    path = tmp_path / "deep" / "error.json"
    try:
        raise KeyError("first")
    except KeyError as error:
        failure.write(path, error)
    failure.write(path, ValueError("second"))
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "KeyError: 'first'"
    assert "test_train_parts.py" in message["extraInfo"]["py_callstack"]
    assert int(message["extraInfo"]["timestamp"]) <= time.time()


def test_no_report_listens_to_nothing():
    NoReport().write(StepRecord(step=1))
    NoReport().close()
