"""Timing in one process: sections on a manual clock, windows, the reducer's numbers, devices."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from phalanx.core.contract.records import to_json
from phalanx.core.telemetry.instruments import INSTRUMENTS, PARTS, is_part
from phalanx.train.data import loader as data
from phalanx.train.gang.context import RankInfo
from phalanx.train.observe import communication, devices, timing
from phalanx.train.observe.timing import COMPUTE, DATA, OPTIMIZER, OUTSIDE, REST, STALL, StepTiming

pytestmark = pytest.mark.integration
MS = 1_000_000


class Bench:
    """A timing whose clock only moves when told to."""

    def __init__(self):
        self.ns = 0
        self.records = []
        self.said = []
        self.timing = StepTiming(self, warn=self.said.append, clock_ns=lambda: self.ns)

    def write(self, record):
        self.records.append((record.kind, to_json(record, 0)))

    def close(self):
        pass

    def spend(self, section, milliseconds):
        before = self.timing.enter(section)
        self.ns += milliseconds * MS
        return before

    def step(self, number, *, data=1, compute=20, optimizer=3, rest=1, samples=8):
        self.spend(DATA, data)
        self.timing.enter(COMPUTE)
        self.timing.took(samples)
        self.ns += compute * MS
        self.spend(OPTIMIZER, optimizer)
        self.timing.enter(REST)
        self.timing.stepped(number)
        self.ns += rest * MS


@pytest.fixture
def bench():
    return Bench()


def values_of(bench):
    kind, fields = bench.records[-1]
    assert kind == "metric"
    return fields["values"]


def test_every_moment_belongs_to_one_section(bench):
    for number in range(1, 11):
        bench.step(number)
    bench.timing.flush()
    values = values_of(bench)
    assert bench.records[-1][1]["step"] == 10
    assert values["data_loading_time_seconds"] == 0.001
    assert values["computation_time_seconds"] == 0.02
    assert values["optimizer_time_seconds"] == 0.003
    # The rest after the last step belongs to a step that has not been made.
    assert values["step_time_seconds"] == pytest.approx(0.0249)
    assert values["training_samples"] == 80
    assert values["training_steps_per_sec"] == pytest.approx(10 / 0.249, rel=1e-5)
    assert values["data_wait_fraction"] == pytest.approx(10 / 249, rel=1e-5)
    assert all(is_part(name) or name in INSTRUMENTS for name in values)


def test_distributions_hold_every_step_once(bench):
    for number in range(1, 10):
        bench.step(number, compute=20)
    bench.step(10, compute=200)
    bench.timing.flush()
    parts = {
        name: value
        for name, value in values_of(bench).items()
        if name in PARTS and PARTS[name][0] == "computation_time_seconds"
    }
    assert parts.pop("computation_time_seconds|sum") == pytest.approx(0.38)
    assert sorted(parts.values()) == [1, 9]


def test_accumulation_adds_up_within_a_step(bench):
    for _ in range(3):
        bench.spend(DATA, 1)
        bench.timing.enter(COMPUTE)
        bench.timing.took(4)
        bench.ns += 10 * MS
    bench.spend(OPTIMIZER, 2)
    bench.timing.enter(REST)
    bench.timing.stepped(1)
    bench.timing.flush()
    values = values_of(bench)
    assert values["computation_time_seconds"] == 0.03
    assert values["data_loading_time_seconds"] == 0.003
    assert values["training_samples"] == 12


def test_what_lies_between_passes_is_part_of_no_step(bench):
    bench.step(1)
    bench.spend(OUTSIDE, 5000)
    bench.step(2)
    bench.timing.flush()
    assert values_of(bench)["step_time_seconds"] < 0.03


def test_a_save_is_a_stall_and_the_section_goes_on(bench):
    bench.step(1)
    before = bench.spend(STALL, 70)
    bench.timing.enter(before)
    assert before == REST
    bench.step(2)
    bench.timing.flush()
    values = values_of(bench)
    assert values["checkpoint_stall_seconds"] == 0.07
    assert values["step_time_seconds"] == pytest.approx((24 + 25 + 70) / 2 / 1000)


def test_a_fast_step_does_not_drown_the_report(bench):
    for number in range(1, 60_001):
        bench.step(number, data=0, compute=1, optimizer=0, rest=0)
    # A minute of steps of 1 ms: windows of half a second at first, growing with the time trained.
    assert 10 < len(bench.records) < 90
    assert len(bench.records[0][1]["values"]) < 40


def test_lost_time_is_said_once_in_words_and_only_when_it_is_lost(bench):
    for number in range(1, 2001):
        bench.step(number, data=6, compute=18)
    assert len(bench.said) == 1
    assert "21% of the training time" in bench.said[0]
    calm = Bench()
    for number in range(1, 2001):
        calm.step(number, data=2, compute=22)
    assert calm.said == []


def test_nothing_to_report_is_no_report(bench):
    bench.timing.flush()
    assert bench.records == []


def test_the_reducers_numbers_become_exposed_communication():
    data = {
        "forward_compute_time": 5 * MS,
        "backward_compute_time": 10 * MS,
        "backward_comm_time": 8 * MS,
        "backward_compute_comm_overlap_time": 6 * MS,
    }
    values = communication.times(data)
    assert values["forward_time_seconds"] == 0.005
    assert values["gradient_sync_time_seconds"] == 0.008
    assert values["communication_time_seconds"] == 0.002
    assert communication.times({}) == {}
    # More overlap than communication is a rounding of clocks, not negative waiting.
    assert (
        communication.times({"backward_comm_time": 1, "backward_compute_comm_overlap_time": 9})[
            "communication_time_seconds"
        ]
        == 0.0
    )


def test_a_model_that_is_no_replica_says_nothing():
    assert communication.reducer_probe(torch.nn.Linear(2, 2), torch.device("cpu"))() == {}


def test_resident_memory_is_ours_or_left_out(tmp_path: Path):
    found = devices.process_probe()()["process_resident_memory_bytes"]
    assert 10_000_000 < found < 10**12
    assert devices.process_probe(tmp_path / "nowhere")() == {}
    assert devices.device_probes(torch.device("cpu")) == []


def test_one_rank_of_a_node_warns():
    for local_rank, count in ((0, 1), (1, 0)):
        bench = Bench()
        info = RankInfo(local_rank=local_rank)
        measured = devices.step_timing(info, bench, torch.device("cpu"))
        measured._warn("slow")
        assert len(bench.records) == count


def test_null_timing_accepts_everything():
    silent = timing.NoTiming()
    assert silent.enter(DATA) == OUTSIDE
    silent.took(1)
    silent.stepped(1)
    silent.watch(dict)
    silent.flush()


class Drawing(Dataset):
    """Samples that are random numbers; whether it says so of itself is up to the test."""

    def __init__(self, says):
        self.draws_nothing = says

    def __len__(self):
        return 12

    def __getitem__(self, at):
        return torch.rand(1)


def test_only_known_data_sets_go_without_seeds():
    tensors = TensorDataset(torch.zeros(12, 1))
    assert data.draws_nothing(tensors)
    assert data.draws_nothing(Subset(Subset(tensors, range(6)), range(3)))
    assert data.draws_nothing(Drawing(True))
    assert not data.draws_nothing(Drawing(False))
    assert not data.draws_nothing(Drawing("yes"))
    assert not data.draws_nothing(Subset(Drawing(False), range(6)))
    assert not data.draws_nothing([1, 2, 3])


@pytest.mark.parametrize(("says", "moved"), [(False, False), (True, True)])
def test_a_fetch_leaves_the_generators_alone_unless_it_was_told_that_nobody_draws(says, moved):
    """The control shows what the promise is for: one that lies moves the script's own generator."""
    loader = data.EvaluationLoader(
        DataLoader(Drawing(says), batch_size=4), (0, 1), 0, torch.device("cpu")
    )
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert len(list(loader)) == 3
    assert (not torch.equal(before, torch.get_rng_state())) == moved
