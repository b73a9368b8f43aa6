import pytest

from phalanx.core.training.ledger import GenerationLedger, Row, audit, merge, split

pytestmark = pytest.mark.unit


def generation(number, began, *rows, attempt=1, heard=True):
    return GenerationLedger(attempt, number, began, tuple(rows), heard)


def test_slices_of_all_ranks_and_steps_fold_into_one_row():
    rows = [Row(0, lo, lo + 4) for lo in range(0, 48, 4)]
    assert merge(reversed(rows)) == (Row(0, 0, 48),)


def test_a_position_used_twice_stays_visible():
    assert merge([Row(0, 0, 8), Row(0, 4, 6)]) == (Row(0, 0, 4), Row(0, 4, 6, 2), Row(0, 6, 8))


def test_merging_merged_rows_changes_nothing_and_grouping_does_not_matter():
    rows = [Row(0, 0, 8), Row(0, 4, 6), Row(1, 2, 3), Row(1, 3, 9)]
    assert merge(merge(rows)) == merge(rows)
    assert merge([*merge(rows[:2]), *merge(rows[2:])]) == merge(rows)


def test_split_cuts_rows_at_a_point():
    before, after = split([Row(0, 0, 10), Row(1, 0, 10), Row(2, 0, 10)], (1, 4))
    assert before == (Row(0, 0, 10), Row(1, 0, 4))
    assert after == (Row(1, 4, 10), Row(2, 0, 10))


def test_an_uninterrupted_run_is_exactly_once():
    summary = audit(
        [generation(0, (0, 0), Row(0, 0, 100), Row(1, 0, 100))], num_samples=100, until=(2, 0)
    )
    assert summary.exactly_once and summary.redone == 0 and summary.consumed == 200


def test_work_behind_the_next_generations_start_is_redone_not_duplicated():
    summary = audit(
        [
            generation(0, (0, 0), Row(0, 0, 70)),
            generation(1, (0, 40), Row(0, 40, 100), Row(1, 0, 100)),
        ],
        num_samples=100,
        until=(2, 0),
    )
    assert (summary.missed, summary.duplicated, summary.redone) == (0, 0, 30)


def test_a_fallback_further_back_cuts_every_generation_before_it():
    summary = audit(
        [
            generation(0, (0, 0), Row(0, 0, 70)),
            generation(1, (0, 40), Row(0, 40, 90)),
            generation(0, (0, 20), Row(0, 20, 100), attempt=2),
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (summary.missed, summary.duplicated, summary.redone) == (0, 0, 100)


def test_a_generation_that_never_began_cuts_nothing():
    generations = [generation(0, (0, 0), Row(0, 0, 100)), generation(1, None)]
    assert audit(generations, num_samples=100, until=(1, 0)).exactly_once


def test_misses_and_duplicates_in_the_lineage_are_counted():
    summary = audit(
        [generation(0, (0, 0), Row(0, 0, 40), Row(0, 35, 50), Row(0, 60, 100))],
        num_samples=100,
        until=(1, 0),
    )
    assert (summary.missed, summary.duplicated) == (10, 5)
    assert not summary.exactly_once


@pytest.mark.parametrize(
    ("heard", "missed", "unheard"), [(False, 0, 15), (True, 15, 0)], ids=["lost", "heard"]
)
def test_what_a_lost_node_did_not_report_is_unheard_not_missed(heard, missed, unheard):
    """Its last rows before the point where the next one took up; what it redid counts as ever."""
    found = audit(
        [
            generation(0, (0, 0), Row(0, 0, 90), Row(0, 95, 100), heard=heard),
            generation(0, (1, 10), Row(1, 10, 100), attempt=2),
        ],
        num_samples=100,
        until=(2, 0),
    )
    assert (found.missed, found.unheard, found.duplicated) == (missed, unheard, 0)
    assert not found.exactly_once and found.consumed == 185


def test_only_the_lost_ones_part_is_unheard():
    found = audit(
        [
            generation(0, (0, 0), Row(0, 0, 30)),  # took part until 40, and said 30
            generation(0, (0, 40), Row(0, 40, 50), attempt=2, heard=False),  # until 60
            generation(0, (0, 60), Row(0, 65, 100), attempt=3),  # a hole of its own
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (found.missed, found.unheard) == (15, 10)


def test_one_that_did_not_even_say_where_it_took_up_may_have_done_any_part():
    found = audit(
        [
            generation(0, (0, 0), Row(0, 0, 30)),
            generation(0, None, attempt=2, heard=False),
            generation(0, (0, 60), Row(0, 60, 100), attempt=3),
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (found.missed, found.unheard) == (0, 30)
