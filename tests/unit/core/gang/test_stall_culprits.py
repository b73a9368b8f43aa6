"""Which rank of a stalled gang is named: the one that the others wait for."""

import pytest

from phalanx.core.gang.stacks import elsewhere, waits_for_others

pytestmark = pytest.mark.unit

SITE = "/env/lib/python3.11/site-packages"


def stack(*frames):
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    return "\n".join(["Current thread 0x00007f (most recent call first):", *lines])


BACKWARD = stack(
    (f"{SITE}/torch/autograd/graph.py", 829, "_engine_run_backward"),
    (f"{SITE}/torch/autograd/__init__.py", 359, "backward"),
    (f"{SITE}/torch/_tensor.py", 625, "backward"),
    ("/job/code/train.py", 40, "main"),
)
COLLECTIVE = stack(
    (f"{SITE}/torch/distributed/distributed_c10d.py", 2810, "all_reduce"),
    ("/env/phalanx/train/gang/groups.py", 130, "total"),
    ("/job/code/train.py", 44, "main"),
)
SLEEPING = stack(("/job/code/train.py", 38, "augment"), ("/job/code/train.py", 40, "main"))
READING = stack(
    ("/usr/lib/python3.11/socket.py", 706, "readinto"), ("/job/code/data.py", 9, "fetch")
)


@pytest.mark.parametrize("waiting", [BACKWARD, COLLECTIVE])
@pytest.mark.parametrize("culprit", [SLEEPING, READING, ""])
def test_of_two_ranks_the_one_that_waits_is_not_named(waiting, culprit):
    assert elsewhere({0: waiting, 1: culprit}) == (1,)
    assert elsewhere({0: culprit, 1: waiting}) == (0,)


def test_where_the_stacks_tell_nothing_no_rank_is_named():
    assert elsewhere({0: BACKWARD, 1: COLLECTIVE}) == ()
    assert elsewhere({0: SLEEPING, 1: READING}) == ()
    assert elsewhere({0: SLEEPING}) == ()


def test_a_majority_still_tells_more():
    assert elsewhere({0: SLEEPING, 1: SLEEPING, 2: BACKWARD}) == (2,)
    assert elsewhere({0: BACKWARD, 1: COLLECTIVE, 2: SLEEPING, 3: READING}) == (2, 3)


def test_the_scripts_own_code_inside_a_backward_pass_is_not_a_wait():
    hook = stack(
        ("/job/code/train.py", 12, "hook"),
        (f"{SITE}/torch/autograd/graph.py", 829, "_engine_run_backward"),
    )
    assert not waits_for_others(hook)
    assert elsewhere({0: BACKWARD, 1: hook}) == (1,)
