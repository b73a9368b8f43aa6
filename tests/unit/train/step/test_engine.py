"""The training step and its boundary in one process, with plain tensors and no process group."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.gang.meshes import Layout
from phalanx.core.training.guards import GuardState, Skip
from phalanx.errors import Diverged, DivergedForGood
from phalanx.train import settings, start
from phalanx.train.gang.context import RankInfo
from phalanx.train.gang.groups import LocalChannel
from phalanx.train.gang.stopping import StopSignal
from phalanx.train.state.saving import Saver
from phalanx.train.step import guard
from phalanx.train.step.guard import StepVerdict, verdict
from phalanx.train.step.policies import RunComponents

pytestmark = pytest.mark.unit


def interval(text):
    return CheckpointPolicy(every=SaveInterval.parse(text))


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.at_s = 1000.0

    def monotonic(self):
        return self.at_s

    def now(self):
        return round(self.at_s * 1e6)


class Records:
    """A report that keeps its records."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def close(self):
        pass

    def of(self, kind):
        return [one for one in self.records if one.kind == kind]


class Connection:
    """The groups of a gang of one."""

    channel = LocalChannel()

    def settle(self):
        pass

    def close(self):
        pass


class Saves(Saver):
    """Checkpoints in memory."""

    saves = True
    estimate_s = 1.0

    def __init__(self):
        self.requests, self.states = [], []

    def save(self, state, request):
        self.requests.append(request)
        self.states.append(state())
        return True

    def wait(self):
        return True

    @property
    def reasons(self):
        return [(one.step, one.why) for one in self.requests]


class Rig:
    """A run of one rank over `x * w`, with loss factors by step."""

    def __init__(self, factors, *, every="1000 steps", info=None, **options):
        torch.manual_seed(0)
        self.report, self.saver, self.clock = Records(), Saves(), Clock()
        self.stop = StopSignal(self.clock)
        self.run = start.assemble(
            RunComponents(
                info=info or RankInfo(checkpoint=interval(every)),
                options=settings.parse(options),
                clock=self.clock,
                connection=Connection(),
                report=self.report,
                saver=self.saver,
                stop=self.stop,
                device=torch.device("cpu"),
                layout=Layout(dp=1),
            )
        )
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        self.opt = torch.optim.SGD(model.parameters(), lr=1.0)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 1, gamma=0.5)
        data = TensorDataset(torch.tensor([[float(one)] for one in factors]))
        self.model, self.opt, self.sched, self.loader = self.run.prepare(
            model, self.opt, self.sched, DataLoader(data, batch_size=1)
        )
        self.seen, self.weights = [], []

    def train(self, each=lambda rig: None, epochs=1):
        for _ in self.run.epochs(epochs):
            for (x,) in self.loader:
                self.seen.append(x.item())
                self.model(x).sum().backward()
                self.opt.step()
                self.sched.step()
                self.opt.zero_grad()
                self.weights.append(self.model.weight.item())
                each(self)
        return self

    def close(self):
        self.run._close()


@pytest.fixture
def rig():
    made = []

    def make(*args, **options):
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


# -- the verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"finite": True}, StepVerdict.ACCEPT),
        ({}, StepVerdict.REPEAT),
        ({"tries": 1}, StepVerdict.REFUSE),
        ({"repeatable": False}, StepVerdict.REFUSE),
        ({"rescaled": True}, StepVerdict.REFUSE),
        ({"guarded": False}, StepVerdict.REFUSE),
    ],
)
def test_a_step_is_accepted_repeated_once_or_refused(facts, expected):
    plain = {"finite": False, "rescaled": False, "guarded": True, "tries": 0, "repeatable": True}
    assert verdict(**{**plain, **facts}) is expected


# -- accept, repeat, refuse ------------------------------------------------------------------------


@pytest.mark.parametrize("saves", [True, False])
def test_a_user_may_ask_for_a_checkpoint_and_each_request_is_answered_once(rig, tmp_path, saves):
    report_file = tmp_path / "r.report"
    one = rig([0.5] * 8, info=RankInfo(report_file=report_file, checkpoint=interval("1000 steps")))
    one.saver.saves = saves

    def ask(rig):
        if len(rig.seen) in (3, 6):
            report_file.with_suffix(".save").write_text(str(len(rig.seen) // 3))

    one.train(ask)
    answers = [(row.request, row.failed) for row in one.report.of("save_begun")]
    assert answers == [(1, not saves), (2, not saves)]
    if saves:
        asked = [step for step, why in one.saver.reasons if why == "asked"]
        assert asked == [row.step for row in one.report.of("save_begun")]


def test_steps_commit_in_order_and_the_last_one_is_saved(rig):
    one = rig([0.5, 0.25]).train()
    assert one.seen == [0.5, 0.25] and one.weights == [0.5, 0.375], "rates 1, then 0.5"
    assert one.run.step == 2 and one.saver.reasons == [(2, "final")]
    assert [record.step for record in one.report.of("step")] == [1, 2]
    assert [(r.step, r.lo, r.hi) for r in one.report.of("ledger")] == [(1, 0, 1), (2, 1, 2)]


def test_a_bad_batch_is_computed_twice_and_left_out_where_skip_is_asked_for(rig):
    one = rig([0.5, math.nan, 0.25], on_non_finite="skip").train()
    assert str(one.seen) == "[0.5, nan, nan, 0.25]"
    assert one.weights == [0.5, 0.5, 0.5, 0.375], "the scheduler did not step for the refused one"
    (told,) = one.report.of("guard")
    assert (told.step, told.origin, told.action) == (2, "data", "skip")
    assert [record.step for record in one.report.of("step")] == [1, 2, 3]


def test_a_fault_of_the_hardware_disappears_and_the_step_is_applied_once(rig, monkeypatch):
    norms = iter([1.0, math.inf, 1.0, 1.0])
    made = rig([0.5, 0.25, 0.125], on_non_finite="skip")
    strategy = made.run._parts.strategy
    monkeypatch.setattr(strategy, "norm", lambda parameters: torch.tensor(next(norms)))
    made.train()
    assert made.seen == [0.5, 0.25, 0.25, 0.125]
    assert made.weights[-1] == 0.5 - 0.5 * 0.25 - 0.25 * 0.125
    (told,) = made.report.of("guard")
    assert (told.action, told.origin) == ("applied", "hardware")


def test_without_a_guard_nothing_is_judged(rig):
    one = rig([math.nan]).train()
    assert math.isnan(one.weights[0]) and not one.report.of("guard")


def test_stop_ends_the_run_for_good_at_the_boundary(rig):
    one = rig([math.inf, 1.0], on_non_finite="stop")
    with pytest.raises(DivergedForGood, match="step 1: gradients were not finite"):
        one.train()
    assert one.seen == [math.inf, math.inf]


def test_rollback_writes_the_batch_to_skip_and_ends_the_generation(rig, tmp_path):
    info = RankInfo(checkpoint=interval("1000 steps"), checkpoint_dir=tmp_path / "store")
    one = rig([0.5, math.inf, 1.0], on_non_finite="rollback", info=info)
    with pytest.raises(Diverged, match="step 2"):
        one.train()
    body = guard_state_of(tmp_path / "store")
    assert body.skips == (Skip(0, 1, 2, 2, "non_finite"),)


def guard_state_of(store):
    from phalanx.train.step.guard_state import GuardStateFile

    found = GuardStateFile(store, RankInfo(), LocalChannel(), Records()).open()
    assert isinstance(found, GuardState)
    return found


def test_buffers_and_generators_of_a_repeated_step_are_put_back():
    norm = nn.BatchNorm1d(2)
    backup = guard.StepBackup()
    backup.take([norm])
    before, drawn = norm.running_mean.clone(), torch.rand(1)
    norm(torch.randn(4, 2))
    backup.put_back()
    assert torch.equal(norm.running_mean, before) and torch.equal(torch.rand(1), drawn)


# -- clip and rate ---------------------------------------------------------------------------------


def test_gradients_are_clipped_after_they_are_judged_and_before_the_rate_applies(rig, monkeypatch):
    order = []
    one = rig([4.0], clip=1.0, on_non_finite="skip")
    parts = one.run._parts
    judge, rate = parts.guard.judge, parts.policies.rate
    grad = lambda: round(one.model.weight.grad.item(), 3)  # noqa: E731
    monkeypatch.setattr(
        parts.guard, "judge", lambda *given: order.append(("judge", grad())) or judge(*given)
    )
    monkeypatch.setattr(
        parts.policies, "rate", lambda opt: order.append(("rate", grad())) or rate(opt)
    )
    one.train()
    assert order == [("judge", 4.0), ("rate", 1.0)]
    assert one.weights == [pytest.approx(0.0, abs=1e-4)]


def test_token_weights_make_the_gradient_a_mean_over_tokens(rig):
    one = rig([0.5, 0.25], accumulate=2)
    for _ in one.run.epochs(1):
        for at, (x,) in enumerate(one.loader):
            one.run.backward(one.model(x).sum(), weight=(3, 1)[at])
            one.opt.step()
            one.opt.zero_grad()
    assert one.model.weight.item() == pytest.approx(1 - (3 * 0.5 + 0.25) / 4)


# -- accumulation and gates ------------------------------------------------------------------------


def test_a_step_takes_all_its_micro_batches_and_schedulers_follow_steps(rig):
    one = rig([0.5, 0.25, 0.125, 0.0625], accumulate=2).train()
    mean = [(0.5 + 0.25) / 2, (0.125 + 0.0625) / 2]
    assert one.weights == [1.0, 1 - mean[0], 1 - mean[0], 1 - mean[0] - 0.5 * mean[1]]
    assert one.run.step == 2 and one.sched.get_last_lr() == [0.25]


def test_clipping_by_hand_inside_an_accumulation_does_nothing(rig):
    one, norms = rig([3.0, 3.0], accumulate=2), []
    for _ in one.run.epochs(1):
        for (x,) in one.loader:
            one.model(x).sum().backward()
            norms.append(one.run.clip_grad_norm_(one.model.parameters(), 1.0).item())
            one.opt.step()
            one.opt.zero_grad()
    assert norms == [0.0, 3.0]


# -- the boundary ----------------------------------------------------------------------------------


def test_saves_by_steps_happen_at_the_next_call_of_the_loader(rig):
    at = []
    rig([0.1] * 5, every="2 steps").train(lambda one: at.append(len(one.saver.requests)))
    assert at == [0, 0, 1, 1, 2], "a save of step 2 comes after the script's own lines"


def test_a_save_holds_the_position_behind_the_step(rig):
    one = rig([0.1] * 3, every="1 step").train()
    assert [(r.step, r.position.consumed) for r in one.saver.requests][:3] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    assert one.saver.states[0]["num_samples"] == 3
    assert one.saver.states[0]["schedulers"][0]["due"] is False


def test_a_requested_save_waits_for_the_boundary_and_between_passes_it_does_not(rig):
    def ask(one):
        if len(one.seen) == 1:
            one.run.checkpoint()
            assert not one.saver.requests

    one = rig([0.1, 0.1]).train(ask)
    assert one.saver.reasons == [(1, "asked"), (2, "final")]
    one.run.checkpoint()
    assert one.saver.reasons[-1] == (2, "asked")


def test_time_asks_for_a_save_one_step_later(rig):
    def pass_time(one):
        one.clock.at_s += 50.0

    one = rig([0.1] * 4, every="2m").train(pass_time)
    assert one.saver.reasons == [(4, "every"), (4, "final")]


def test_a_stop_saves_and_leaves_at_the_boundary(rig):
    def stop(one):
        if len(one.seen) == 2:
            one.stop._arrived(15, None)

    one = rig([0.1] * 9)
    with pytest.raises(SystemExit) as ended:
        one.train(stop)
    assert ended.value.code == 0 and len(one.seen) == 3
    assert one.saver.reasons == [(3, "stop")]
    (left,) = one.report.of("stopped")
    assert (left.saved, left.step) == (True, 3)


def test_a_stop_without_time_to_save_leaves_without(rig):
    def stop(one):
        if len(one.seen) == 1:
            one.stop._arrived(15, None)
            one.clock.at_s += 1e6

    one = rig([0.1] * 9)
    with pytest.raises(SystemExit):
        one.train(stop)
    assert one.saver.reasons == [] and not one.report.of("stopped")[0].saved


def test_a_stop_behind_a_save_of_the_same_step_does_not_save_again(rig):
    def stop(one):
        if len(one.seen) == 2:
            one.stop._arrived(15, None)
            one.run._parts.schedule.resume(3)

    one = rig([0.1] * 9)
    with pytest.raises(SystemExit):
        one.train(stop)
    assert one.saver.reasons == [] and one.report.of("stopped")[0].saved


def test_a_pass_over_the_data_ends_with_a_save_where_epochs_are_counted(rig):
    one = rig([0.1, 0.1], every="1 epoch").train(epochs=2)
    assert one.saver.reasons == [(2, "every"), (4, "every"), (4, "final")]


# -- spikes ----------------------------------------------------------------------------------------


def test_a_loss_that_jumps_ends_the_generation_before_it(rig, tmp_path):
    info = RankInfo(checkpoint=interval("1000 steps"), checkpoint_dir=tmp_path / "store")
    one = rig([0.001] * 40, on_spike="rollback", info=info)

    def log(one):
        one.run.log(loss=1.0 if len(one.seen) != 36 else 1e6)

    with pytest.raises(Diverged, match="the loss jumped"):
        one.train(log)
    suspect = guard_state_of(tmp_path / "store").suspect
    assert suspect is not None and (suspect.lo, suspect.hi) == (suspect.step - 1, suspect.step)
