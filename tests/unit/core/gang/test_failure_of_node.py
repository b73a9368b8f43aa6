"""Which failed rank of a node is reported, and with what cause."""

import pytest

from phalanx.core.gang.failures import RankExit, failure_of_node
from phalanx.core.reasons import Cause

pytestmark = pytest.mark.unit

BUG = RankExit(rank=1, at=20, exit_code=1, exception="ValueError", message="no", traceback="tb")
TORN = RankExit(
    rank=0, at=10, exit_code=1, exception="DistBackendError", message="Connection reset by peer"
)


def failed(*exits, **facts):
    return failure_of_node(exits, **{"node_rank": 2, "stepped": True, "oom_killed": False, **facts})


def test_a_death_of_its_own_comes_before_an_earlier_collateral_one():
    found = failed(TORN, BUG)
    assert (found.rank, found.node_rank, found.at, found.traceback) == (1, 2, 20, "tb")
    assert not found.collateral
    assert failed(TORN).collateral


def test_of_several_the_first_one_counts():
    assert failed(BUG, RankExit(rank=0, at=15, exit_code=3)).rank == 0


def test_a_kill_counts_as_out_of_memory_only_for_sigkill():
    killed = RankExit(rank=0, at=1, signal=9)
    assert failed(killed, oom_killed=True).message != failed(killed).message
    term = RankExit(rank=0, at=1, signal=15)
    assert failed(term, oom_killed=True).message == failed(term).message


def test_an_error_before_the_first_step_is_the_users():
    assert failed(BUG, stepped=False).cause is Cause.USER_ERROR
