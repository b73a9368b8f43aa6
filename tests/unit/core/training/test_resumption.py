"""When a start goes on, waits or fails."""

import pytest

from phalanx.core.training.resumption import FoundCheckpoints, StartAction, StartWait
from support.manifests import manifest_of

pytestmark = pytest.mark.unit

WAIT_S = 600.0


def saved(step, *, root="step-00000001-00000000", **more):
    return manifest_of(step, root=root, **more)


NINE, FOURTEEN = saved(9), saved(14)


def found(*manifests, **more):
    return FoundCheckpoints({one.name: one for one in manifests}, **more)


def wait(wanted=FOURTEEN.name, beginning=0):
    return StartWait("/c/j-1", wanted, WAIT_S, beginning)


def steps(decision):
    return [one.step for one in decision.order]


@pytest.mark.parametrize(
    "here",
    [
        found(NINE, FOURTEEN),
        found(saved(20)),
        found(FOURTEEN, store_error="away"),
        found(NINE, damaged=frozenset({FOURTEEN.name})),
    ],
    ids=["there", "longer", "store away", "quarantined"],
)
def test_a_start_goes_on_with_what_the_job_has_committed(here):
    decision = wait().decide(here, 0.0)
    assert (decision.action, decision.message) == (StartAction.RESUME, "")


@pytest.mark.parametrize(
    "here",
    [found(), found(unread=("/c/j-1: Stale file handle",)), found(store_error="away")],
    ids=["empty", "unread", "store away"],
)
def test_without_its_checkpoints_a_start_waits_and_then_fails_and_never_begins(here):
    one = wait()
    for now in (0.0, 1.0, WAIT_S - 1):
        decision = one.decide(here, now)
        assert decision.action is StartAction.WAIT
        assert FOURTEEN.name in decision.message
        assert "/c/j-1" in decision.message
    assert one.decide(here, WAIT_S).action is StartAction.FAIL


def test_a_mount_that_comes_late_ends_the_wait():
    one = wait()
    assert one.decide(found(), 0.0).action is StartAction.WAIT
    assert steps(one.decide(found(NINE, FOURTEEN), 30.0)) == [14, 9]


def test_an_older_checkpoint_is_taken_only_after_the_wait_and_that_is_said():
    one = wait()
    assert one.decide(found(NINE), 0.0).action is StartAction.WAIT
    decision = one.decide(found(NINE), WAIT_S)
    assert steps(decision) == [9]
    assert "step 9" in decision.message
    assert FOURTEEN.name in decision.message


def test_without_a_control_plane_a_folder_that_cannot_be_read_is_waited_for():
    one = wait(None)
    assert one.decide(found(NINE, unread=("x",)), 0.0).action is StartAction.WAIT
    assert one.decide(found(unread=("x",)), WAIT_S).action is StartAction.FAIL
    assert wait(None).decide(found(), 0.0).action is StartAction.BEGIN
    assert wait(None).decide(found(NINE, store_error="away"), 0.0).action is StartAction.RESUME


def test_when_all_are_damaged_the_job_begins_anew_and_says_so():
    bad = frozenset({NINE.name, FOURTEEN.name})
    decision = wait().decide(found(damaged=bad), 0.0)
    assert decision.action is StartAction.BEGIN
    assert "all 2 checkpoints" in decision.message
    assert "begins anew" in decision.message
    # What the object store may hold is not forgotten because what is here is damaged.
    away = found(damaged=bad, store_error="away")
    assert wait().decide(away, 0.0).action is StartAction.WAIT


def test_a_checkpoint_that_cannot_be_read_is_tried_again_and_passed_over_only_in_the_end():
    one, here = wait(), found(NINE, FOURTEEN)
    one.could_not_read(FOURTEEN.name, "Input/output error")
    assert one.decide(here, 0.0).action is StartAction.WAIT
    assert steps(one.decide(here, 1.0)) == [14, 9]
    one.could_not_read(FOURTEEN.name, "Input/output error")
    decision = one.decide(here, WAIT_S + 1)
    assert steps(decision) == [9]
    assert "Input/output error" in decision.message
    one.could_not_read(NINE.name, "Input/output error")
    assert one.decide(here, WAIT_S + 2).action is StartAction.FAIL


def test_the_owners_new_beginning_waits_for_nothing_and_forgets_the_past():
    for here in (found(NINE, FOURTEEN), found(unread=("x",)), found(store_error="away")):
        assert wait(None, beginning=2).decide(here, 0.0).action is StartAction.BEGIN
    anew = saved(3, commit=20, attempt=3, root="step-00000003-00000014", beginning=2)
    assert steps(wait(anew.name, 2).decide(found(FOURTEEN, anew), 0.0)) == [3]
    assert wait(anew.name, 2).decide(found(FOURTEEN), 0.0).action is StartAction.WAIT


def test_checkpoints_of_another_kind_count_as_there_and_are_not_resumed_from():
    one = StartWait("/c", FOURTEEN.name, suits=lambda manifest: manifest.step == 9)
    assert steps(one.decide(found(NINE, FOURTEEN), 0.0)) == [9]


OURS, THEIRS = f"{'5f' * 16}-{'1a' * 8}", f"{'77' * 16}-{'2b' * 8}"
OLD = saved(14, attempt=2, root="step-00000003-00000000", job="j-1", job_uid=THEIRS)


def test_checkpoints_of_a_job_of_another_database_are_passed_over_and_both_are_named():
    mine = saved(9, job="j-1", job_uid=OURS)
    one = StartWait("/c/j-1", mine.name, WAIT_S, job_uid=OURS)
    decision = one.decide(found(OLD, mine), 0.0)
    assert decision.action is StartAction.RESUME and steps(decision) == [9]
    assert "j-1 (database 77777777, job 2b2b2b2b)" in decision.passed_over
    assert "not of this job (database 5f5f5f5f, job 1a1a1a1a)" in decision.passed_over
    assert "--continue" in decision.passed_over
    # With nothing of its own the job begins; with the guard off it would go on from theirs.
    assert StartWait("/c", None, job_uid=OURS).decide(found(OLD), 0.0).action is StartAction.BEGIN
    assert steps(StartWait("/c", None).decide(found(OLD), 0.0)) == [14]


def test_a_checkpoint_of_another_job_does_not_stand_for_the_one_that_is_waited_for():
    one = StartWait("/c/j-1", NINE.name, WAIT_S, job_uid=OURS)
    assert one.decide(found(OLD), 0.0).action is StartAction.WAIT
    assert one.decide(found(OLD), WAIT_S).action is StartAction.FAIL


def test_checkpoints_of_earlier_releases_have_no_such_name_and_are_taken():
    decision = StartWait("/c", FOURTEEN.name, job_uid=OURS).decide(found(FOURTEEN), 0.0)
    assert steps(decision) == [14] and decision.passed_over == ""
