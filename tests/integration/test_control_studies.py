"""Studies through the API: their trials are ordinary jobs, and a crash changes nothing."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from integration.rig import TOKEN, URL, Rig, ScriptedSupervisor, open_rig
from phalanx.core.search.machine import rebuild
from phalanx.core.search.model import Study, Unpin
from phalanx.errors import PlatformError
from phalanx.kit.clock import ManualClock
from phalanx.schemas.api.cost_prices import PriceRequest
from phalanx.schemas.api.provenance import SourceRequest
from phalanx.schemas.api.studies import StudyView, SubmitStudyRequest, TrialView
from phalanx.schemas.spec.study import validate_study
from phalanx.schemas.wire import supervision as wire
from phalanx.search import SamplerWorker
from phalanx.services.queries import studies as views
from phalanx.services.studies import requests
from phalanx.services.studies.earlier_studies import earlier_studies
from phalanx.services.studies.step import studies_step
from phalanx.services.studies.submit import check_study, submit_study
from phalanx.services.studies.suggestions import suggestions_step
from phalanx.store.schema.provenance import provenance_texts
from phalanx.store.studies import commands, log, rows
from phalanx.testing.executors import FakeExecutor

pytestmark = pytest.mark.integration
RANDOM = {"method": "random", "seed": 7}
LINE = {"lr": {"log": [0.001, 1.0]}, "width": {"values": [1, 2]}}
GRID = {"lr": {"values": [0.1, 0.2, 0.3]}, "width": {"values": [1, 2]}}


def study_spec(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "kind": "study",
        "name": "digits-lr",
        "objective": {"metric": "val_loss"},
        "search": {"method": "grid", "seed": 1},
        "space": GRID,
        "trials": {"parallel": 2},
        "job": {
            "run": ["python", "train.py", "--lr", "${params.lr}"],
            "resources": {"nodes": 1, "slots_per_node": 1},
        },
    }
    return base | changes


class Bench:
    """A control plane with the loops of studies, and trials that report what `loss` says."""

    def __init__(self, rig: Rig, loss: Callable[[dict[str, Any], int], float]) -> None:
        self.rig, self.loss = rig, loss

    def submit(self, **changes: Any) -> int:
        request = SubmitStudyRequest(spec=study_spec(**changes), owner="ada")
        return submit_study(self.rig.platform, request, self.rig.clock.now())

    def loops(self) -> None:
        for _ in range(3):
            suggestions_step(self.rig.platform, self.rig.clock.now())
            studies_step(self.rig.platform, self.rig.clock.now())

    def view(self, num: int) -> StudyView:
        return views.study_view(self.rig.platform, num, self.rig.clock.now())

    def trials(self, num: int) -> list[TrialView]:
        return views.list_trials(
            self.rig.platform, num, self.rig.clock.now(), after=-1, limit=1000, statuses=()
        ).trials

    def running(self, num: int) -> list[TrialView]:
        found = [one for one in self.trials(num) if one.job is not None and not one.is_over]
        return [one for one in found if self.rig.job(one.job).state == "starting"]  # type: ignore[arg-type]

    def train(self, trial: TrialView, **rest: Any) -> None:
        """Start a trial's job, report once and end."""
        assert trial.job is not None
        attempt = self.rig.job(trial.job).attempts
        supervisor = self.rig.supervisor(trial.job, attempt=attempt)
        supervisor.ready()
        supervisor.started()
        value = self.loss(trial.params, 1)
        supervisor.sync(
            wire.TrialReport(
                seq=supervisor.next_seq(),
                generation=0,
                unit=1,
                value=value,
                metrics={"val_loss": value},
                checkpoint="",
                final=False,
                at=supervisor.now(),
            )
        )
        supervisor.ended(0, "succeeded", step=1)
        supervisor.leave()

    def go(self, num: int, rounds: int = 40) -> StudyView:
        for _ in range(rounds):
            self.loops()
            self.rig.turn(1.0)
            for trial in self.running(num):
                self.train(trial)
            self.rig.turn(1.0)
            self.loops()
            if self.view(num).is_terminal:
                break
        return self.view(num)

    def check_log(self, num: int) -> None:
        """The events alone rebuild the study, and its rows follow from it."""

        def read(tx: Any) -> tuple[Study, Study]:
            stored = rows.load(tx, num)
            fresh = rebuild(log.study_log(tx, num, up_to=stored.last_seq))
            return fresh, self.rig.platform.studies.study(tx, stored)

        fresh, kept = self.rig.store.view(read)
        assert fresh == kept
        listed = {one.number: one.status for one in self.trials(num)}
        assert listed == {one.number: one.status.value for one in fresh.trials}


def loss(params: dict[str, Any], unit: int) -> float:
    return abs(params["lr"] - 0.2) + params["width"] / 100


@pytest.fixture
def bench(rig: Rig) -> Bench:
    return Bench(rig, loss)


def test_a_grid_is_searched_to_its_end(bench: Bench) -> None:
    num = bench.submit()
    bench.loops()
    trials = bench.trials(num)
    jobs = [one.job for one in trials if one.job is not None]
    assert len(jobs) == 2  # as many as may run at the same time
    spec = bench.rig.job(jobs[0]).spec
    assert spec is not None and spec["run"][3] == str(trials[0].params["lr"])
    view = bench.go(num)
    assert (view.state, view.trials) == ("succeeded", {"completed": 6})
    assert view.best is not None
    assert (view.best.params, view.best.value) == ({"lr": 0.2, "width": 1}, 0.01)
    trials = bench.rig.client.jobs(algorithm="grid", entry_point="train.py").jobs
    assert {one.study for one in trials} == {num} and len(trials) == 6
    cells = {(one.params["lr"], one.params["width"]) for one in bench.trials(num)}
    assert len(cells) == 6
    assert view.cost.slot_hours > 0
    bench.check_log(num)


def test_trials_have_the_git_state_of_their_study(bench: Bench) -> None:
    token = "ghp_" + "a1B2" * 9
    diff = f"--- a/train.py\n+++ b/train.py\n-key = '{token}'\n+lr = 0.1\n"
    source = SourceRequest(commit="a" * 40, diff_digest="b" * 64, num_changed=1, diff=diff)
    rig = bench.rig
    request = SubmitStudyRequest(spec=study_spec(), owner="ada", source=source)
    num = submit_study(rig.platform, request, rig.clock.now())
    plain = bench.submit()
    bench.loops()
    first, second = (rig.client.provenance(one.job).source for one in bench.trials(num)[:2])
    assert first is not None and first == second
    assert (first.commit, first.num_changed) == ("a" * 40, 1)
    assert "+lr = 0.1" in first.diff and token not in first.diff
    stored = rig.store.view(lambda tx: rows.load(tx, num)).header.submission
    assert token not in json.dumps(stored)
    texts = rig.store.view(lambda tx: tx.conn.execute(provenance_texts.select()).all())
    assert len(texts) == 1
    assert rig.client.provenance(bench.trials(plain)[0].job).source is None


@pytest.fixture
def sampler() -> Iterator[SamplerWorker]:
    with contextlib.closing(SamplerWorker()) as made:
        yield made


@pytest.mark.parametrize(
    "search",
    [
        RANDOM,
        pytest.param({"method": "bayesian", "seed": 7, "init_points": 4}, marks=pytest.mark.extras),
    ],
)
def test_a_crash_between_any_two_commits_loses_and_doubles_nothing(
    tmp_path: Path, sampler: SamplerWorker, search: dict[str, Any]
) -> None:
    """At random commits the process is gone; another one goes on, with the same suggestions."""
    undisturbed: dict[int, dict[str, Any]] = {}
    for seed in range(2):
        executor, clock = FakeExecutor(), ManualClock()
        options: dict[str, Any] = {"executor": executor, "clock": clock, "sampler": sampler}
        dice, crashes, num = random.Random(seed), 0, 0
        with open_rig(tmp_path / str(seed), **options) as rig:
            bench = Bench(rig, loss)
            num = bench.submit(search=search, space=LINE, trials={"max": 12, "parallel": 3})
        for _ in range(400):
            with open_rig(tmp_path / str(seed), **options) as rig:
                bench = Bench(rig, loss)
                if bench.view(num).is_terminal:
                    break
                if seed:
                    crash_at(rig, dice.randrange(1, 8))
                try:
                    bench.go(num)
                except Crash:
                    crashes += 1
        with open_rig(tmp_path / str(seed), **options) as rig:
            bench = Bench(rig, loss)
            view, trials = bench.view(num), bench.trials(num)
            assert (view.state, len(trials)) == ("succeeded", 12)
            assert {one.origin.sampler for one in trials} == {"random", search["method"]}
            found = {one.number: one.params for one in trials}
            jobs = [one.job for one in trials]
            listed = rig.client.jobs(limit=100).jobs
            assert sorted(jobs) == sorted(one.num for one in listed)
            bench.check_log(num)
        assert bool(crashes) == bool(seed)
        undisturbed = undisturbed or found
        assert found == undisturbed


def rig_http(rig: Rig) -> httpx.Client:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.Client(base_url=URL, transport=rig.transport, headers=headers)


class Crash(BaseException):
    """The process is gone."""


def crash_at(rig: Rig, commit: int) -> None:
    """Have the process end before or behind commit number `commit` of studies."""
    real, seen = rig.store.transact, [0]

    def transact(work: Any) -> Any:
        if "transact_studies" not in work.__qualname__:
            return real(work)
        seen[0] += 1
        if seen[0] == commit:
            raise Crash
        result = real(work)
        if seen[0] == commit - 1 and commit % 2:
            raise Crash  # committed, and not known in this process
        return result

    rig.store.transact = transact  # type: ignore[method-assign]


def test_studies_through_the_api(bench: Bench) -> None:
    rig = bench.rig
    body = {"spec": study_spec(), "owner": "ada"}
    with rig_http(rig) as http:
        checked = http.post("/api/v1/studies/check", json=body).json()
        assert (checked["max_trials"], checked["num_cells"], checked["slots_per_trial"]) == (
            6,
            6,
            1,
        )
        key = {"Idempotency-Key": "one"}
        made = [http.post("/api/v1/studies", json=body, headers=key).json() for _ in range(2)]
        assert [one["study"]["label"] for one in made] == ["s-1", "s-1"]
        bench.loops()
        assert http.post("/api/v1/studies/1/pause").json()["state"] == "paused"
        bench.loops()
        jobs = [rig.job(one.job).state for one in bench.trials(1) if one.job is not None]
        assert set(jobs) == {"paused"}
        assert http.post("/api/v1/studies/1/resume").json()["state"] == "running"
        added = {"params": {"lr": 0.5, "width": 1}}
        refused = http.post("/api/v1/studies/1/trials", json=added)
        assert refused.status_code == 422 and "0.5" in refused.text
        assert bench.go(1).state == "succeeded"
        page = http.get("/api/v1/studies/1/trials", params={"limit": 4}).json()
        assert [one["number"] for one in page["trials"]] == [0, 1, 2, 3]
        assert http.get("/api/v1/studies", params={"state": "succeeded"}).json()["studies"]
        events = http.get("/api/v1/studies/1/events").json()
        assert events["done"] and events["events"][0]["kind"] == "study_submitted"
        gone = http.get("/api/v1/studies/9")
        assert gone.status_code == 404 and "s-9" in gone.text
        again = http.post("/api/v1/studies/1/stop")
        assert again.status_code == 409
    bench.check_log(1)


def test_a_stopped_study_stops_its_trials(bench: Bench) -> None:
    num = bench.submit()
    bench.loops()
    requests.stop_study(bench.rig.platform, num, bench.rig.clock.now(), "user")
    bench.loops()
    assert {one.status for one in bench.trials(num)} == {"stopped"}
    states = {rig_job.state for rig_job in bench.rig.client.jobs().jobs}
    assert states == {"cancelled"}
    assert (bench.view(num).state, bench.view(num).reason.code) == ("cancelled", "stop_requested")
    bench.check_log(num)


def test_a_stop_that_lets_trials_finish_through_the_api(bench: Bench) -> None:
    num = bench.submit()
    bench.loops()
    begun = {one.number for one in bench.trials(num) if one.job is not None}
    with rig_http(bench.rig) as http:
        assert http.post(f"/api/v1/studies/{num}/pause").json()["state"] == "paused"
        refused = http.post(f"/api/v1/studies/{num}/stop", params={"finish": True})
        assert refused.status_code == 409 and "`resume` it first" in refused.text
        http.post(f"/api/v1/studies/{num}/resume")
        for _ in range(2):  # may be repeated
            answer = http.post(f"/api/v1/studies/{num}/stop", params={"finish": True}).json()
            assert (answer["state"], answer["reason"]["code"]) == ("running", "stop_requested")
    view = bench.go(num)
    assert (view.state, view.reason.code) == ("succeeded", "stop_requested")
    assert {one.number for one in bench.trials(num) if one.status == "completed"} == begun
    bench.check_log(num)


def test_a_trial_that_a_user_cancels_ends_and_the_study_goes_on(bench: Bench) -> None:
    num = bench.submit()
    bench.loops()
    first = bench.trials(num)[0]
    assert first.job is not None
    bench.rig.client.stop(first.job)
    view = bench.go(num)
    assert (view.state, view.trials) == ("succeeded", {"completed": 5, "stopped": 1})
    assert "cancel_requested: by user" in bench.trials(num)[0].reason


def test_what_a_study_cannot_do_is_refused_at_once(bench: Bench) -> None:
    search = {"method": "tpe", "warm_start": ["s-1"]}
    with pytest.raises(PlatformError, match=r"search\.warm_start"):
        bench.submit(search=search, trials={"max": 3, "parallel": 1})
    with pytest.raises(PlatformError, match=r"job\.resources"):
        bench.submit(job={"run": "x", "resources": {"nodes": 99, "slots_per_node": 1}})


def test_a_study_learns_from_an_earlier_one_of_its_project(bench: Bench) -> None:
    bench.go(bench.submit())
    fewer = GRID | {"lr": {"values": [0.1, 0.2]}}
    search = {"method": "auto", "warm_start": ["digits-lr"]}
    changes: dict[str, Any] = {"search": search, "space": fewer, "trials": {"max": 4}}
    request = SubmitStudyRequest(spec=study_spec(**changes), owner="ada")
    (told,) = check_study(bench.rig.platform, request).warm_start
    assert (told.study, told.trials, told.dropped) == ("s-1", 4, 2)
    bench.go(num := bench.submit(**changes))
    origins = [one.origin.sampler for one in bench.trials(num)]
    assert origins[:3] == ["warm_start"] * 3 and "warm_start" not in origins[3:]
    assert bench.trials(num)[0].params == {"lr": 0.2, "width": 1}
    bench.check_log(num)
    for said, spec in {
        "no such study in project b": study_spec(**changes, job={"run": "x", "project": "b"}),
        "was to minimize val_loss, this one": study_spec(**changes, objective={"metric": "acc"}),
        "none of the 6 trials of s-1": study_spec(**changes | {"space": {"lr": {"int": [5, 9]}}}),
    }.items():
        later = validate_study(spec | {"search": search | {"warm_start": ["s-1"]}})
        project = (later.job or {}).get("project", "default")
        with pytest.raises(PlatformError, match=said):
            earlier_studies(bench.rig.platform, later, project)


@pytest.mark.parametrize(
    ("goal", "broken"), [("minimize", "nan"), ("maximize", "inf"), ("minimize", "-inf")]
)
def test_a_value_that_is_not_finite_ends_its_trial_and_is_never_the_best(
    bench: Bench, broken: str, goal: str
) -> None:
    bench.loss = lambda params, unit: broken if params["lr"] == 0.1 else params["lr"]  # type: ignore
    space = {"lr": {"values": [0.1, 0.2, 0.3]}}
    num = bench.submit(objective={"metric": "val_loss", "goal": goal}, space=space)
    view = bench.go(num)
    assert (view.state, view.trials) == ("succeeded", {"completed": 2, "diverged": 1})
    (lost,) = (one for one in bench.trials(num) if one.status == "diverged")
    assert "not_finite: val_loss is not finite at unit 1" in lost.reason and lost.value is None
    assert view.best is not None and view.best.params["lr"] != 0.1
    bench.check_log(num)


def test_a_report_that_comes_with_the_end_between_look_and_decision_counts(bench: Bench) -> None:
    """Results and the end of a trial are stored at once, beside the loop of studies."""
    num = bench.submit(trials={"parallel": 1})
    bench.loops()
    bench.rig.turn(1.0)
    (trial,) = bench.running(num)
    real, looks = bench.rig.store.view, [0]

    def view(work: Any) -> Any:
        found = real(work)
        looks[0] += 1
        if looks[0] == 1:
            bench.train(trial)
            bench.rig.turn(1.0)
        return found

    bench.rig.store.view = view  # type: ignore[method-assign]
    bench.rig.platform.studies.note({trial.job or 0})
    studies_step(bench.rig.platform, bench.rig.clock.now())
    bench.rig.store.view = real  # type: ignore[method-assign]
    bench.loops()
    after = bench.trials(num)[trial.number]
    assert (after.status, after.value) == ("completed", loss(trial.params, 1))
    bench.check_log(num)


def test_failures_of_infrastructure_never_count_against_a_trial(bench: Bench) -> None:
    lost: list[int] = []
    real = bench.train

    def train(trial: TrialView, **rest: Any) -> None:
        if trial.number != 0 or len(lost) == 3:
            return real(trial)
        assert trial.job is not None
        lost.append(trial.job)
        supervisor = bench.rig.supervisor(trial.job)
        supervisor.ready()
        supervisor.started()
        bench.rig.clock.advance(10)
        supervisor.failed(message="the disk is full", cause="final_checkpoint_not_saved")
        supervisor.ended(0, "failed")
        return supervisor.leave()

    bench.train = train  # type: ignore[method-assign]
    num = bench.submit(trials={"parallel": 2, "failed": {"max": 0}})
    view = bench.go(num)
    assert (view.state, view.trials) == ("succeeded", {"completed": 6})
    assert len(set(lost)) == 3 and bench.trials(num)[0].job not in lost
    # What the three lost jobs held, 11 s of one slot each, is the trial's waste, and the study's.
    waste = [one.waste and one.waste.lost_to_failure for one in bench.trials(num)]
    assert waste == [33.0, 0, 0, 0, 0, 0]
    assert view.cost.lost_to_failure_slot_hours == pytest.approx(33 / 3600)
    why = bench.rig.client.why(lost[0]).trial
    assert why.startswith(
        f"s-1/0 is completed (ended_by_itself), now in j-{bench.trials(num)[0].job}"
    )
    assert why.endswith("s-1 is succeeded (all_trials_ended)")
    bench.check_log(num)


def test_the_money_of_a_study_is_that_of_the_ledger_at_the_prices_of_each_time(
    bench: Bench,
) -> None:
    costs = bench.rig.client.costs
    costs.set_prices([PriceRequest(usd=Decimal(3600))])
    num = bench.submit()
    bench.loops()
    bench.rig.turn(1.0)
    for trial in bench.running(num):
        bench.train(trial)
    bench.rig.turn(1.0)
    costs.set_prices([PriceRequest(usd=Decimal(36))])
    view = bench.go(num)
    assert view.state == "succeeded"
    ledger = costs.report("study", study=num).total
    assert view.cost.usd == pytest.approx(float(ledger.usd or 0), abs=1e-5) and view.cost.usd > 0
    assert 0.01 * ledger.held < view.cost.usd < ledger.held
    mine = [one.usd for one in bench.trials(num)]
    assert sum(mine) == pytest.approx(view.cost.usd)
    assert max(mine) > 50 * min(mine) > 0


def test_a_budget_ends_a_study_while_its_trials_run(bench: Bench) -> None:
    """Trials that neither report nor end use slots all the same."""
    num = bench.submit(budget={"slot_hours": 0.1})
    bench.loops()
    bench.rig.turn(1.0)
    for trial in bench.running(num):
        supervisor = bench.rig.supervisor(trial.job or 0)
        supervisor.ready()
        supervisor.started()
    for _ in range(20):
        studies_step(bench.rig.platform, bench.rig.clock.advance(10.0))
    # Two trials of one slot each have 360 slot-seconds: 180 seconds.
    assert bench.view(num).state in ("stopping", "succeeded")
    assert bench.view(num).reason.code == "slot_hours_spent"
    assert 0.1 <= bench.view(num).cost.slot_hours < 0.12
    told = [one for one in study_events(bench, num) if one.kind == "budget_spent"]
    assert 5 < len(told) <= 51
    bench.check_log(num)


def study_events(bench: Bench, num: int) -> list[Any]:
    return views.study_event_page(bench.rig.platform, num, after=0).events


def test_values_of_secret_variables_reach_trials_and_no_database(bench: Bench) -> None:
    job = {"run": "true", "env": {"API_TOKEN": "tok-12345", "PLAIN": "1"}}
    num = bench.submit(job=job | {"resources": {"nodes": 1, "slots_per_node": 1}})
    bench.loops()
    (first, *_) = bench.trials(num)
    assert first.job is not None
    home = bench.rig.platform.home
    for path in (home.study_secrets_file(num), home.job_secrets_file(first.job)):
        assert path.stat().st_mode & 0o777 == 0o600 and "tok-12345" in path.read_text()
    for part in home.database_file.parent.iterdir():
        assert b"tok-12345" not in part.read_bytes()


def test_rungs_pause_trials_and_only_the_best_go_on(bench: Bench) -> None:
    """Trials leave their slots at a rung; the best third trains to the next one from there."""
    rungs = {"rule": "asha", "min": 1, "max": 3, "eta": 3, "hold": "never"}
    num = bench.submit(search=RANDOM, space=LINE, trials={"max": 9, "parallel": 3}, rungs=rungs)
    for _ in range(60):
        bench.loops()
        bench.rig.turn(1.0)
        for trial in bench.running(num):
            _train_to_target(bench, trial)
        bench.rig.turn(1.0)
        bench.loops()
        if bench.view(num).is_terminal:
            break
    view = bench.view(num)
    assert view.state == "succeeded"
    found = sorted(bench.trials(num), key=lambda one: loss(one.params, 1))
    whole = [one.number for one in found if one.unit == 3]
    assert 3 <= len(whole) < 9 and found[0].number in whole
    assert view.best is not None and view.best.number == found[0].number
    assert [(one.until, one.reported) for one in view.rungs] == [(1, 9), (3, len(whole))]
    resumed = bench.rig.job(found[0].job or 0)
    assert resumed.attempts == 2
    bench.check_log(num)


def _train_to_target(bench: Bench, trial: TrialView) -> None:
    """Report at the target of a trial, and leave there."""
    assert trial.job is not None and trial.until is not None
    attempt = bench.rig.job(trial.job).attempts
    supervisor = bench.rig.supervisor(trial.job, attempt=attempt)
    supervisor.ready()
    supervisor.started()
    value = bench.loss(trial.params, trial.until)
    supervisor.sync(
        wire.TrialReport(
            seq=supervisor.next_seq(),
            generation=0,
            unit=trial.until,
            value=value,
            metrics={"val_loss": value},
            checkpoint=f"/c/{trial.until}",
            final=True,
            at=supervisor.now(),
        )
    )
    if trial.until == 3:
        supervisor.ended(0, "succeeded", step=3)
    else:
        supervisor.ended(0, "at_target", step=trial.until, target=trial.until)
    supervisor.leave()


def test_a_held_trial_that_is_promoted_goes_on_in_the_same_life(bench: Bench) -> None:
    """Its supervisor, which was never told to leave, hears of the next target."""
    rungs = {"rule": "asha", "min": 1, "max": 3, "eta": 3, "hold": "1m"}
    num = bench.submit(search=RANDOM, space=LINE, trials={"max": 3, "parallel": 3}, rungs=rungs)
    bench.loops()
    bench.rig.turn(1.0)
    found = sorted(bench.running(num), key=lambda one: loss(one.params, 1), reverse=True)
    alive = {one.number: bench.rig.supervisor(one.job or 0) for one in found}
    for trial in found:  # the best one reports last, while the others hold their slots
        supervisor = alive[trial.number]
        supervisor.ready()
        supervisor.started()
        supervisor.sync(reported(supervisor, 1, loss(trial.params, 1)))
        bench.loops()
    best = bench.trials(num)[found[-1].number]
    assert (best.status, best.until) == ("running", 3)
    assert alive[best.number].sync().orders.until == 3
    for one in bench.trials(num):
        job = bench.rig.job(one.job or 0)
        assert (job.state, job.attempts) == ("running", 1)
    assert {one.status for one in bench.trials(num)} == {"running", "held"}
    bench.check_log(num)


def test_a_job_that_ends_while_a_command_for_its_trial_is_open_is_looked_at_again(
    bench: Bench,
) -> None:
    num = bench.submit(search=RANDOM, space=LINE, trials={"max": 1, "parallel": 1})
    bench.loops()
    bench.rig.turn(1.0)
    bench.train(bench.running(num)[0])
    now = bench.rig.clock.now()
    unpin = Unpin(0, "/c/earlier")
    bench.rig.store.transact(lambda tx: commands.add(tx, [(num, 1, unpin)], now))
    bench.rig.turn(1.0)
    bench.loops()
    assert bench.trials(num)[0].status == "completed"
    assert bench.view(num).is_terminal


def reported(supervisor: ScriptedSupervisor, unit: int, value: float) -> wire.TrialReport:
    return wire.TrialReport(
        seq=supervisor.next_seq(),
        generation=0,
        unit=unit,
        value=value,
        metrics={"val_loss": value},
        checkpoint=f"/c/{unit}",
        final=False,
        at=supervisor.now(),
    )


def test_a_suggestion_without_a_model_reads_no_log_of_its_study(bench: Bench) -> None:
    """However long the study is: it reads its ask, the row of the study, and writes the answer."""
    num = bench.submit(search=RANDOM, space=LINE, trials={"max": 12, "parallel": 2})
    statements: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    counted: list[int] = []
    for _ in range(5):
        bench.loops()
        bench.rig.turn(1.0)
        for trial in bench.running(num):
            bench.train(trial)
        bench.rig.turn(1.0)
        # Both trials have ended: the study has events behind the asks of the first one.
        studies_step(bench.rig.platform, bench.rig.clock.now())
        event.listen(bench.rig.store._engine, "before_cursor_execute", note)
        suggestions_step(bench.rig.platform, bench.rig.clock.now())
        event.remove(bench.rig.store._engine, "before_cursor_execute", note)
        counted.append(len(statements))
        assert not [one for one in statements if "FROM study_events" in one]
        assert not [one for one in statements if "FROM trials" in one]
        statements.clear()
    assert len(set(counted[:-1])) == 1 and counted[0] > 3, counted


# -- evaluators outside the platform -------------------------------------------------------------

OUTSIDE: dict[str, Any] = {"space": LINE, "job": None, "trials": {"max": 8}}


def ask(rig: Rig, num: int, **rest: Any) -> dict[str, Any]:
    """Ask with the sampler's loop in between, as a server with its loops does."""
    key = {"Idempotency-Key": rest.pop("key")} if "key" in rest else None
    with rig_http(rig) as http:
        for _ in range(2):
            answer = http.post(f"/api/v1/studies/{num}/ask", json=rest, headers=key)
            assert answer.status_code == 200, answer.text
            if not key:
                break
            suggestions_step(rig.platform, rig.clock.now())
        found: dict[str, Any] = answer.json()
        return found


def post(rig: Rig, path: str, body: dict[str, Any]) -> httpx.Response:
    with rig_http(rig) as http:
        return http.post(f"/api/v1/studies/{path}", json=body)


def test_an_evaluator_outside_asks_and_tells_each_trial_once(bench: Bench) -> None:
    rig = bench.rig
    num = bench.submit(search=RANDOM, **OUTSIDE)
    first = ask(rig, num, key="a", count=3, evaluator="laptop")
    again = ask(rig, num, key="a", count=3, evaluator="laptop")
    assert first == again and [one["number"] for one in first["trials"]] == [0, 1, 2]
    assert {one["reason"] for one in first["trials"]} == {"runs: at evaluator laptop"}
    for one in first["trials"]:
        for value in (0.5 + one["number"], 0.1):  # the second is a duplicate, and changes nothing
            told = post(rig, f"{num}/trials/{one['number']}/tell", {"value": value})
            assert (told.status_code, told.json()["value"]) == (200, 0.5 + one["number"])
    ask(rig, num, key="b", count=9)
    assert post(rig, f"{num}/trials/3/tell", {"value": None}).json()["status"] == "diverged"
    failed = {"outcome": "failed", "reason": "out of memory"}
    assert post(rig, f"{num}/trials/4/tell", failed).json()["reason"] == "job_failed: out of memory"
    assert post(rig, f"{num}/trials/5/tell", {"outcome": "rejected"}).json()["status"] == "rejected"
    for number in (6, 7):
        post(rig, f"{num}/trials/{number}/tell", {"value": 5.0})
    # A rejected trial does not count, so there is one more.
    (last,) = ask(rig, num, key="c", count=9)["trials"]
    post(rig, f"{num}/trials/{last['number']}/tell", {"value": 7.0})
    view = bench.view(num)
    assert (view.state, view.best and view.best.number) == ("succeeded", 0)
    assert ask(rig, num, key="d") | {"cursor": 0} == {
        "trials": [], "waiting": 0, "done": True, "state": "succeeded", "cursor": 0,
    }  # fmt: skip
    bench.check_log(num)


def test_a_trial_that_is_never_told_goes_to_the_next_evaluator(bench: Bench) -> None:
    rig = bench.rig
    num = bench.submit(search=RANDOM, **OUTSIDE)
    (lost,) = ask(rig, num, key="a", lease_s=60, evaluator="lost")["trials"]
    rig.clock.advance(50)
    assert post(rig, f"{num}/trials/0/report", {"unit": 1, "value": 3.0}).status_code == 200
    rig.clock.advance(50)
    studies_step(rig.platform, rig.clock.now())
    assert bench.trials(num)[0].status == "running"  # the report began the lease anew
    rig.clock.advance(11)
    studies_step(rig.platform, rig.clock.now())
    assert bench.trials(num)[0].reason == "evaluator_silent: lost was silent for 60 s"
    (taken,) = ask(rig, num, key="b", lease_s=60, evaluator="other")["trials"]
    assert taken["params"] == lost["params"] and taken["number"] == 0
    # Both tell: the first result stands, whichever evaluator it comes from.
    for value in (1.0, 2.0):
        assert post(rig, f"{num}/trials/0/tell", {"value": value}).json()["value"] == 1.0
    for _ in range(3):
        (one,) = ask(rig, num, lease_s=60, key=str(rig.clock.now()))["trials"]
        assert one["number"] == 1
        rig.clock.advance(61)
        studies_step(rig.platform, rig.clock.now())
    assert bench.trials(num)[1].status == "failed"
    ask(rig, num, lease_s=60, key="c")
    requests.pause_study(rig.platform, num, rig.clock.now(), "user")
    rig.clock.advance(61)
    studies_step(rig.platform, rig.clock.now())
    assert bench.trials(num)[2].status == "suggested"
    assert ask(rig, num, key="d")["trials"] == []  # the study is paused
    bench.check_log(num)


def test_trials_outside_stop_at_rungs_and_only_where_asked_for(bench: Bench) -> None:
    rig = bench.rig
    rungs = {"rule": "median", "min": 1, "max": 9, "min_results": 2}
    num = bench.submit(search=RANDOM, rungs=rungs, **OUTSIDE)
    found = ask(rig, num, key="a", count=4)["trials"]
    said = [
        post(rig, f"{num}/trials/{one['number']}/report", {"unit": 1, "value": one["number"]})
        for one in found
    ]
    assert [one.json()["status"] for one in said] == ["running", "running", "stopped", "stopped"]
    assert post(rig, f"{num}/trials/7/tell", {"value": 1}).status_code == 404
    with_jobs = bench.submit()
    assert post(rig, f"{with_jobs}/ask", {}).status_code == 409
    with pytest.raises(PlatformError, match=r"rungs\.type"):
        bench.submit(search=RANDOM, rungs={"max": 9}, **OUTSIDE)
    bench.check_log(num)


def test_suggestions_for_evaluators_outside_survive_crashes(
    tmp_path: Path, sampler: SamplerWorker
) -> None:
    """The process ends at random commits; each evaluator repeats its request, and gets the same trial."""
    search = {"method": "tpe", "seed": 7}
    outcomes = []
    for seed in range(2):
        options: dict[str, Any] = {
            "executor": FakeExecutor(), "clock": ManualClock(), "sampler": sampler,
        }  # fmt: skip
        dice, steps, num = random.Random(seed), 0, 0
        with open_rig(tmp_path / str(seed), **options) as rig:
            num = Bench(rig, loss).submit(search=search, **OUTSIDE | {"trials": {"max": 14}})
        crashes, done = 0, False
        while not done:
            with open_rig(tmp_path / str(seed), **options) as rig:
                bench = Bench(rig, loss)
                if seed:
                    crash_at(rig, dice.randrange(1, 6))
                try:
                    while not (done := bench.view(num).is_terminal):
                        for one in ask(rig, num, key=f"k{steps}", evaluator="one")["trials"]:
                            value = loss(one["params"], 1)
                            post(rig, f"{num}/trials/{one['number']}/tell", {"value": value})
                        steps += 1
                except Crash:
                    crashes += 1
        with open_rig(tmp_path / str(seed), **options) as rig:
            found = Bench(rig, loss).trials(num)
            Bench(rig, loss).check_log(num)
        assert bool(crashes) == bool(seed) and len(found) == 14
        outcomes.append([(one.number, one.params, one.value) for one in found])
    assert outcomes[0] == outcomes[1]


# -- results -------------------------------------------------------------------------------------


def test_results_say_what_mattered_and_what_stopping_saved(bench: Bench) -> None:
    """Only `lr` decides; half of the trials end at a third of their way, and one has no value."""
    rig = bench.rig
    space = LINE | {"noise": {"float": [0, 1]}}
    num = bench.submit(search=RANDOM, space=space, job=None, trials={"max": 30})
    for one in ask(rig, num, key="a", count=29)["trials"]:
        value = abs(one["params"]["lr"] - 0.01)
        post(rig, f"{num}/trials/{one['number']}/tell", {"value": value})
    before = bench.view(num)
    assert before.eta_at is None or before.started_at is not None
    (last,) = ask(rig, num, key="b")["trials"]
    post(rig, f"{num}/trials/{last['number']}/tell", {"value": None})
    with rig_http(rig) as http:
        found = http.get(f"/api/v1/studies/{num}/results").json()
    assert found["axes"][0]["name"] == "lr" and found["axes"][0]["log"]
    assert sum(one["importance"] for one in found["axes"]) == pytest.approx(1.0)
    assert len(found["lines"]) == 29, "a trial without a value is no line"
    (best,) = [one for one in found["lines"] if one["trial"] == found["study"]["best"]["number"]]
    assert (
        best["value"] == found["study"]["best"]["value"] == min(x["value"] for x in found["lines"])
    )
    assert all(0 <= place <= 1 for one in found["lines"] for place in one["places"])


def test_the_expected_end_and_what_stopping_saved(bench: Bench) -> None:
    rungs = {"rule": "asha", "min": 1, "max": 3, "eta": 3, "hold": "never"}
    num = bench.submit(search=RANDOM, space=LINE, trials={"max": 9, "parallel": 3}, rungs=rungs)
    eta = []
    for _ in range(60):
        bench.loops()
        bench.rig.turn(1.0)
        for trial in bench.running(num):
            _train_to_target(bench, trial)
        bench.rig.turn(1.0)
        bench.loops()
        view = bench.view(num)
        if view.is_terminal:
            break
        eta.append(view.eta_at)
    now = bench.rig.clock.now() / 1e6
    assert view.eta_at is None and any(eta)
    assert abs(next(one for one in eta if one).timestamp() - now) < 60
    ended = [one for one in bench.trials(num) if one.status == "stopped"]
    used_s = sum(one.slot_s for one in bench.trials(num))
    units = sum(one.unit or 0 for one in bench.trials(num))
    saved = sum(3 - (one.unit or 0) for one in ended) * used_s / units / 3600
    assert saved > 0 and view.cost.saved_slot_hours == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize(
    ("metrics", "status", "reason"),
    [
        (
            {"loss": 0.5, "acc": 0.1},
            "failed",
            "no_metric: it never reported val_loss, only acc, loss",
        ),
        ({}, "failed", "no_metric: it never reported val_loss"),
        ({"val_loss": float("nan")}, "diverged", "not_finite: val_loss is not finite at unit 1"),
    ],
)
def test_a_trial_without_a_usable_objective_says_so(
    bench: Bench, metrics: dict[str, float], status: str, reason: str
) -> None:
    num = bench.submit(trials={"max": 6, "parallel": 1})
    bench.loops()
    bench.rig.turn(1.0)
    (trial,) = bench.running(num)
    supervisor = bench.rig.supervisor(trial.job or 0, attempt=1)
    supervisor.ready()
    supervisor.started()
    if metrics:
        supervisor.sync(
            wire.TrialReport(
                seq=supervisor.next_seq(),
                generation=0,
                unit=1,
                value=metrics.get("val_loss"),
                metrics=metrics,
                checkpoint="",
                final=False,
                at=supervisor.now(),
            )
        )
    bench.loops()
    supervisor.ended(0, "succeeded", step=1)
    supervisor.leave()
    bench.rig.turn(1.0)
    bench.loops()
    first = bench.trials(num)[0]
    assert (first.status, first.reason) == (status, reason)
    assert bench.view(num).best is None
