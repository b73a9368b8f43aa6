import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.training.federation import Federation, Phase, Rules

pytestmark = pytest.mark.unit
RULES = Rules(num_rounds=3, min_sites=2, round_s=100.0, gather_s=2.0)


def begun(*sites, rules=RULES):
    """A federation in its first round, at 10 s."""
    one = Federation(rules)
    for site in sites:
        assert not one.wants_work(site, 8.0)
    assert not one.begins(8.0)
    assert one.begins(10.0)
    return one


def test_a_round_begins_with_the_least_number_of_sites_and_not_before():
    one = Federation(RULES)
    one.wants_work("a", 0.0)
    assert not one.begins(3.0)
    one.wants_work("a", 4.0)
    one.wants_work("b", 4.0)
    assert not one.begins(5.0) and one.begins(7.0)
    assert one.cohort == {"a", "b"}


def test_sites_that_come_together_train_together():
    one = Federation(RULES)
    one.wants_work("a", 0.0), one.wants_work("b", 0.0)
    assert not one.begins(1.0)
    one.wants_work("c", 1.5)
    assert not one.begins(2.0), "a new one: the time to gather begins anew"
    assert one.begins(4.5) and one.cohort == {"a", "b", "c"}


def test_one_that_stopped_asking_is_not_waited_for():
    one = Federation(RULES)
    one.wants_work("gone", 0.0), one.wants_work("a", 17.0), one.wants_work("b", 17.0)
    assert not one.begins(17.5)
    assert one.begins(19.5) and one.cohort == {"a", "b"}


def test_a_late_joiner_waits_for_the_next_round():
    one = begun("a", "b")
    assert not one.wants_work("late", 11.0) and not one.may_answer("late", 1)
    for site in "ab":
        assert one.wants_work(site, 11.0)
        one.answer(site)
        assert not one.wants_work(site, 12.0)
    assert one.ends(12.0) and one.counts
    one.close()
    for site in ("a", "b", "late"):
        one.wants_work(site, 13.0)
    one.begins(13.0)
    assert one.begins(16.0) and "late" in one.cohort


def test_who_drops_out_is_waited_for_until_the_round_is_over():
    one = begun("a", "b", "c")
    one.answer("a"), one.answer("b")
    assert not one.ends(109.0)
    assert one.ends(110.0) and one.counts


def test_below_the_least_number_nothing_counts():
    one = begun("a", "b", "c")
    one.answer("a")
    assert one.ends(110.0) and not one.counts
    one.abandon()
    assert (one.closed, one.abandoned, one.phase) == (0, 1, Phase.GATHERING)
    assert not one.may_answer("b", 1), "too late: that round was given up"


def test_a_coordinator_that_comes_back_goes_on_in_the_middle_of_the_round():
    one = Federation(RULES)
    one.resume(1, {"a", "b"}, {"a", "stranger"}, 50.0)
    assert not one.wants_work("a", 51.0) and one.wants_work("b", 51.0)
    assert one.may_answer("b", 2) and not one.may_answer("b", 1)
    done = Federation(RULES)
    done.resume(3, set(), set(), 0.0)
    assert done.phase is Phase.DONE


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("wsx"), st.floats(0.1, 40)), max_size=300)
)
def test_no_round_counts_with_too_few_and_no_site_counts_twice(events):
    """Sites ask, answer or say nothing, in any order and at any pace."""
    one, now = Federation(Rules(num_rounds=5, min_sites=3, round_s=60.0, gather_s=1.0)), 0.0
    working: dict[int, int] = {}
    counted: list[tuple[int, set[str]]] = []
    for number, what, later in events:
        now, site = now + later, f"s{number}"
        if one.begins(now):
            assert len(one.cohort) >= 3
        elif one.ends(now):
            if one.counts:
                counted.append((one.closed + 1, set(one.answered)))
                one.close()
            else:
                one.abandon()
        if what == "w" and one.wants_work(site, now):
            working[number] = one.closed + 1
        elif what == "s" and number in working and one.may_answer(site, working[number]):
            one.answer(site)
            assert not one.may_answer(site, working[number])
    assert [number for number, _ in counted] == list(range(1, one.closed + 1))
    assert all(len(sites) >= 3 for _, sites in counted)
    assert one.closed <= 5
