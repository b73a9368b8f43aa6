"""The cost ledger over random histories: accounts add up exactly, and time only adds to them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.cost.ledger import (
    DAY_US,
    Account,
    AttemptHistory,
    GenerationTimes,
    Interruption,
    Save,
    queue_rows,
    rows_of,
    slices_of,
)

pytestmark = pytest.mark.unit

START = 20_000 * DAY_US + 17
# Times of reports may be missing, late, or out of order: supervisors have clocks of their own.
moments = st.none() | st.integers(START - 1000, START + 3 * DAY_US)
steps = st.none() | st.integers(0, 50)


@st.composite
def generations(draw: st.DrawFn, number: int) -> GenerationTimes:
    began, first = draw(moments), draw(steps)
    last_at = began if began is None else began + draw(st.integers(0, DAY_US))
    return GenerationTimes(
        number=number,
        up_at=draw(moments),
        first_step_at=began,
        last_step_at=last_at,
        first_step=None if began is None else first or 0,
        last_step=None if began is None else (first or 0) + draw(st.integers(0, 40)),
        ended_at=draw(moments),
        failed=draw(st.booleans()),
    )


@st.composite
def histories(draw: st.DrawFn) -> AttemptHistory:
    count = draw(st.integers(0, 4))
    causes = st.none() | st.sampled_from(list(Interruption))
    saves = st.builds(
        Save,
        generation=st.integers(0, 4),
        at=st.integers(START - 1000, START + 3 * DAY_US),
        took_us=st.integers(0, DAY_US // 4),
    )
    return AttemptHistory(
        placed_at=START,
        ended_at=draw(st.none() | st.integers(START, START + 4 * DAY_US)),
        after=draw(causes),
        ended_by=draw(causes),
        high_step=draw(steps),
        generations=tuple(draw(generations(number)) for number in range(count)),
        saves=tuple(draw(st.lists(saves, max_size=4))),
    )


times = st.integers(START, START + 5 * DAY_US)


@given(histories(), times, st.integers(1, 64))
def test_accounts_add_up_to_the_time_that_slots_were_held(
    history: AttemptHistory, now: int, slots: int
) -> None:
    found = slices_of(history, now)
    end = now if history.ended_at is None else history.ended_at
    assert all(one.to_at > one.from_at for one in found)
    assert all(one.to_at == two.from_at for one, two in itertools.pairwise(found))
    assert sum(one.to_at - one.from_at for one in found) == end - START
    rows = rows_of(found, slots)
    assert sum(row.total for row in rows) == (end - START) * slots
    for row in rows:
        assert row.total == (row.to_at - row.from_at) * slots
        assert all(amount > 0 for _, amount in row.amounts)
        assert row.from_at // DAY_US == (row.to_at - 1) // DAY_US
    assert all(one.to_at <= two.from_at for one, two in itertools.pairwise(rows))


@given(histories(), times, times)
def test_time_that_passes_takes_nothing_from_an_account(
    history: AttemptHistory, one: int, two: int
) -> None:
    def sums(now: int) -> Counter[Account]:
        rows = rows_of(slices_of(history, now), 2)
        return Counter({key: sum(dict(row.amounts).get(key, 0) for row in rows) for key in Account})

    early, late = sums(min(one, two)), sums(max(one, two))
    assert all(late[account] >= early[account] for account in Account)


@given(times, times, st.integers(1, 64))
def test_a_wait_is_its_length_times_the_slots_that_were_asked_for(
    one: int, two: int, slots: int
) -> None:
    rows = queue_rows(min(one, two), max(one, two), slots)
    assert sum(dict(row.amounts)[Account.QUEUED] for row in rows) == abs(one - two) * slots
    assert all(row.generation is None for row in rows)
