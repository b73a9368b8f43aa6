"""The contract of a trial: its parameters in the environment, and its target."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.codec import decode, encode
from phalanx.core.contract.environment import from_environment
from phalanx.core.contract.gang import RankContract
from phalanx.core.contract.job import JobContract, RankCommand, RoleContract
from phalanx.core.contract.trial import ForkSource, TrialContract, param_variables

pytestmark = pytest.mark.unit

ROLE = RoleContract(name="worker", command=RankCommand.of("python train.py"))


def test_a_contract_of_an_older_release_is_no_trial():
    stored = encode(JobContract(roles=(ROLE,)))
    del stored["trial"]
    assert decode(JobContract, stored).trial is None


def test_a_stored_trial_reads_back():
    trial = TrialContract(
        study=3, trial=7, params={"lr": 0.1, "opt": "sgd"}, until=9, fork_of=ForkSource(4, "/c/x")
    )
    stored = json.loads(json.dumps(encode(JobContract(roles=(ROLE,), trial=trial))))
    assert decode(JobContract, stored).trial == trial


def test_params_may_be_set_by_hand():
    rank, problems = from_environment({"PHALANX_PARAMS": '{"lr": 0.1}'}, RankContract)
    assert (rank.trial.params, rank.trial.is_trial, problems) == ({"lr": 0.1}, False, [])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("PHALANX_PARAMS", "lr=0.1", "must be a JSON object"),
        ("PHALANX_PARAMS", "[1]", "must be a JSON object"),
        ("PHALANX_PARAMS", '{"lr": NaN}', "lr: must be a finite number"),
        ("PHALANX_PARAMS", '{"lr": [1]}', "lr: must be a finite number"),
        ("PHALANX_TRIAL_UNIT", "hour", "must be one of"),
        ("PHALANX_TRIAL_UNTIL", "soon", "must be a whole number"),
        ("PHALANX_FORK_OF", "/c/x", "must be a job and"),
        ("PHALANX_FORK_OF", "j-x:/c/x", "must be a job and"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(name, text, said):
    rank, [problem] = from_environment({name: text}, RankContract)
    assert (problem.path, rank.trial) == (name, TrialContract())
    assert problem.message.startswith(said)


def test_scripts_for_other_platforms_find_their_variables():
    found = param_variables(
        {"lr": 0.01, "layer.size": 8, "opt": "sgd", "nesterov": True, "x": None}
    )
    assert found["PHALANX_PARAM_LR"] == found["KUBEFLOW_TRAINER_OPT_LR"] == "0.01"
    assert found["PHALANX_PARAM_LAYER_SIZE"] == "8"
    assert (found["PHALANX_PARAM_OPT"], found["PHALANX_PARAM_NESTEROV"]) == ("sgd", "true")
    assert found["PHALANX_PARAM_X"] == "null"
    assert json.loads(found["DET_HPARAMS"])["layer.size"] == 8


def test_without_params_there_are_no_variables():
    assert param_variables({}) == {}


@given(st.integers(1, 10**6), st.text("abc/:.-", min_size=1))
def test_the_source_of_a_fork_survives_its_text(job, path):
    source = ForkSource(job, path)
    assert ForkSource.parse(str(source)) == source
