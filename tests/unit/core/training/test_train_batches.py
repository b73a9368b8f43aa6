import pytest

from phalanx.core.training import control
from phalanx.core.training.batches import BatchPlan, cut

pytestmark = pytest.mark.unit


def of_all_ranks(plan, world_size, start=0):
    return list(
        zip(*(plan.shares(start, rank, world_size) for rank in range(world_size)), strict=True)
    )


def test_the_first_ranks_carry_the_remainder():
    assert [cut(10, 20, rank, 3) for rank in range(3)] == [(10, 14), (14, 17), (17, 20)]


def test_full_equal_batches_weigh_exactly_one():
    for shares in of_all_ranks(BatchPlan(96, 48), 3):
        assert [share.weight for share in shares] == [1.0, 1.0, 1.0]
        assert all(share.last for share in shares)


def test_spare_ranks_get_one_sample_of_weight_zero():
    shares = of_all_ranks(BatchPlan(49, 48), 3)[-1]
    assert [(s.lo, s.hi, s.weight, s.spare) for s in shares] == [
        (48, 49, 3.0, False),
        (48, 49, 0.0, True),
        (48, 49, 0.0, True),
    ]


def test_accumulated_micro_batches_share_one_step():
    plan = BatchPlan(100, 16, accumulate=3)
    shares = [share for (share,) in of_all_ranks(plan, 1)]
    assert [share.last for share in shares] == [False, False, True, False, False, True, True]
    assert shares[0].weight == pytest.approx(1 / 3)
    assert sum(share.weight for share in shares[3:6]) == pytest.approx(1)
    assert shares[-1].weight == 1.0


def test_drop_last_leaves_the_incomplete_batch_out():
    plan = BatchPlan(100, 48, drop_last=True)
    assert plan.usable == 96 and plan.num_micro_batches == 2
    assert of_all_ranks(plan, 3)[-1][-1].hi == 96


def test_a_plan_without_sizes_is_refused():
    with pytest.raises(ValueError, match="positive"):
        BatchPlan(10, 0)


def test_control_words_carry_step_and_requests_and_slots_do_not_overlap():
    word = control.word(123_456, control.STOP | control.SAVE)
    assert control.step_of(word) == 123_456
    assert control.requests_of(word) == control.STOP | control.SAVE
    slots = {control.offset(rank, step) for rank in range(300) for step in (6, 7)}
    assert len(slots) == 600
    assert max(slots) + control.WORD_BYTES <= control.page_bytes(300)
