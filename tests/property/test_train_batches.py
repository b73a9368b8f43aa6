from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.batches import Plan
from phalanx.core.ledger import GenerationLedger, Row, audit, merge

pytestmark = pytest.mark.unit

sizes = st.integers(1, 200)
worlds = st.integers(1, 9)


@settings(max_examples=150, deadline=None)
@given(n=sizes, batch=st.integers(1, 40), accumulate=st.integers(1, 4), stops=st.lists(
    st.tuples(worlds, st.integers(1, 5)), max_size=5), last=worlds, drop=st.booleans())  # fmt: skip
def test_any_schedule_of_world_sizes_consumes_the_same_global_batches(
    n, batch, accumulate, stops, last, drop
):
    plan = Plan(n, batch, accumulate, drop)
    alone = [(s.lo, s.hi) for s in plan.shares(0, 0, 1)]
    at, seen = 0, []
    for world, num_steps in [*stops, (last, 10**6)]:
        steps = 0
        for shares in zip(*(plan.shares(at, r, world) for r in range(world)), strict=True):
            real = [s for s in shares if not s.spare]
            assert all(a.hi == b.lo for a, b in pairwise(real))
            assert len({(s.last, s.end) for s in shares}) == 1
            seen.append((real[0].lo, real[-1].hi))
            if shares[0].last:
                steps += 1
                at = shares[0].end
                if steps == num_steps:
                    break
    assert seen == alone


@settings(max_examples=100, deadline=None)
@given(n=sizes, batch=st.integers(1, 40), accumulate=st.integers(1, 4), world=worlds)
def test_weights_of_a_step_add_up_to_the_world_size(n, batch, accumulate, world):
    total = 0.0
    for shares in zip(
        *(Plan(n, batch, accumulate).shares(0, r, world) for r in range(world)), strict=True
    ):
        total += sum(s.weight for s in shares)
        if shares[0].last:
            assert total == pytest.approx(world)
            total = 0.0


@settings(max_examples=150, deadline=None)
@given(data=st.data(), n=st.integers(1, 60), epochs=st.integers(1, 3))
def test_any_number_of_roll_backs_is_exactly_once(data, n, epochs):
    total = n * epochs
    began, generations, redone = 0, [], 0
    for number in range(data.draw(st.integers(0, 4))):
        end = data.draw(st.integers(began, total))
        generations.append(_ledger(number, began, end, n))
        restart = data.draw(st.integers(0, end))
        began = restart
    generations.append(_ledger(len(generations), began, total, n))
    worked = sum(row.hi - row.lo for one in generations for row in one.rows)
    redone = worked - total
    summary = audit(generations, num_samples=n, until=(epochs, 0))
    assert summary.exactly_once
    assert summary.redone == redone


def _ledger(number, start, end, n):
    rows = [Row(at // n, at % n, at % n + 1) for at in range(start, end)]
    return GenerationLedger(1, number, (start // n, start % n), merge(rows))
