"""What a rank does, from its stacks."""

import pytest

from phalanx.core.gang.activities import Activity, activity_of

pytestmark = pytest.mark.unit
SITE = "/env/lib/python3.11/site-packages"


def stack(*frames, name="main"):
    lines = [f'  File "{file}", line 7 in {inner}' for file, inner in frames]
    lines.append(f'  File "/job/train.py", line 40 in {name}')
    return "\n".join(["Current thread 0x00007f (most recent call first):", *lines])


COLLECTIVE = (f"{SITE}/torch/distributed/distributed_c10d.py", "all_reduce")


@pytest.mark.parametrize(
    ("text", "activity"),
    [
        (stack(COLLECTIVE), Activity.WAITING),
        (stack(("/job/data.py", "fetch")), Activity.OTHER),
        (stack((f"{SITE}/torch/serialization.py", "save")), Activity.SAVING),
        (stack((f"{SITE}/torch/serialization.py", "load")), Activity.OTHER),
        (stack(name="save_checkpoint"), Activity.SAVING),
        (stack(("/job/train.py", "step"), name="validate"), Activity.VALIDATING),
        (stack(("/job/train.py", "evaluate")), Activity.VALIDATING),
        (stack(name="latest"), Activity.OTHER),
        (stack(COLLECTIVE, ("/job/train.py", "save_all")), Activity.WAITING),
        (stack((f"{SITE}/torch/_dynamo/convert_frame.py", "_compile")), Activity.COMPILING),
        (stack((f"{SITE}/torch/_dynamo/eval_frame.py", "_fn")), Activity.OTHER),
        ("", Activity.UNKNOWN),
    ],
)
def test_stacks(text, activity):
    assert activity_of(text) is activity


def test_a_thread_that_compiles_counts_although_the_main_one_waits():
    place = f"{SITE}/torch/_inductor/graph.py"
    other = f'Thread 0x01 (most recent call first):\n  File "{place}", line 1 in run\n\n'
    waits = stack((f"{SITE}/torch/autograd/graph.py", "_engine_run_backward"))
    assert activity_of(other + waits) is Activity.COMPILING
    assert activity_of(waits) is Activity.WAITING


def test_a_stopped_process_is_told_from_one_that_does_not_answer():
    assert activity_of("", "no answer within 3 s: the process is stopped by a signal") is (
        Activity.STOPPED
    )
    assert activity_of("", "the rank is not running") is Activity.UNKNOWN
