"""Which rank has not joined a collective, and which called another one."""

import pytest

from phalanx.core.gang.collectives import LastCollective, compare
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.stalls import CapturedStack, culprits, with_culprit
from phalanx.core.reasons import Cause

pytestmark = pytest.mark.unit


def last(number, operation="all_reduce", *, done=False, sizes="[[4]]", group="default_pg 0"):
    return LastCollective(group, number, operation, sizes, done)


def test_a_rank_that_has_not_joined_is_named():
    found = compare({0: [last(7)], 1: [last(6, done=True)], 2: [last(7)]})
    assert found.ranks == (1,) and not found.mismatch
    assert found.said == (
        "rank 1 did not join all_reduce number 7 of group default_pg 0:"
        " the last one of rank 1 is all_reduce number 6"
    )


def test_ranks_that_called_different_collectives_are_named():
    found = compare({0: [last(7)], 1: [last(7, "all_gather")], 2: [last(7)]})
    assert found.ranks == (1,) and found.mismatch
    assert "ranks 0, 2 called all_reduce [[4]], rank 1 called all_gather [[4]]" in found.said
    sizes = compare({0: [last(7)], 1: [last(7, sizes="[[5]]")], 2: [last(7)]})
    assert sizes.ranks == (1,)
    # Ranks may bring different sizes to these.
    assert compare({0: [last(7, "all_gather")], 1: [last(7, "all_gather", sizes="[[5]]")]}) is None


def test_of_two_ranks_with_different_collectives_neither_is_at_fault():
    found = compare({0: [last(7)], 1: [last(7, "broadcast")]})
    assert found.ranks == () and found.mismatch


def test_groups_are_compared_one_by_one_and_quiet_ones_tell_nothing():
    other = last(3, group="control 1")
    found = compare({0: [other, last(7)], 1: [other, last(6, done=True)]})
    assert found is None or found.ranks == (1,)
    done = last(9, done=True)
    assert compare({0: [done], 1: [done]}) is None is compare({})
    assert compare({0: [last(7)], 1: [last(7)]}) is None


def test_the_failure_names_the_rank_with_the_evidence_of_the_collectives():
    stacks = {
        rank: CapturedStack(0, "", "no answer", [last(7) if rank != 1 else last(6, done=True)])
        for rank in range(3)
    }
    failure = with_culprit(Failure(Cause.STALLED, None, 0, 5, "no step for 50s; older"), stacks)
    assert failure.rank == 1
    assert failure.message.startswith("no step for 50s; rank 1 did not join all_reduce number 7")


def test_a_rank_that_a_signal_has_stopped_comes_before_all_other_evidence():
    stacks = {
        0: CapturedStack(0, "", "no answer", [last(7)]),
        1: CapturedStack(0, "", "no answer within 3 s: the process is stopped by a signal"),
        2: CapturedStack(0, "", "no answer", [last(6, done=True)]),
    }
    assert culprits(stacks)[0] == (1,)
