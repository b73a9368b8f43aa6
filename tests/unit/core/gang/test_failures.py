"""What the end of a rank means."""

import pytest

from phalanx.core.gang.failures import (
    Failure,
    RankExit,
    classify,
    describe,
    first_failure,
    is_collateral,
)
from phalanx.core.reasons import Cause

pytestmark = pytest.mark.unit


def exit_of(rank=0, **changes) -> RankExit:
    return RankExit(rank=rank, at=100, **changes)


@pytest.mark.parametrize(
    ("exit", "stepped", "cause"),
    [
        (exit_of(signal=9), True, Cause.RANK_CRASH),
        (exit_of(exit_code=1, exception="SyntaxError"), False, Cause.USER_ERROR),
        (exit_of(exit_code=1, exception="ValueError"), True, Cause.RANK_CRASH),
        (exit_of(exit_code=1, exception="OutOfMemoryError"), True, Cause.OOM),
        (
            exit_of(exit_code=1, exception="RuntimeError", message="can't allocate memory: you"),
            False,
            Cause.OOM,
        ),
        (exit_of(exit_code=3), False, Cause.RANK_CRASH),
        # What the library says of a script's arguments and data would be the same at every start.
        (exit_of(exit_code=1, exception="SpecInvalid"), False, Cause.USER_ERROR),
        (exit_of(exit_code=102, exception="NotFound"), False, Cause.USER_ERROR),
        (exit_of(exit_code=1, exception="RestoreMismatch"), False, Cause.USER_ERROR),
        (exit_of(exit_code=1, exception="UserError"), True, Cause.RANK_CRASH),
        (exit_of(exit_code=1, exception="CheckpointUnavailable"), False, Cause.CHECKPOINT_MISSING),
        (exit_of(exit_code=1, exception="CheckpointMissing"), False, Cause.CHECKPOINT_MISSING),
    ],
)
def test_cause(exit, stepped, cause):
    assert classify(exit, stepped=stepped) is cause


@pytest.mark.parametrize(
    ("exit", "collateral"),
    [
        (exit_of(exception="DistBackendError", message="x"), True),
        (exit_of(exception="RuntimeError", message="[…] Connection closed by peer [127]"), True),
        (exit_of(exception="ValueError", message="Connection closed by peer"), False),
        (exit_of(exception="RuntimeError", message="shapes cannot be multiplied"), False),
        (exit_of(signal=9), False),
    ],
)
def test_connection_errors_are_symptoms(exit, collateral):
    assert is_collateral(exit) is collateral


def failure(rank, at, collateral=False) -> Failure:
    return Failure(Cause.RANK_CRASH, rank, 0, at, f"rank {rank}", collateral)


def test_first_failure_is_the_earliest_that_is_no_symptom():
    found = first_failure([failure(0, 10, True), failure(2, 30), failure(1, 40)])
    assert found is not None
    assert found.rank == 2


def test_only_symptoms_leave_the_earliest_symptom():
    found = first_failure([failure(1, 20, True), failure(0, 10, True)])
    assert found is not None
    assert found.rank == 0


def test_no_failure():
    assert first_failure([]) is None


@pytest.mark.parametrize(
    ("exit", "text"),
    [
        (exit_of(2, signal=9), "rank 2 was killed by SIGKILL"),
        (
            exit_of(1, exit_code=1, exception="ValueError", message="bad\nmore"),
            "rank 1: ValueError: bad",
        ),
        (exit_of(0, exit_code=7), "rank 0 exited with code 7"),
    ],
)
def test_one_line(exit, text):
    assert describe(exit) == text


def test_what_jax_says_of_a_lost_peer_is_a_symptom():
    said = "UNKNOWN: Gloo AllGather failed: Read error [10.0.0.1]:5847: Connection reset by peer"
    assert is_collateral(exit_of(exit_code=1, exception="ValueError", message=said))
    own = "Incompatible shapes: Connection reset by peer"
    assert not is_collateral(exit_of(exit_code=1, exception="ValueError", message=own))
