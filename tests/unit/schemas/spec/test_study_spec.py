"""The study spec: its spellings, its faults, placeholders, and what it is expected to take."""

from __future__ import annotations

import pytest

from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import json_schema, read_yaml
from phalanx.schemas.spec.placeholders import fill, placeholder_problems
from phalanx.schemas.spec.study import StudySpec, resolved_study, validate_study
from phalanx.schemas.spec.study_checks import forecast, study_problems

pytestmark = pytest.mark.unit
WHOLE = """
schema: 1
kind: study
name: digits-lr
objective: {metric: val_loss, goal: minimize, at: best}
search: {method: bayesian, seed: 42, kappa: 2.0, init_points: 10}
space:
  lr: {log: [1e-5, 1e-1]}
  batch_size: {values: [32, 64, 128]}
  layers: {int: [1, 8], log: true}
  dropout: {float: [0.0, 0.6], step: 0.1}
  momentum: {float: [0.5, 0.99], when: "optimizer == 'sgd'"}
  optimizer: {values: [sgd, adamw]}
  warmup: 500
constraints: ["batch_size * layers <= 512"]
start_with: [{lr: 0.01, batch_size: 64, optimizer: sgd, momentum: 0.9}]
trials: {max: 100, parallel: 10, failed: {max: 5, or: 20%}, duplicates: never}
rungs: {rule: asha, type: promotion, unit: epoch, min: 1, max: 27, eta: 3, brackets: 1, hold: auto}
early_stop: {patience: 5, min_delta: 0.001}
budget: {slot_hours: 200, usd: 400, duration: 24h}
final: {retrain: best, seeds: 3}
job:
  run: python train.py --lr ${params.lr} --opt ${params.optimizer}
  resources: {nodes: 1, slots_per_node: 2}
  max_duration: 1h
"""


def small(**more):
    """A study without a fault, with other keys over it."""
    base = {
        "objective": "val_loss",
        "space": {"lr": {"log": [1e-4, 1.0]}},
        "trials": {"max": 9},
        "job": {"run": "true"},
    }
    return {**base, **more}


def problems(**more):
    return [str(one) for one in study_problems(validate_study(small(**more)))]


def test_the_page_of_the_design_is_accepted_and_read_again():
    spec = validate_study(read_yaml(WHOLE, "x"))
    assert study_problems(spec) == []
    again = resolved_study(spec)
    assert resolved_study(validate_study(again)) == again
    assert again["space"]["warmup"] == 500
    assert again["space"]["layers"] == {"log": True, "int": [1, 8]}
    assert again["trials"]["failed"] == {"max": 5, "or": "20%"}
    assert json_schema(StudySpec)["properties"]["space"]["minProperties"] == 1


@pytest.mark.parametrize(
    ("objective", "goal"),
    [
        ({"metric": "a"}, "minimize"),
        ("a", "minimize"),
        ({"metric": "a", "goal": "max"}, "maximize"),
        ({"metric": "a", "max": True}, "maximize"),
        ({"metric": "a", "max": False}, "minimize"),
        ({"metric": "a", "min": True}, "minimize"),
    ],
)
def test_spellings_of_the_goal(objective, goal):
    assert validate_study(small(objective=objective)).objective.goal == goal


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("objectve", 1, "objectve: unknown key; did you mean objective?"),
        ("objective", {"metric": "a", "max": True, "goal": "max"}, "objective: write one of"),
        (
            "objective",
            {"metric": "a", "gaol": 1},
            "objective.gaol: unknown key; did you mean goal?",
        ),
        ("space", {}, "space: "),
        ("space", {"a": {"lgo": [1, 2]}}, "space.a.lgo: unknown key; did you mean log?"),
        ("space", {"a": {"int": [1.5, 2]}}, "space.a.int: write two whole numbers"),
        ("space", {"a": {"log": [0, 1]}}, "space.a: the lower bound of a logarithmic scale"),
        ("space", {"a": {}}, "space.a: write exactly one of"),
        ("space", {"a": {"float": [3, 1]}}, "space.a.float: the lower bound 3 must be below"),
        ("space", {"a": {"float": [0, 1e999]}}, "space.a.float: write two numbers"),
        ("space", {"a": {"int": [1, 2], "values": [1]}}, "not int and values"),
        ("space", {"a": [[1]]}, "space.a.values[0]: a value is a number"),
        ("space", {"a": {"int": [1, 9], "step": 0.5}}, "`step` of a whole number"),
        ("space", {"a": {"int": [1, 9], "step": 2, "log": True}}, "do not go together"),
        ("space", {"a": {"values": [1], "step": 2}}, "`step` has no effect with `values`"),
        ("space", {"9": 1}, "space.9: write 1 to 100 letters"),
        ("trials", {"max": "3"}, "trials.max: must be a whole number"),
        ("trials", {"max": 3, "failed": {"or": "120%"}}, "trials.failed.or: must be at most 1"),
        ("rungs", {"eta": 3}, "rungs.max: is required"),
        ("rungs", {"max": 9, "hold": True}, "rungs.hold: write auto, never"),
        ("budget", {"duration": 0}, "budget.duration: must be longer than 0s"),
        ("job", 3, "job: must be a job spec"),
    ],
)
def test_a_fault_in_a_key_names_the_key(key, value, said):
    with pytest.raises(SpecInvalid) as raised:
        validate_study(small(**{key: value}))
    assert said in str(raised.value)


def test_a_job_that_is_nested_too_deep_is_refused():
    deep: dict = {}
    for _ in range(10_000):
        deep = {"a": deep}
    with pytest.raises(SpecInvalid, match="nested too deep"):
        validate_study(small(job=deep))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"trials": {}}, "trials.max: is required"),
        (
            {"trials": {"max": 3, "parallel": 4}},
            "trials.parallel: is more than `trials.max`, 3 (got 4)",
        ),
        (
            {"search": {"method": "bayesan"}},
            "search.method: no such method; did you mean bayesian?",
        ),
        ({"search": {"method": "random", "kappa": 2}}, "search.kappa: has no effect with random"),
        ({"search": {"acquisition": "ei", "kappa": 2}}, "search.kappa: has no effect with `acq"),
        ({"search": {"options": {"a": 1}}}, "search.options: has no effect with auto"),
        ({"search": {"method": "pbt"}}, "population: is required by the method pbt"),
        ({"population": {"max": 9}}, "population: has no effect with the method auto"),
        ({"rungs": {"min": 9, "max": 3}}, "rungs.min: is above"),
        ({"rungs": {"min": 3, "max": 3}}, "rungs.max: leaves one rung"),
        ({"rungs": {"max": 9, "brackets": 4}}, "rungs.brackets: is more than the 3 rungs"),
        ({"rungs": {"max": 9, "rule": "median", "type": "promotion"}}, "rungs.type: `median`"),
        ({"rungs": {"max": 9, "rule": "percentile"}}, "rungs.percentile: is required"),
        ({"rungs": {"max": 9, "percentile": 20}}, "rungs.percentile: has an effect with"),
        ({"rungs": {"max": 9, "type": "stop", "hold": "1s"}}, "rungs.hold: has an effect"),
        (
            {"rungs": {"max": 9, "resources": {1: {"nodes": 2}}}},
            "rungs.resources.1: is no rung that trials are promoted to; these are 3, 9",
        ),
        ({"start_with": [{"lrr": 1}]}, "start_with[0].lrr: no such parameter; did you mean lr?"),
        ({"start_with": [{"lr": 7}]}, "start_with[0].lr: is not between 0.0001 and 1 (got 7.0)"),
        (
            {
                "space": {"a": [1, 2], "b": {"int": [1, 2], "when": "a == 1"}},
                "start_with": [{"a": 2, "b": 1}],
            },
            "start_with[0]: no trial can have these params",
        ),
        ({"constraints": ["lrr < 1"]}, "constraints[0]: "),
        ({"space": {"a": {"int": [1, 9], "when": "b == 1"}}}, "space.a.when: "),
        ({"search": {"method": "grid"}}, "space.lr: has no end in a grid"),
        (
            {"search": {"method": "grid"}, "space": {"a": [1, 2, 3, 4], "b": [1, 2, 3]}},
            "trials.max: the grid has 12 cells; write `max: 12`",
        ),
        (
            {
                "search": {"method": "grid"},
                "trials": {},
                "space": {name: list(range(100)) for name in "abcdefgh"},
            },
            "space: has 10000000000000000 cells",
        ),
        ({"rungs": {"max": 10**9, "interval": 1}}, "rungs.interval: makes more than 1000 rungs"),
        ({"rungs": {"max": 9, "min_results": 3}}, "rungs.min_results: has an effect"),
        ({"job": None, "budget": {"slot_hours": 1}}, "budget.slot_hours: has no effect without"),
        ({"job": None, "final": {}}, "final: has no effect without `job`"),
        (
            {"rungs": {"max": 9}, "job": {"run": "x", "metrics": "epoch {epoch} {val_loss}"}},
            "rungs.type: trials that print their objective cannot pause; call `run.report` instead, or "
            "write `type: stop`",
        ),
        (
            {"rungs": {"max": 9, "type": "stop"}, "job": {"run": "x", "metrics": ["l {val_loss}"]}},
            "job.metrics: names no {epoch}, which `rungs.unit` counts",
        ),
        (
            {
                "population": {"max": 9},
                "search": {"method": "pbt"},
                "trials": {},
                "job": {"run": "x", "metrics": "json"},
            },
            "population: trials that print their objective cannot pause",
        ),
        (
            {
                "population": {"max": 9},
                "search": {"method": "pbt"},
                "trials": {},
                "job": {
                    "run": "x",
                    "resources": {"nodes": 2},
                    "checkpoint": {"store": "s3://a/b"},
                },
            },
            "job.checkpoint.store: a member with several nodes commits in the store alone",
        ),
        (
            {"rungs": {"max": 9}, "job": {"run": "x", "framework": "jax"}},
            "rungs.type: trials of JAX cannot pause at a rung; write `type: stop`",
        ),
        ({"job": {"run": "true", "rnu": 1}}, "job.rnu: unknown key; did you mean run?"),
        ({"job": {"run": "true", "env_compat": ["slurm"]}}, "job.env_compat: not yet"),
        (
            {"job": {"run": "true", "budget": {"usd": 1}}},
            "job.budget: trials have none of their own",
        ),
        ({"job": {"run": "true", "array": "0-9"}}, "job.array: is not possible in the job"),
        ({"job": {"run": "x ${params.lrr}"}}, "job.run: ${params.lrr}: no such parameter; did you"),
        ({"job": {"run": "x ${params.lr"}}, "job.run: has a placeholder without an end"),
        (
            {
                "space": {"n": {"values": [1, -1]}},
                "job": {"run": "x", "resources": {"nodes": "${params.n}"}},
            },
            "job.resources.nodes: write a whole number",
        ),
        (
            {
                "space": {"a": [1, 2], "b": {"int": [1, 2], "when": "a == 1"}},
                "job": {"run": "x ${params.b}"},
            },
            "job.run: ${params.b} is not active in every trial; write ${params.b:-DEFAULT}",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_at_submit(keys, said):
    found = problems(**keys)
    assert any(one.startswith(said) for one in found), found


@pytest.mark.parametrize(
    ("rungs", "metrics"),
    [
        ({"max": 9}, "epoch {epoch} acc {accuracy}"),
        ({"max": 9, "type": "stop"}, "epoch {epoch} loss {val_loss}"),
        ({"max": 9, "type": "stop", "unit": "step"}, "loss {val_loss}"),
        ({"max": 9, "rule": "median", "unit": "token"}, ["tokens {token}", "loss {val_loss}"]),
        ({"max": 9, "type": "stop"}, "json"),
        (None, "loss {val_loss}"),
    ],
)
def test_objectives_that_trials_print_go_with_rules_that_stop(rungs, metrics):
    assert problems(rungs=rungs, job={"run": "x", "metrics": metrics}) == []


def test_placeholders_keep_types_and_quote_text_for_the_shell():
    job = {
        "run": "python t.py --lr ${params.lr} --name ${params.name} --m ${params.m:-0.9}",
        "env": {"LR": "${params.lr}", "NAME": "a ${params.name}", "ON": "x${params.on}"},
        "resources": {"nodes": "${params.n}", "list": ["${params.on}", 3]},
    }
    filled = fill(job, {"lr": 1e-5, "name": "a b; rm", "n": 2, "on": True})
    assert filled["run"] == "python t.py --lr 1e-05 --name 'a b; rm' --m 0.9"
    assert filled["env"] == {"LR": "1e-05", "NAME": "a a b; rm", "ON": "xtrue"}
    assert filled["resources"] == {"nodes": 2, "list": [True, 3]}
    assert fill({"run": ["x", "${params.lr}"]}, {"lr": 0.5}) == {"run": ["x", "0.5"]}
    assert fill({"run": "${params.name}"}, {"name": "a b"}) == {"run": "'a b'"}
    assert placeholder_problems(job, ["lr", "name", "m", "on", "n"], ["m"]) == []


def test_expected_trials_and_slot_hours_of_each_rung():
    spec = validate_study(read_yaml(WHOLE, "x"))
    assert spec.rungs is not None and spec.rungs.to_core().levels == (1, 3, 9, 27)
    found = forecast(spec, 100)
    assert [(one.until, one.trials, one.units) for one in found.rungs] == [
        (1, 100, 100),
        (3, 33, 66),
        (9, 11, 66),
        (27, 4, 72),
    ]
    assert found.share == pytest.approx(304 / 2700)
    assert found.slots_per_trial == 2
    assert found.slot_hours == pytest.approx(2 * 304 / 27)
    whole = forecast(validate_study(small()), 9)
    assert (whole.rungs, whole.share, whole.slot_hours) == ((), None, None)
