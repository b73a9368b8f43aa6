import pytest

from phalanx.core.training.ledger import Consumed, GenerationLedger, audit, merge, split

pytestmark = pytest.mark.unit


def generation(number, began, *rows, attempt=1, all_reported=True):
    return GenerationLedger(attempt, number, began, tuple(rows), all_reported)


def test_slices_of_all_ranks_and_steps_fold_into_one_row():
    rows = [Consumed(0, lo, lo + 4) for lo in range(0, 48, 4)]
    assert merge(reversed(rows)) == (Consumed(0, 0, 48),)


def test_a_position_used_twice_stays_visible():
    assert merge([Consumed(0, 0, 8), Consumed(0, 4, 6)]) == (
        Consumed(0, 0, 4),
        Consumed(0, 4, 6, 2),
        Consumed(0, 6, 8),
    )


def test_merging_merged_rows_changes_nothing_and_grouping_does_not_matter():
    rows = [
        Consumed(0, 0, 8),
        Consumed(0, 4, 6),
        Consumed(1, 2, 3),
        Consumed(1, 3, 9),
    ]
    assert merge(merge(rows)) == merge(rows)
    assert merge([*merge(rows[:2]), *merge(rows[2:])]) == merge(rows)


def test_split_cuts_rows_at_a_point():
    before, after = split([Consumed(0, 0, 10), Consumed(1, 0, 10), Consumed(2, 0, 10)], (1, 4))
    assert before == (Consumed(0, 0, 10), Consumed(1, 0, 4))
    assert after == (Consumed(1, 4, 10), Consumed(2, 0, 10))


def test_an_uninterrupted_run_is_exactly_once():
    summary = audit(
        [generation(0, (0, 0), Consumed(0, 0, 100), Consumed(1, 0, 100))],
        num_samples=100,
        until=(2, 0),
    )
    assert summary.exactly_once and summary.redone == 0 and summary.consumed == 200


def test_work_behind_the_next_generations_start_is_redone_not_duplicated():
    summary = audit(
        [
            generation(0, (0, 0), Consumed(0, 0, 70)),
            generation(1, (0, 40), Consumed(0, 40, 100), Consumed(1, 0, 100)),
        ],
        num_samples=100,
        until=(2, 0),
    )
    assert (summary.missed, summary.duplicated, summary.redone) == (0, 0, 30)


def test_a_fallback_further_back_cuts_every_generation_before_it():
    summary = audit(
        [
            generation(0, (0, 0), Consumed(0, 0, 70)),
            generation(1, (0, 40), Consumed(0, 40, 90)),
            generation(0, (0, 20), Consumed(0, 20, 100), attempt=2),
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (summary.missed, summary.duplicated, summary.redone) == (0, 0, 100)


def test_a_generation_that_never_began_cuts_nothing():
    generations = [generation(0, (0, 0), Consumed(0, 0, 100)), generation(1, None)]
    assert audit(generations, num_samples=100, until=(1, 0)).exactly_once


def test_misses_and_duplicates_in_the_lineage_are_counted():
    summary = audit(
        [
            generation(
                0,
                (0, 0),
                Consumed(0, 0, 40),
                Consumed(0, 35, 50),
                Consumed(0, 60, 100),
            )
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (summary.missed, summary.duplicated) == (10, 5)
    assert not summary.exactly_once


@pytest.mark.parametrize(
    ("heard", "missed", "unreported"), [(False, 0, 15), (True, 15, 0)], ids=["lost", "heard"]
)
def test_what_a_lost_node_did_not_report_is_unheard_not_missed(heard, missed, unreported):
    """Its last rows before the point where the next one took up; what it redid counts as ever."""
    found = audit(
        [
            generation(0, (0, 0), Consumed(0, 0, 90), Consumed(0, 95, 100), all_reported=heard),
            generation(0, (1, 10), Consumed(1, 10, 100), attempt=2),
        ],
        num_samples=100,
        until=(2, 0),
    )
    assert (found.missed, found.unreported, found.duplicated) == (missed, unreported, 0)
    assert not found.exactly_once and found.consumed == 185


def test_only_the_lost_ones_part_is_unheard():
    found = audit(
        [
            generation(0, (0, 0), Consumed(0, 0, 30)),  # took part until 40, and said 30
            generation(0, (0, 40), Consumed(0, 40, 50), attempt=2, all_reported=False),  # until 60
            generation(0, (0, 60), Consumed(0, 65, 100), attempt=3),  # a hole of its own
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (found.missed, found.unreported) == (15, 10)


def test_one_that_did_not_even_say_where_it_took_up_may_have_done_any_part():
    found = audit(
        [
            generation(0, (0, 0), Consumed(0, 0, 30)),
            generation(0, None, attempt=2, all_reported=False),
            generation(0, (0, 60), Consumed(0, 60, 100), attempt=3),
        ],
        num_samples=100,
        until=(1, 0),
    )
    assert (found.missed, found.unreported) == (0, 30)
