from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.training.batches import BatchPlan, cut, cut_by, parts_of, rebalanced
from phalanx.core.training.ledger import Consumed, GenerationLedger, audit, merge

pytestmark = pytest.mark.unit

sizes = st.integers(1, 200)
worlds = st.integers(1, 9)


@settings(max_examples=150, deadline=None)
@given(
    n=sizes,
    batch=st.integers(1, 40),
    accumulate=st.integers(1, 4),
    stops=st.lists(st.tuples(worlds, st.integers(1, 5)), max_size=5),
    last=worlds,
    drop=st.booleans(),
)
def test_any_schedule_of_world_sizes_consumes_the_same_global_batches(
    n, batch, accumulate, stops, last, drop
):
    plan = BatchPlan(n, batch, accumulate, drop)
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
        *(BatchPlan(n, batch, accumulate).shares(0, r, world) for r in range(world)), strict=True
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
    rows = [Consumed(at // n, at % n, at % n + 1) for at in range(start, end)]
    return GenerationLedger(1, number, (start // n, start % n), merge(rows))


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    accumulate=st.integers(1, 3),
    pieces=st.integers(1, 3),
    world=worlds,
    stop=st.integers(0, 5),
)
def test_batches_of_a_batch_sampler_are_split_as_they_are(sizes, accumulate, pieces, world, stop):
    ends = tuple(sum(sizes[: at + 1]) for at in range(len(sizes)))
    plan = BatchPlan(ends[-1], max(sizes), accumulate, pieces=pieces, bounds=ends)
    alone = list(plan.shares(0, 0, 1))
    assert len(alone) == plan.num_micro_batches
    assert {s.end for s in alone if s.last} <= set(ends)
    steps = [s.end for s in alone if s.last]
    start = ([0, *steps])[min(stop, len(steps))]
    seen = [
        (min(s.lo for s in row if not s.spare), max(s.hi for s in row if not s.spare))
        for row in zip(*(plan.shares(start, r, world) for r in range(world)), strict=True)
    ]
    assert seen == [(s.lo, s.hi) for s in alone if s.lo >= start]


parts = st.lists(st.integers(1, 4000), min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(lo=st.integers(0, 50), size=st.integers(0, 300), parts=parts)
def test_uneven_shares_cover_everything_once_and_starve_nobody(lo, size, parts):
    cuts = [cut_by(lo, lo + size, rank, parts) for rank in range(len(parts))]
    assert cuts[0][0] == lo and cuts[-1][1] == lo + size
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    if size >= len(parts):
        assert min(b - a for a, b in cuts) >= 1
    if len(set(parts)) == 1:
        assert cuts == [cut(lo, lo + size, rank, len(parts)) for rank in range(len(parts))]


@settings(max_examples=100, deadline=None)
@given(n=sizes, batch=st.integers(1, 40), accumulate=st.integers(1, 3), parts=parts)
def test_uneven_shares_keep_global_batches_and_weights(n, batch, accumulate, parts):
    plan = BatchPlan(n, batch, accumulate, parts=tuple(parts))
    alone = [(s.lo, s.hi) for s in plan.shares(0, 0, 1)]
    rows = list(zip(*(plan.shares(0, r, len(parts)) for r in range(len(parts))), strict=True))
    seen, total = [], 0.0
    for row in rows:
        real = [s for s in row if not s.spare]
        seen.append((real[0].lo, real[-1].hi))
        total += sum(s.weight for s in row)
        if row[0].last:
            assert total == pytest.approx(len(parts))
            total = 0.0
    assert seen == alone


def test_shares_follow_speed_and_settle():
    even = parts_of([1, 1, 1])
    fresh = rebalanced(even, [1.0, 1.0, 2.0])
    assert fresh[0] == fresh[1] == 2 * fresh[2]
    # With those shares all take equally long: nothing changes any more.
    assert rebalanced(fresh, [1.2, 1.2, 1.2]) == fresh
    assert rebalanced(even, [1.0, 1.0, 1.03]) == even
    assert rebalanced(even, [0.0, 1.0, 1.0]) == even
    assert min(rebalanced(even, [1.0, 1.0, 1000.0])) >= 200
