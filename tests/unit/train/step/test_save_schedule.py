"""When to save, without a clock, a disk or a gang."""

from dataclasses import replace

import pytest

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.training import checkpoints
from phalanx.core.training.checkpoints import Best, Keep
from phalanx.train.gang import context
from phalanx.train.gang.context import RankInfo
from phalanx.train.step.save_schedule import SaveSchedule

pytestmark = pytest.mark.unit
HOUR_US = 3600 * 10**6


def policy(every, **options):
    return CheckpointPolicy(every=SaveInterval.parse(every), **options)


def schedule(every="10m", **options):
    return SaveSchedule(RankInfo(checkpoint=policy(every, **options)), 1000.0, 1000 * 10**6)


def saved(one, step=1, now=1000.0, stall_s=0.0):
    one.begin()
    one.saved(step, now=now, stall_s=stall_s, write_s=1.0, wall_us=round(now * 1e6))


def test_steps_are_counted_from_the_job_s_beginning():
    one = schedule("3 steps")
    assert [one.reason_at(step, False) for step in range(1, 7)] == [
        None,
        None,
        "every",
        None,
        None,
        "every",
    ]
    assert not one.proposes(1e9), "time asks for nothing"


def test_a_request_is_met_by_one_save_and_names_the_reason():
    one = schedule("3 steps")
    one.request()
    assert one.reason_at(3, True) == "asked"
    saved(one)
    assert one.reason_at(1, False) is None


def test_time_is_proposed_by_rank_0_and_agreed_by_all():
    one = schedule("2m")
    assert not one.proposes(1119.9) and one.proposes(1120.0)
    assert one.reason_at(7, False) is None, "a rank does not save on its own"
    assert one.reason_at(7, True) == "every"
    saved(one, now=1130.0)
    assert one.next_at == 1250.0


def test_a_failed_save_is_not_remembered_but_waits_for_the_next_turn():
    one = schedule("2m")
    saved(one, step=None, now=1120.0)
    assert one.saved_step == -1 and one.next_at == 1240.0


def test_passes_are_counted_and_a_step_is_not_saved_twice():
    one = schedule("2 epochs")
    assert [one.due_after_pass(passes, 10) for passes in (1, 2, 3, 4)] == [False, True, False, True]
    saved(one, step=10)
    assert not one.due_after_pass(2, 10) and one.due_after_pass(4, 11)
    assert one.reason_at(10, False) is None
    assert not schedule("5 steps").due_after_pass(1, 10)


def test_a_better_value_asks_for_a_save_and_an_equal_or_missing_one_does_not():
    one = schedule("1h", keep=Keep(best=Best("acc")))
    one.start_best(0.5)
    for metrics in ({"acc": 0.5}, {"loss": 9.0}, {"acc": "nan"}, {}):
        one.observe(metrics)
        assert not one.proposes(1000.0), metrics
    one.observe({"acc": 0.6})
    assert one.proposes(1000.0)
    saved(one)
    assert not one.proposes(1000.0)
    one.observe({"acc": 0.55})
    assert not one.proposes(1000.0), "the best value was 0.6"


def interval(info, stall_s):
    """Seconds to the first save, and from it to the second."""
    one = SaveSchedule(info, 1000.0, 1000 * 10**6)
    first = one.next_at - 1000.0
    saved(one, now=1000.0 + stall_s, stall_s=stall_s)
    return first, one.next_at - 1000.0 - stall_s


def test_dear_saves_are_rare_and_failures_make_them_frequent():
    auto = RankInfo(checkpoint=policy("auto"), job_started_at=-HOUR_US)
    first, cheap = interval(auto, 0.01)
    assert first == checkpoints.FIRST_SAVE_S
    _, dear = interval(auto, 5.0)
    assert cheap < 60 < dear
    _, failing = interval(replace(auto, restarts=30), 5.0)
    assert failing < dear / 4


def test_a_given_interval_stands_whatever_saves_cost():
    assert interval(RankInfo(checkpoint=policy("2m")), 5.0) == (120.0, 120.0)


def test_the_launcher_sets_restarts_and_the_start_of_the_job():
    info = context.read(
        {
            "PHALANX_CHECKPOINT_EVERY": "auto",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "PHALANX_JOB_STARTED_AT": "17",
        }
    )
    assert (info.checkpoint.every.auto, info.restarts, info.job_started_at) == (True, 3, 17)


def test_two_failures_in_a_row_bring_additional_saves_and_a_calm_ends_them():
    second = 10**6
    info = RankInfo(checkpoint=policy("10m"), failed_at=(990 * second, 998 * second))
    one = SaveSchedule(info, 1000.0, 1000 * second)
    assert one.next_at == 1000.0 + 5.0 / 4, "a quarter of (1000 - 990) / 2"
    saved(one, now=1001.0, stall_s=0.01)
    assert 1001.0 < one.next_at < 1002.5
    # 20 distances of 8 s after the last failure, the series is over.
    saved(one, now=998.0 + 161.0)
    assert one.next_at == 998.0 + 161.0 + 600.0


def test_rare_failures_change_no_interval():
    info = RankInfo(checkpoint=policy("10m"), failed_at=(0, 1700 * 10**6))
    assert SaveSchedule(info, 1800.0, 1800 * 10**6).next_at == 2400.0
    single = RankInfo(checkpoint=policy("500 steps"), failed_at=(1799 * 10**6,))
    assert not SaveSchedule(single, 1800.0, 1800 * 10**6).proposes(1e9)


def test_a_series_of_failures_shortens_the_automatic_interval():
    times = tuple(range(0, 8 * HOUR_US // 12, HOUR_US // 12))  # every five minutes
    auto = RankInfo(checkpoint=policy("auto"), job_started_at=-HOUR_US)
    one = SaveSchedule(replace(auto, failed_at=times), 0.0, times[-1])
    one.begin()
    one.saved(1, now=1.0, stall_s=5.0, write_s=1.0, wall_us=times[-1] + 10**6)
    _, calm = interval(auto, 5.0)
    assert one.next_at - 1.0 < calm / 4
