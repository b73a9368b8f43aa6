"""What a fault of a job shows: evidence, what followed, and what it cost."""

import pytest

from phalanx.core.gang.failures import Failure
from phalanx.core.reasons import Cause
from phalanx.services.queries.lineage import EVIDENCE_LINES, GenerationFault, last_lines, with_cost
from phalanx.store.lineage import GenerationRow, RestoreRow
from unit.core.jobs.test_machine import UP, play

pytestmark = pytest.mark.unit
S = 1_000_000
CRASH = Failure(
    Cause.RANK_CRASH,
    2,
    0,
    50 * S,
    "exit code 3",
    exit_code=3,
    exception="ValueError",
    traceback="\n".join(f"line {number}" for number in range(40)),
)
FAILED = GenerationRow(
    1, 1, 0, up_at=0, first_step_at=10 * S, last_step_at=48 * S, first_step=1, last_step=20
)
NEXT = GenerationRow(1, 1, 1, up_at=55 * S, first_step_at=60 * S, first_step=13, last_step=13)
RESTORE = RestoreRow(1, 1, 1, path="c", step=12, epoch=0, position=0, exact=True, took_s=1.0, at=5)


def costed(rows, restores=(), key=(1, 0)):
    fault = GenerationFault(CRASH.cause.value, CRASH.message, CRASH.at, CRASH).view(*key)
    return with_cost(fault, rows, restores, play(*UP))


def test_the_evidence_is_that_of_the_rank():
    view = costed([FAILED])
    assert (view.rank, view.node_rank, view.exit_code, view.exception) == (2, 0, 3, "ValueError")
    assert view.evidence.splitlines() == [f"line {number}" for number in range(28, 40)]
    assert len(last_lines("x" * 9000)) == 2000 and EVIDENCE_LINES == 12


def test_the_cost_is_the_wait_and_the_steps_that_are_made_again():
    view = costed([FAILED, NEXT], [RESTORE])
    slots = play(*UP).attempt.num_slots
    assert view.action == "ranks started again in place, generation 1"
    assert (view.wait_s, view.lost_s, view.lost_steps) == (5.0, 10.0, 8)
    # Nineteen steps took 38 seconds.
    assert view.lost_slot_s == slots * (10.0 + 8 * 2.0)


def test_a_script_that_resumes_on_its_own_loses_what_it_makes_again():
    assert costed([FAILED, NEXT]).lost_steps == 8


def test_what_is_not_known_yet_is_none():
    view = costed([FAILED])
    assert (view.wait_s, view.lost_s, view.lost_steps, view.lost_slot_s) == (None,) * 4
    assert view.action.startswith("none, the job is ")
    placed = GenerationRow(1, 2, 0)
    assert costed([FAILED, placed]).action == "placed again, attempt 2"
    # A generation without a step has none to lose.
    assert costed([GenerationRow(1, 1, 0), NEXT]).lost_steps == 0
