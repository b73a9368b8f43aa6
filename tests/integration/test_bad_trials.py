"""Every way in which a trial can be bad has a clear status; the study goes on, or ends as configured."""

from __future__ import annotations

from typing import Any

import pytest

from integration.rig import Rig
from integration.test_control_studies import LINE, RANDOM, Bench, loss
from phalanx.errors import SpecInvalid
from phalanx.schemas.api.studies import TrialView
from phalanx.schemas.wire import supervision as wire
from phalanx.store import lineage

pytestmark = pytest.mark.integration
JOB = {
    "run": ["python", "train.py"],
    "recovery": {"user_error": 0, "stalled": 0},
    "resources": {"nodes": 1, "slots_per_node": 1},
}


class BadBench(Bench):
    """Trial 1 goes wrong, the others train."""

    fault = ""

    def train(self, trial: TrialView, **rest: Any) -> None:
        if trial.number != 1 or not self.fault:
            super().train(trial)
            return
        assert trial.job is not None
        attempt = self.rig.job(trial.job).attempts
        supervisor = self.rig.supervisor(trial.job, attempt=attempt)
        supervisor.ready()
        supervisor.started()
        if self.fault in ("nan", "-inf", "no metric"):
            named = {"train_loss": 0.1} if self.fault == "no metric" else {"val_loss": self.fault}
            supervisor.sync(
                wire.TrialReport(
                    seq=supervisor.next_seq(),
                    generation=0,
                    unit=1,
                    value=named.get("val_loss"),  # type: ignore[arg-type]
                    metrics=named,  # type: ignore[arg-type]
                    at=supervisor.now(),
                )
            )
            supervisor.ended(0, "succeeded", step=1)
        else:
            cause = {"crash": "user_error", "hang": "stalled", "refusal": "params_rejected"}
            said = {"crash": "ValueError: lr", "hang": "no step for 5m", "refusal": "lr too high"}
            supervisor.failed(cause=cause[self.fault], message=said[self.fault])
            supervisor.ended(0, "failed")
        supervisor.leave()


@pytest.fixture
def bench(rig: Rig) -> BadBench:
    return BadBench(rig, loss)


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("nan", "diverged", "not_finite: val_loss is not finite at unit 1"),
        ("-inf", "diverged", "not_finite: val_loss is not finite at unit 1"),
        ("crash", "failed", "ValueError: lr"),
        ("hang", "failed", "stalled"),
        ("refusal", "rejected", "lr too high"),
        ("no metric", "failed", "no_metric: it never reported val_loss"),
    ],
)
def test_one_bad_trial_says_what_it_was_and_the_study_goes_on(
    bench: BadBench, fault: str, status: str, said: str
) -> None:
    bench.fault = fault
    num = bench.submit(job=JOB)
    view = bench.go(num)
    assert view.state == "succeeded"
    # A refused trial is replaced, for which this grid has no cell left: that ask has no params.
    tried = [one.status for one in bench.trials(num) if one.params]
    assert sorted(tried) == sorted(["completed"] * 5 + [status])
    bad = bench.trials(num)[1]
    assert bad.status == status and said in bad.reason
    assert view.best is not None and view.best.number != 1
    bench.check_log(num)


def test_a_study_that_allows_no_failure_ends_with_the_first(bench: BadBench) -> None:
    bench.fault = "crash"
    num = bench.submit(job=JOB, trials={"parallel": 2, "failed": {"max": 0}})
    view = bench.go(num)
    assert (view.state, view.reason.code) == ("failed", "too_many_failed")
    assert all(one.is_over for one in bench.trials(num))
    assert len(bench.trials(num)) < 6


def test_params_are_not_tried_twice_and_a_small_space_ends_the_study(bench: BadBench) -> None:
    space = {"lr": {"values": [0.1, 0.2]}, "width": {"values": [1, 2]}}
    num = bench.submit(job=JOB, search=RANDOM, space=space, trials={"max": 9, "parallel": 2})
    view = bench.go(num)
    assert (view.state, view.reason.code) == ("succeeded", "exhausted")
    tried = [(one.params["lr"], one.params["width"]) for one in bench.trials(num) if one.params]
    assert len(tried) == len(set(tried)) == 4


def test_a_space_without_feasible_params_ends_the_study_with_its_reason(bench: BadBench) -> None:
    asked = {"search": RANDOM, "space": LINE, "constraints": ["lr > 5"]}
    num = bench.submit(job=JOB, trials={"max": 3, "parallel": 1}, **asked)
    view = bench.go(num)
    assert (view.state, view.reason.code) == ("failed", "no_result"), view
    assert "constraints" in view.reason.message


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            {f"p{i}": {"values": list(range(10))} for i in range(6)},
            "1000000 cells; a grid has at most",
        ),
        ({"lr": {"log": [0.1, 1.0]}, "width": {"values": [1]}}, "has no end in a grid"),
    ],
)
def test_a_grid_that_explodes_is_refused_before_it_starts(
    bench: BadBench, space: dict[str, Any], said: str
) -> None:
    job = {**JOB, "run": "true"}
    with pytest.raises(SpecInvalid, match=said):
        bench.submit(job=job, space=space, trials={"parallel": 2, "max": 50})


def test_results_that_a_killed_supervisor_did_not_send_are_read_from_its_exit_record(
    bench: BadBench,
) -> None:
    """The last supervisor of a job has no successor that would send them."""
    num = bench.submit(job=JOB)
    bench.loops()
    bench.rig.turn(1.0)
    (trial, *_) = bench.running(num)
    assert trial.job is not None
    supervisor = bench.rig.supervisor(trial.job)
    supervisor.ready()
    supervisor.started()
    at, path = supervisor.now(), "/checkpoints/step-1"
    saved = wire.CheckpointReport(seq=3, generation=0, step=1, path=path, at=at)
    result = wire.TrialReport(
        seq=4, generation=0, unit=1, value=0.5, metrics={"val_loss": 0.5}, at=at, checkpoint=path
    )
    ended = wire.RanksEndedReport(seq=5, generation=0, outcome="succeeded", port=4100, step=1)
    record = wire.ExitRecord(attempt=1, node_rank=0, ended=ended, results=[saved, result])
    bench.rig.executor.bury(supervisor.ref, record)
    bench.rig.turn(1.0)
    bench.loops()
    found = bench.trials(num)[trial.number]
    assert (found.status, found.value) == ("completed", 0.5)
    # Without it the study could not pin the checkpoint, and would not fork from the trial.
    checkpoints = bench.rig.store.view(lambda tx: lineage.checkpoints_of(tx, trial.job))
    assert [one.path for one in checkpoints] == [path]
    bench.check_log(num)
