"""Traces and collectives that end late: what gloo's threads write must not meet freed memory."""

import pytest
import torch
import torch.distributed as dist

from phalanx.train.gang.agreement import DelayedReductionAgreement
from phalanx.train.observe import tracing
from phalanx.train.observe.tracing import Tracer, thread_states, wait_for_gloo_threads

pytestmark = pytest.mark.integration
GLOO = "pt_gloo_runloop"


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group([0])
    dist.destroy_process_group()


def reductions(work):
    tracer = Tracer(torch.device("cpu"), ())
    tracer.start()
    work()
    return sum(one["name"] == "gloo:all_reduce" for one in tracer.stop()[1])


def test_a_reduction_that_ends_in_the_next_step_is_not_in_the_trace(group):
    late = DelayedReductionAgreement(group)
    assert reductions(lambda: late.agree(1)) == 0
    assert reductions(lambda: dist.all_reduce(torch.ones(1), group=group)) == 1
    assert reductions(lambda: late.agree(2)) == 0
    late.agree(3)


def test_the_threads_of_gloo_are_known_by_name(group):
    dist.all_reduce(torch.ones(1), group=group)
    assert {state for name, state in thread_states().values() if name == GLOO} <= {"R", "S"}
    assert sum(name == GLOO for name, _ in thread_states().values()) >= 2


class Threads:
    """Looks at threads, one state of each after the other."""

    def __init__(self, *states: str) -> None:
        self.left = [list(one) for one in states]
        self.looks = 0

    def __call__(self):
        self.looks += 1
        found = {
            str(at): (GLOO, one.pop(0) if len(one) > 1 else one[0])
            for at, one in enumerate(self.left)
        }
        return {**found, "main": ("python", "R")}


def test_a_trace_stops_only_after_each_of_them_has_slept():
    threads = Threads("RRRS", "S", "RSRRRRRR")
    wait_for_gloo_threads(threads)
    assert threads.looks == 4
    nobody = Threads()
    wait_for_gloo_threads(nobody)
    assert nobody.looks == 1


def test_a_thread_that_never_sleeps_holds_nothing_up_for_ever():
    threads = Threads("R")
    wait_for_gloo_threads(threads, patience_s=0.01)
    assert threads.looks >= 1


def test_the_tracer_waits_for_them(monkeypatch):
    seen = []
    monkeypatch.setattr(tracing, "wait_for_gloo_threads", seen.append)
    assert reductions(lambda: None) == 0
    assert seen == [thread_states]
