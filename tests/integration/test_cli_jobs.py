"""What `phalanx ps` lists, and what `phalanx scheduler policy` says."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from integration.rig import Rig
from phalanx.cli.app import app
from phalanx.cli.verbs import jobs, pools
from phalanx.cli.verbs.jobs import _LIVE, _OVER, _current
from phalanx.core.jobs.model import TERMINAL, JobState
from phalanx.errors import UserError
from phalanx.schemas.api.cost_prices import PriceRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.store.schema.listings import job_listing

pytestmark = pytest.mark.integration


def test_a_job_that_runs_for_long_is_listed_however_many_came_after_it(rig: Rig) -> None:
    first = rig.submit()
    rig.turn()
    later = [rig.submit() for _ in range(12)]
    for num in later:
        rig.client.stop(num)
    assert [one.num for one in rig.client.jobs(limit=8).jobs if not one.is_terminal] == []
    assert [one.num for one in _current(rig.client, 8)] == [*later[:-6:-1], first]
    assert [one.num for one in _current(rig.client, 1)] == [first]


def test_every_state_is_one_of_the_two() -> None:
    assert {*_LIVE, *_OVER} == set(JobState) and set(_OVER) == TERMINAL


def test_the_policy_is_shown_set_and_reset(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "connected", lambda ctx: nullcontext(rig.client))

    def policy(*words: str) -> str:
        done = CliRunner().invoke(app, ["scheduler", "policy", *words], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    assert "no: the policy of the start is in effect" in policy("show")
    said = policy("set", "fair")
    assert "fair: shorter longest waits" in said and "by user" in said
    found = json.loads(policy("show", "--json"))
    assert (found["policy"], found["source"], found["start"]) == ("fair", "stored", "throughput")
    assert json.loads(policy("reset", "--json"))["policy"] == "throughput"


def _ended(rig: Rig, **changes: object) -> int:
    """A job with a failure that ran on and succeeded; 60 s in the queue, and 20 s of training."""
    num = rig.submit(**changes)
    rig.clock.advance(60)
    rig.turn(4)
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    rig.clock.advance(10)
    supervisor.failed()
    supervisor.ended(0, "failed", step=1)
    rig.clock.advance(2)
    supervisor.started(1)
    saved = wire.CheckpointReport(
        seq=supervisor.next_seq(),
        generation=1,
        at=supervisor.now(),
        step=2,
        epoch=0,
        path="/c/2",
        size_bytes=1,
        took_s=0.1,
        metrics={"acc": 0.75},
    )
    supervisor.sync(saved)
    rig.clock.advance(8)
    supervisor.ended(1, "succeeded", step=2)
    supervisor.leave()
    rig.turn(2)
    return num


def _set_image(rig: Rig, num: int, image: str) -> None:
    said = job_listing.update().where(job_listing.c.num == num).values(image=image)
    rig.store.transact(lambda tx: tx.conn.execute(said))


def test_jobs_are_found_by_cost_metric_times_cause_and_image(rig: Rig) -> None:
    rig.client.costs.set_prices([PriceRequest(usd="3600")])
    keep = {"keep": {"best": {"metric": "acc"}}}
    num = _ended(rig, checkpoint=keep)
    waiting = rig.submit()
    # No pool of this machine runs containers.
    _set_image(rig, num, "ghcr.io/acme/train:1")
    view = rig.client.jobs(sort="-usd").jobs[0]
    assert (view.num, view.cause, view.image) == (num, "rank_crash", "ghcr.io/acme/train:1")
    assert (view.queue_s, view.duration_s) == (64.0, 22.0)
    assert (view.metric, view.best_metric, view.num_nodes) == ("acc", 0.75, 1)
    assert view.usd == rig.job(num).usd == rig.job(num).cost.usd

    def nums(**wanted: object) -> list[int]:
        return [one.num for one in rig.client.jobs(**wanted).jobs]

    matching = (
        {"min_usd": "0.01"},
        {"max_usd": "1000", "min_usd": "0.01"},
        {"min_queue_s": 30, "max_queue_s": 90},
        {"min_duration_s": 15, "max_duration_s": 25},
        {"cause": "rank_crash"},
        {"reason": "completed"},
        {"image": "ghcr.io/*"},
        {"metric": "acc", "min_metric_value": 0.7, "max_metric_value": 0.8},
        {"min_nodes": 1, "max_nodes": 1, "min_restarts": 1},
        {"started_to": view.ended_at, "ended_from": view.started_at},
    )
    for wanted in matching:
        assert nums(**wanted) == [num], wanted
    assert nums(trials=True) == [] and nums(trials=False) == [waiting, num]
    rig.turn()
    assert nums(reason="waiting_for_slots", states=["queued"]) == []
    for wanted, said in (
        ({"cause": "rank_crsh"}, "rank_crash"),
        ({"reason": "x"}, "should be"),
        ({"min_usd": 2, "max_usd": 1}, "min_usd is above max_usd"),
        ({"started_from": view.ended_at, "started_to": view.started_at}, "is above started_to"),
        ({"min_nodes": -1}, "greater than or equal to 0"),
        ({"sort": "-price"}, "cannot be sorted by 'price'"),
        ({"colour": "red"}, "colour"),
    ):
        with pytest.raises(UserError, match=said):
            rig.client.jobs(**wanted)


def test_ps_filters_and_shows_what_it_sorts_by(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "connected", lambda ctx: nullcontext(rig.client))
    first, second = rig.submit(priority=10), rig.submit(priority=70)
    _set_image(rig, first, "img:1")

    def ps(*words: str) -> str:
        done = CliRunner().invoke(app, ["ps", *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout

    def nums(*words: str) -> list[int]:
        return [one["num"] for one in json.loads(ps("--json", *words))]

    assert nums("--filter", "image=img:*") == [first]
    assert nums("--filter", "priority>=50", "--filter", "submitted>=2001-01-01T00:00Z") == [second]
    assert nums("--filter", "submitted<2001-01-01T00:00") == nums("--filter", "duration>=1s") == []
    third = rig.submit(run="torchrun ./main.py", data={"train": "/data/imagenet"})
    assert nums("--filter", "entry_point=main.*") == nums("--filter", "data=/data/*") == [third]
    assert nums("--filter", "data=/DATA/*") == nums("--filter", "algorithm=tpe") == []
    (shown,) = json.loads(ps("--json", "--filter", "data=/data/imagenet"))
    assert (shown["entry_point"], shown["algorithm"]) == ("main.py", "")
    assert shown["data"] == {"train": "/data/imagenet"}
    assert "ENTRY POINT" in ps("--sort", "entry_point") and "main.py" not in ps()
    rig.client.stop(third)
    assert nums("--sort", "-priority", "--state", "queued") == [second, first]
    said = ps("--sort", "priority")
    assert "PRIORITY" in said and "PRIORITY" not in ps()
    for text, reason in (
        ("prioritty>=1", "did you mean priority"),
        ("priority>1", "priority>=VALUE or priority<=VALUE"),
        ("image>=x", "image=VALUE"),
        ("usd>=much", "is not a number"),
        ("queue>=soon", "--filter: queue"),
        ("nonsense", "is not a filter"),
    ):
        with pytest.raises(UserError) as error:
            ps("--filter", text)
        assert reason in f"{error.value.message} {error.value.hint}", text
    with pytest.raises(UserError, match="an option says name already"):
        ps("--name", "a", "--filter", "name=b")
    with pytest.raises(UserError, match="repeats an earlier filter"):
        ps("--filter", "usd>=1", "--filter", "usd>=2")


def test_the_faults_of_a_job_with_what_followed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "connected", lambda ctx: nullcontext(rig.client))

    def faults(num: int, *words: str) -> str:
        command = ["show", f"j-{num}", "--faults", *words]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    supervisor.step(0, 4)
    assert faults(num) == "" and json.loads(faults(num, "--json")) == []
    supervisor.failed(exit_code=3, exception="ValueError", traceback="Traceback\nValueError: seven")
    supervisor.ended(0, "failed", step=4)
    rig.clock.advance(5)
    supervisor.started(1)
    rig.clock.advance(10)
    supervisor.step(1, 2)
    (found,) = json.loads(faults(num, "--json"))
    assert (found["cause"], found["exit_code"], found["rank"]) == ("rank_crash", 3, 1)
    assert (found["wait_s"], found["lost_s"], found["lost_steps"]) == (5.0, 15.0, 3)
    assert found["action"] == "ranks started again in place, generation 1"
    assert found["lost_slot_s"] == 15.0 * rig.job(num).num_slots
    text = faults(num)
    assert "ValueError: seven" in text and "lost in all: 3 steps, 45 slot-seconds" in text
    assert text.splitlines()[1].split("\t")[:1] == ["1.0"]
