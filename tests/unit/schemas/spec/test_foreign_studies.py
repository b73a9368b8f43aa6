"""Searches written for other tools: what each becomes, and that nothing is ignored."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import read_yaml
from phalanx.schemas.spec.study import resolved_study, validate_study
from phalanx.schemas.spec.study_checks import study_problems
from phalanx.schemas.spec.study_document import from_tune, load_space, load_study, read_study

pytestmark = pytest.mark.unit

PLAIN = """
name: resnet search
algorithm: bayesian
acquisition_function: ucb
kappa: 2.5
init_points: 5
n_iter: 20
random_state: 7
pbounds:
  lr: [0.0001, 0.1]
  layers: [1, 8, int]
metric_name: val_acc
maximize: true
max_parallel_trials: 5
patience: 5
min_delta: 0.001
abort_failing_trials: true
gpus_per_trial: 2
command: train.py
"""
GRID = "{parameters: {lr: [0.1, 0.01], opt: [sgd, adam]}, metric_name: loss, run: x, max_trials: 4}"
DETERMINED = """
name: mnist_asha
entrypoint: python3 -m determined.launch.torch_distributed python3 train.py --epochs 27
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  width: {type: int, minval: 8, maxval: 64}
  dropout: {type: double, minval: 0.2, maxval: 0.8}
  optimizer:
    name: {type: categorical, vals: [sgd, adam]}
  batch: 64
searcher:
  name: adaptive_asha
  metric: validation_loss
  smaller_is_better: true
  max_trials: 16
  max_length: {epochs: 64}
  divisor: 4
  mode: aggressive
  max_rungs: 3
resources: {slots_per_trial: 2, priority: 40}
max_restarts: 3
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: /ckpt}
"""
LAUNCHED = "python3 -m determined.launch.torch_distributed python3 train.py --epochs 27"
KATIB = """
apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {name: random-search, namespace: kubeflow}
spec:
  objective:
    type: maximize
    goal: 0.99
    objectiveMetricName: Validation-accuracy
    additionalMetricNames: [Train-accuracy]
  algorithm: {algorithmName: random, algorithmSettings: [{name: random_state, value: "10"}]}
  earlyStopping:
    algorithmName: medianstop
    algorithmSettings: [{name: min_trials_required, value: "2"}, {name: start_step, value: "4"}]
  parallelTrialCount: 3
  maxTrialCount: 12
  maxFailedTrialCount: 3
  parameters:
    - name: --lr
      parameterType: double
      feasibleSpace: {min: "0.01", max: "0.05", distribution: logUniform}
    - {name: num-layers, parameterType: int, feasibleSpace: {min: "1", max: "5", step: "2"}}
    - {name: optimizer, parameterType: categorical, feasibleSpace: {list: [sgd, adam]}}
    - {name: batch, parameterType: discrete, feasibleSpace: {list: ["32", "64"]}}
  trialTemplate:
    primaryContainerName: training
    trialParameters:
      - {name: learningRate, description: rate, reference: --lr}
      - {name: layers, reference: num-layers}
    trialSpec:
      apiVersion: batch/v1
      kind: Job
      spec:
        template:
          spec:
            containers:
              - name: training
                image: docker.io/kubeflowkatib/pytorch-mnist
                command:
                  - python3
                  - /opt/mnist.py
                  - --lr=${trialParameters.learningRate}
                  - --l=${trialParameters.layers}
                resources: {limits: {nvidia.com/gpu: 2, memory: 1Gi}}
            restartPolicy: Never
"""
WANDB = """
program: train.py
name: sweepdemo
method: bayes
project: demo
metric: {name: val_loss, goal: minimize, target: 0.1}
run_cap: 20
parameters:
  lr: {distribution: log_uniform_values, min: 0.0001, max: 0.1}
  wd: {distribution: log_uniform, min: -9.21, max: -2.3}
  batch: {distribution: q_uniform, min: 10, max: 100, q: 8}
  layers: {min: 1, max: 4}
  drop: {min: 0.0, max: 0.5}
  opt: {values: [sgd, adam]}
  epochs: {value: 5}
  head: {parameters: {width: {values: [1, 2]}}}
early_terminate: {type: hyperband, min_iter: 3, eta: 3}
command: ["${env}", "${interpreter}", "${program}", "${args}", "--key=${envvar:KEY_NAME}"]
"""


def read(text):
    return read_study(read_yaml(text, "x"))


def test_users_own_shape_with_pbounds_and_upper_confidence_bound():
    found = read(PLAIN)
    body = resolved_study(found.spec)
    assert study_problems(found.spec) == []
    assert found.spec.name == "resnet-search"
    assert body["space"] == {"lr": {"float": [0.0001, 0.1]}, "layers": {"int": [1, 8]}}
    search = found.spec.search
    assert (search.method, search.acquisition, search.kappa) == ("bayesian", "ucb", 2.5)
    assert (search.init_points, search.seed) == (5, 7)
    assert (found.spec.trials.max, found.spec.trials.parallel) == (25, 5)
    assert found.spec.trials.failed.max == 0
    assert found.spec.objective.goal == "maximize"
    assert body["early_stop"] == {"patience": 5, "min_delta": 0.001}
    assert body["job"] == {"run": "python train.py", "resources": {"slots_per_node": 2}}
    assert "pbounds -> space (lr, layers)" in found.translation.mapped


def test_plain_lists_alone_are_a_grid():
    found = read(GRID)
    assert found.spec.search.method == "grid"
    assert study_problems(found.spec) == []


def test_a_search_in_a_job_spec():
    text = """
name: digits
run: python train.py --lr ${params.lr}
resources: {slots_per_node: 2}
search:
  method: random
  seed: 3
  objective: {metric: loss}
  space: {lr: {log: [0.01, 1]}}
  trials: {max: 8}
"""
    found = read(text)
    assert (found.spec.name, found.spec.search.method, found.spec.search.seed) == (
        "digits",
        "random",
        3,
    )
    assert found.spec.job == {
        "name": "digits",
        "run": "python train.py --lr ${params.lr}",
        "resources": {"slots_per_node": 2},
    }
    plain = "{run: x, search: {algorithm: random, parameters: {a: [1, 2]}, max_trials: 2, metric_name: m}}"
    assert read(plain).spec.job == {"run": "x"}


def test_a_determined_experiment():
    found = read(DETERMINED)
    body = resolved_study(found.spec)
    assert study_problems(found.spec) == []
    assert body["space"]["lr"] == {"log": [0.0001, 0.1]}
    assert body["space"]["width"] == {"int": [8, 64]}
    assert body["space"]["optimizer.name"] == {"values": ["sgd", "adam"]}
    assert body["space"]["batch"] == 64
    rungs = found.spec.rungs
    assert (rungs.unit, rungs.min, rungs.max, rungs.eta, rungs.brackets) == ("epoch", 4, 64, 4, 1)
    assert body["job"]["run"] == "python3 train.py --epochs 27"
    assert body["job"]["resources"]["accelerators"] == 2
    assert any(one.startswith("checkpoint_storage: ") for one in found.translation.dropped)
    assert any(one.startswith("resources.priority: ") for one in found.translation.dropped)


def test_a_katib_experiment():
    found = read(KATIB)
    body = resolved_study(found.spec)
    assert body["space"] == {
        "lr": {"log": True, "float": [0.01, 0.05]},
        "num-layers": {"int": [1, 5], "step": 2.0},
        "optimizer": {"values": ["sgd", "adam"]},
        "batch": {"values": [32, 64]},
    }
    job = body["job"]
    assert job["run"] == [
        "python3",
        "/opt/mnist.py",
        "--lr=${params.lr}",
        "--l=${params.num-layers}",
    ]
    assert job["image"] == "docker.io/kubeflowkatib/pytorch-mnist"
    assert job["resources"] == {"nodes": 1, "slots_per_node": 2}
    assert job["metrics"][0] == "Validation-accuracy={Validation-accuracy}"
    assert found.spec.rungs.unit == "step"
    assert (found.spec.rungs.rule, found.spec.rungs.min, found.spec.rungs.min_results) == (
        "median",
        4,
        2,
    )
    assert found.spec.objective.target == 0.99
    assert study_problems(found.spec) == []


def test_a_wandb_sweep():
    found = read(WANDB)
    body = resolved_study(found.spec)
    assert study_problems(found.spec) == []
    space = body["space"]
    assert space["lr"] == {"log": [0.0001, 0.1]}
    assert space["wd"]["log"] == pytest.approx([math.exp(-9.21), math.exp(-2.3)])
    assert space["batch"] == {"int": [16, 96], "step": 8.0}
    assert (space["layers"], space["drop"]) == ({"int": [1, 4]}, {"float": [0.0, 0.5]})
    assert (space["epochs"], space["head.width"]) == (5, {"values": [1, 2]})
    assert body["job"]["run"].startswith("python train.py --lr=${params.lr} --wd=${params.wd}")
    assert body["job"]["run"].endswith(" --key=$KEY_NAME")
    rungs = found.spec.rungs
    assert (rungs.rule, rungs.type, rungs.min, rungs.eta) == ("asha", "stop", 3, 3)


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (PLAIN, "kappa: 2.5", "kapa: 2.5", "kapa: unknown key; did you mean kappa?"),
        (PLAIN, "algorithm: bayesian", "algorithm: simulated", "algorithm: cannot be translated"),
        (PLAIN, "lr: [0.0001, 0.1]", "lr: [1]", "pbounds.lr: write two bounds"),
        (DETERMINED, "maxval: -1", "maxval: 400", "hyperparameters.lr.minval: the bounds are exp"),
        (DETERMINED, "max_rungs", "max_rugs", "searcher.max_rugs: unknown key; did you mean max_rungs"),
        (DETERMINED, LAUNCHED, "model_def:MNistTrial", "entrypoint: names a class of Determined's"),
        (KATIB, "algorithmName: random", "algorithmName: enas", "spec.algorithm.algorithmName: cannot"),
        (KATIB, 'min: "0.01"', 'min: "small"', "spec.parameters[0].feasibleSpace.min: must be a number"),
        (KATIB, "reference: --lr", "reference: --rl", "learningRate refers to rl, which is no"),
        (WANDB, "run_cap: 20", "", "run_cap: is required"),
        (WANDB, "min: -9.21, max: -2.3", "min: 1, max: 90", "parameters.wd.max: is an exponent of e"),
        (WANDB, "distribution: q_uniform", "distribution: normal", "parameters.batch.distribution: ca"),
        (WANDB, "${args}", "${args_json_file}", "command: ${args_json_file} cannot be translated"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_name(text, old, new, said):
    assert old in text
    with pytest.raises(SpecInvalid) as raised:
        read(text.replace(old, new))
    assert said in str(raised.value)


def test_a_document_that_is_no_search_is_named():
    with pytest.raises(SpecInvalid, match="is no study: begin with"):
        load_study("run: python train.py")


class Float:
    def __init__(self, lower, upper, sampler=None):
        self.lower, self.upper, self.sampler = lower, upper, sampler


class Integer(Float):
    pass


class Categorical:
    def __init__(self, categories):
        self.categories, self.sampler = categories, None


class _LogUniform:
    pass


class _Normal:
    pass


class Quantized:
    def __init__(self, sampler, q):
        self.sampler, self.q = sampler, q


def test_spaces_of_tune_by_their_attributes():
    space = from_tune(
        {
            "lr": Float(1e-4, 1e-1, _LogUniform()),
            "drop": Float(0.0, 0.5),
            "q": Float(0.0, 1.0, Quantized(None, 0.25)),
            "n": Integer(1, 9),
            "even": Integer(2, 8, Quantized(None, 2)),
            "logn": Integer(1, 9, _LogUniform()),
            "opt": Categorical(["sgd", "adam"]),
            "grid": {"grid_search": [1, 2]},
            "model": {"width": Integer(8, 65)},
            "epochs": 10,
        }
    )
    assert space == {
        "lr": {"log": [1e-4, 1e-1]},
        "drop": {"float": [0.0, 0.5]},
        "q": {"float": [0.0, 1.0], "step": 0.25},
        "n": {"int": [1, 8]},
        "even": {"int": [2, 8], "step": 2},
        "logn": {"int": [1, 8], "log": True},
        "opt": {"values": ["sgd", "adam"]},
        "grid": {"values": [1, 2]},
        "model.width": {"int": [8, 64]},
        "epochs": {"value": 10},
    }
    study = {"objective": "x", "space": space, "trials": {"max": 9}, "job": {"run": "x"}}
    assert study_problems(validate_study(study)) == []
    with pytest.raises(SpecInvalid, match="the distribution Normal cannot be translated"):
        from_tune({"a": Float(0.0, 1.0, _Normal())})
    with pytest.raises(SpecInvalid, match="a: function cannot be translated"):
        from_tune({"a": lambda: 1})


@pytest.mark.parametrize(
    "text",
    [
        "{lr: {log: [0.01, 1]}, n: [1, 2]}",
        "{space: {lr: {log: [0.01, 1]}, n: [1, 2]}}",
        "{parameters: {lr: {type: loguniform, min: 0.01, max: 1}, n: [1, 2]}}",
        "{kind: study, objective: x, space: {lr: {log: [0.01, 1]}, n: [1, 2]}}",
    ],
)
def test_a_file_with_a_space_alone(tmp_path, text):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    study = validate_study({"objective": "x", "space": load_space(path)})
    parameters = study.to_space().parameters
    assert parameters["lr"].log and parameters["n"].values == (1, 2)


_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["log", "int", "grid", "random", "x:y", "${args}", "${trialParameters.a}", "-3"]
    ),
)
_ANYTHING = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
_DOCUMENTS = [read_yaml(text, "x") for text in (PLAIN, GRID, DETERMINED, KATIB, WANDB)]


def _places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _places(one, (*path, index))


def _changed(value, path, new):
    if not path:
        return new
    if isinstance(value, dict):
        return {
            key: _changed(one, path[1:], new) if key == path[0] else one
            for key, one in value.items()
        }
    return [_changed(one, path[1:], new) if i == path[0] else one for i, one in enumerate(value)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_document_gives_anything_but_a_study_or_problems(data):
    document = data.draw(st.sampled_from(_DOCUMENTS))
    place = data.draw(st.sampled_from([one for one in _places(document) if one]))
    changed = _changed(document, place, data.draw(_ANYTHING))
    with contextlib.suppress(SpecInvalid):
        study_problems(read_study(changed).spec)
