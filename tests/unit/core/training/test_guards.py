"""Guards, learning rates and pieces as pure decisions."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.gang.failures import Failure, RankExit, classify, is_final
from phalanx.core.reasons import Cause
from phalanx.core.training.batches import BatchPlan
from phalanx.core.training.guards import (
    FaultOrigin,
    GuardState,
    Skip,
    SpikeDetector,
    Suspect,
    Undo,
    num_pieces,
    origin,
)
from phalanx.core.training.learning_rate import Ramp, factor

pytestmark = pytest.mark.unit


def test_the_same_wrong_bits_twice_come_from_the_data():
    assert origin(7, 7) is FaultOrigin.DATA
    assert origin(7, 8) is origin(7, None) is FaultOrigin.HARDWARE


def falling(seed, num):
    rng = random.Random(seed)
    return [2.0 * math.exp(-at / 200) + rng.gauss(0, 0.1) for at in range(num)]


@pytest.mark.parametrize("seed", range(5))
def test_an_ordinary_loss_is_no_spike_and_a_jump_is(seed):
    detector = SpikeDetector()
    assert not any(detector.observe(value) for value in falling(seed, 500))
    assert detector.observe(5.0) and detector.observe(math.nan) and detector.observe(math.inf)
    assert not detector.observe(0.2)


def test_nothing_is_a_spike_before_there_is_a_past_unless_it_is_not_finite():
    detector = SpikeDetector(window=4)
    assert not any(detector.observe(value) for value in (1.0, 1000.0, 1.0, 1.0))
    assert detector.observe(1000.0)
    assert SpikeDetector().observe(math.nan)


def test_a_flat_loss_may_wobble():
    detector = SpikeDetector(window=8)
    assert not any(detector.observe(1.0) for _ in range(8))
    assert not detector.observe(1.2) and detector.observe(1.6)


def test_a_memory_survives_its_file():
    suspect = Suspect(1, 24, 36, 9, 2.5, ((1.0).hex(), "", math.nan.hex()))
    memory = GuardState((Skip(1, 24, 36, 9, "spike"),), 2, Undo(1, 3, 9), suspect, (1, 3))
    assert GuardState.from_json(json.loads(json.dumps(memory.to_json()))) == memory


def test_the_memory_of_the_first_release_is_still_read():
    body = {"schema": 1, "skips": [], "halvings": 1, "undo": None}
    assert GuardState.from_json(body) == GuardState(halvings=1)


@pytest.mark.parametrize(
    ("again", "found"),
    [
        ((1.0, 9.0, 1.5), (FaultOrigin.DATA, (1,))),
        ((1.0, 1.1, 1.5), (FaultOrigin.HARDWARE, (1,))),
        ((1.0, 8.9, 1.5), (FaultOrigin.UNKNOWN, (1,))),
        ((1.0, math.nan, 1.5), (FaultOrigin.UNKNOWN, (1,))),
        (
            (1.0, 1.2),
            (FaultOrigin.HARDWARE, (1,)),
        ),  # another world size, where it did not come again
    ],
)
def test_computing_a_jump_again_tells_data_from_hardware(again, found):
    suspect = Suspect(1, 24, 36, 9, 3.0, tuple(one.hex() for one in (1.0, 9.0, 1.5)))
    assert suspect.verdict([one.hex() for one in again]) == found


def test_a_memory_counts_pieces_and_holds_each_skip_once():
    memory = GuardState((Skip(1, 24, 36, 9, "spike"),), 2)
    assert memory.skipping(memory.skips[0]) == memory and memory.pieces == 4
    assert memory.intervals(1) == ((24, 36),) and memory.intervals(0) == ()
    for broken in ({}, {"schema": 1}, {"schema": 2, "skips": [], "halvings": 0, "undo": None}):
        with pytest.raises(ValueError, match="guards"):
            GuardState.from_json(broken)


def test_what_is_undone_is_of_this_generation_or_earlier_and_holds_the_step():
    undo = Undo(1, 3, 9)
    assert undo.covers(1, 3, 9) and undo.covers(1, 2, 12)
    assert not undo.covers(1, 3, 8) and not undo.covers(1, 4, 12) and not undo.covers(2, 0, 12)


@pytest.mark.parametrize(
    ("local", "largest", "halvings", "pieces"),
    [(8, None, 0, 1), (8, None, 1, 2), (8, 3, 0, 3), (8, 3, 1, 6), (8, None, 9, 8), (0, 4, 0, 1)],
)
def test_pieces(local, largest, halvings, pieces):
    assert num_pieces(local, largest, GuardState(halvings=halvings)) == pieces


@given(
    num=st.integers(0, 200),
    micro=st.integers(1, 40),
    accumulate=st.integers(1, 4),
    pieces=st.integers(1, 9),
    world=st.integers(1, 5),
    drop=st.booleans(),
)
def test_pieces_never_move_a_steps_border_nor_its_weights(
    num, micro, accumulate, pieces, world, drop
):
    def steps(plan):
        found, step = [], set()
        calls = list(zip(*(plan.shares(0, rank, world) for rank in range(world)), strict=True))
        weight = 0.0
        for call in calls:
            for share in call:
                weight += share.weight
                step |= set() if share.spare else set(range(share.lo, share.hi))
            if call[0].last:
                found.append((sorted(step), call[0].end, round(weight / world, 6)))
                step, weight = set(), 0.0
        assert len(calls) == plan.num_micro_batches
        return found

    whole = steps(BatchPlan(num, micro, accumulate, drop))
    assert steps(BatchPlan(num, micro, accumulate, drop, pieces)) == whole
    assert all(weight == 1.0 for _, _, weight in whole)


def test_a_step_to_be_passed_over_is_left_out_whole():
    plan = BatchPlan(30, 4, 2)
    ends = [share.end for share in plan.shares(0, 0, 1, skip=[(9, 10)])]
    assert ends == [4, 8, 20, 24, 28, 30]


# -- learning rates --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "batch", "expected"),
    [
        (256, 256, 1.0),
        (256, 1024, 4.0),
        (1024, 256, 0.25),
        (8192, 32768, 2.0),
        (4096, 32768, 4.0),
        (32768, 8192, 0.5),
    ],
)
def test_linear_up_to_8192_and_the_square_root_beyond(base, batch, expected):
    assert factor(base, batch) == pytest.approx(expected)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_it_does_not_matter_by_which_way_a_batch_is_reached(one, two, three):
    assert factor(one, two) * factor(two, three) == pytest.approx(factor(one, three))


def test_a_ramp_leads_from_where_it_is():
    ramp = Ramp().towards(4.0, 100, 10)
    assert [ramp.at(step) for step in (100, 105, 110, 500)] == [1.0, 2.5, 4.0, 4.0]
    back = ramp.towards(1.0, 105, 5)
    assert back.at(105) == 2.5 and back.at(110) == 1.0
    assert ramp.towards(4.0, 107, 10) is ramp
    assert Ramp.from_json(ramp.to_json()) == ramp
    assert Ramp().towards(2.0, 7, 0).at(7) == 2.0


# -- causes ----------------------------------------------------------------------------------------


def test_guards_end_a_generation_with_a_cause_of_their_own():
    exit = RankExit(rank=0, at=0, exit_code=1, exception="Diverged", message="step 7")
    assert classify(exit, stepped=True) is Cause.DIVERGED
    failure = Failure(Cause.DIVERGED, 0, 0, 0, "x", exception="Diverged")
    assert not is_final(failure)
    assert is_final(Failure(Cause.DIVERGED, 0, 0, 0, "x", exception="DivergedForGood"))
