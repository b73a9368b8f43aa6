"""A rank's contract survives the way through environment variables, whatever it holds."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.contract.environment import from_environment, to_environment
from phalanx.core.contract.gang import RankContract
from phalanx.core.contract.trial import UNITS, ForkSource, TrialContract
from phalanx.core.training.checkpoints import COMPRESSIONS, FIRST_SAVE_S, Best, Keep

pytestmark = pytest.mark.unit

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1)
COUNT = st.integers(1, 10**9)
SECONDS = st.integers(1, 10**9).map(lambda milliseconds: milliseconds / 1000)
MAYBE_TEXT = st.none() | TEXT
INTERVALS = (
    SECONDS.map(lambda s: SaveInterval(seconds=s))
    | COUNT.map(lambda n: SaveInterval(steps=n))
    | COUNT.map(lambda n: SaveInterval(epochs=n))
    | st.just(SaveInterval(seconds=FIRST_SAVE_S, auto=True))
)
KEEPS = st.builds(
    Keep,
    last=st.none() | COUNT,
    best=st.none()
    | st.builds(Best, metric=TEXT, mode=st.sampled_from(["min", "max"]), count=COUNT),
    every=st.none() | COUNT,
    age_s=st.none() | SECONDS,
)
POLICIES = st.builds(
    CheckpointPolicy,
    every=INTERVALS,
    keep=KEEPS,
    background=st.booleans(),
    compress=st.sampled_from(COMPRESSIONS),
    store=MAYBE_TEXT,
    key_env=MAYBE_TEXT,
    key_file=MAYBE_TEXT,
)
PARAMS = st.dictionaries(
    TEXT,
    st.none()
    | st.booleans()
    | st.integers()
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
)
TRIALS = st.builds(
    TrialContract,
    study=st.none() | COUNT,
    trial=st.integers(0, 10**6),
    params=PARAMS,
    unit=st.sampled_from(UNITS),
    until=st.none() | COUNT,
    hold_s=SECONDS,
    objective=TEXT,
    fork_of=st.none() | st.builds(ForkSource, job=COUNT, path=TEXT),
)


@st.composite
def ranks(draw):
    local_world = draw(st.integers(1, 8))
    num_nodes, node_rank = draw(st.sampled_from([(1, 0), (3, 0), (3, 2)]))
    local_rank = draw(st.integers(0, local_world - 1))
    return RankContract(
        launched=True,
        master_address=draw(TEXT),
        master_port=draw(st.integers(1, 65535)),
        rank=node_rank * local_world + local_rank,
        world_size=num_nodes * local_world,
        local_rank=local_rank,
        local_world_size=local_world,
        node_rank=node_rank,
        reference_world=draw(COUNT),
        job=draw(MAYBE_TEXT),
        job_name=draw(MAYBE_TEXT),
        project=draw(MAYBE_TEXT),
        attempt=draw(COUNT),
        generation=draw(st.integers(0, 99)),
        restarts=draw(st.integers(0, 99)),
        restart_cause=draw(MAYBE_TEXT),
        job_started_at=draw(st.none() | st.integers(1, 2**60)),
        grace_s=draw(SECONDS),
        checkpoint_dir=draw(MAYBE_TEXT),
        resume_path=draw(MAYBE_TEXT),
        code_dir=draw(MAYBE_TEXT),
        report_file=draw(MAYBE_TEXT),
        control_file=draw(MAYBE_TEXT),
        error_file=draw(MAYBE_TEXT),
        checkpoint=draw(POLICIES),
        trial=draw(TRIALS),
        strategy=draw(st.none() | st.sampled_from(["fsdp", "auto", {"pp": 2, "tp": 4}])),
        training=draw(st.dictionaries(TEXT, st.integers() | TEXT | st.booleans())),
    )


@given(ranks())
def test_a_contract_survives_its_environment(rank):
    assert from_environment(to_environment(rank), RankContract) == (rank, [])


def test_every_field_is_drawn_or_has_no_variable():
    rank = replace(RankContract(), checkpoint=CheckpointPolicy())
    known = {name for one in (rank, rank.checkpoint, rank.trial) for name in vars_of(one)}
    assert {"checkpoint", "trial", "world", "launched", "directory"} == known - (
        with_variable() - {"trial"}
    )


def vars_of(one):
    return [field.name for field in fields(one)]


def every_field():
    return [
        field for one in (RankContract, CheckpointPolicy, TrialContract) for field in fields(one)
    ]


def with_variable():
    return {field.name for field in every_field() if "variable" in field.metadata}


def test_no_two_fields_share_a_variable():
    names = [
        field.metadata["variable"].name for field in every_field() if "variable" in field.metadata
    ]
    assert len(names) == len(set(names))


def test_without_a_launcher_it_is_a_run_of_one_process():
    rank, problems = from_environment({"RANK": "3", "LOCAL_RANK": "1"}, RankContract)
    assert (rank, problems) == (RankContract(), [])


def test_torchrun_names_the_node_by_its_group_rank():
    env = {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
        "GROUP_RANK": "1",
    }
    rank, _ = from_environment(env, RankContract)
    assert (rank.node_rank, rank.reference_world, rank.local_world_size) == (1, 4, 4)


def test_paths_have_the_type_that_is_asked_for():
    rank, _ = from_environment({"PHALANX_CHECKPOINT_DIR": "/c"}, RankContract, Path)
    assert rank.checkpoint_dir == Path("/c")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PHALANX_ATTEMPT", "x"),
        ("PHALANX_GRACE_S", "-1"),
        ("PHALANX_TRAINING", "[1]"),
        ("PHALANX_TRAINING", "3"),
        ("PHALANX_STRATEGY", "ppd"),
        ("PHALANX_CHECKPOINT_EVERY", "soon"),
        ("PHALANX_CHECKPOINT_EVERY", "0 steps"),
        ("PHALANX_CHECKPOINT_KEEP", '{"last": 0}'),
        ("PHALANX_CHECKPOINT_KEEP", "[]"),
        ("PHALANX_CHECKPOINT_ASYNC", "yes"),
        ("PHALANX_CHECKPOINT_COMPRESS", "gzip"),
        ("PHALANX_REFERENCE_WORLD", "0"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(name, text):
    _, problems = from_environment({name: text}, RankContract)
    assert [one.path for one in problems] == [name]


def test_a_rank_beyond_its_world_is_named():
    env = {"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    _, problems = from_environment(env, RankContract)
    assert [(one.path, one.message) for one in problems] == [("RANK", "must be 0 to 3")]
