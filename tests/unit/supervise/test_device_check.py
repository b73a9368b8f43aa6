"""The check of a node's accelerators before its ranks start."""

import threading
from types import SimpleNamespace

import pytest

from phalanx.core.gang.devices import Accelerator
from phalanx.core.reasons import Cause
from phalanx.launch import accelerators
from phalanx.launch.accelerators import Found
from phalanx.schemas.wire.assignments import Assignment
from phalanx.supervise.device_check import DeviceCheck, problem_of
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit

GB = 10**9


def assignment(*devices, **more):
    fields = {
        "gang": gang_contract(1),
        "node_rank": 0,
        "node_dir": "/nowhere",
        "workdir": "/nowhere",
        "cwd": "/nowhere",
        "command": ["true"],
        "env": {},
        "cpus": 1,
        "server_url": "http://127.0.0.1:1",
        "token": "t",
        "devices": list(devices),
        "device_kind": "cuda",
    }
    return Assignment(**{**fields, **more})


def found(*names, model="H100", memory=80 * GB, problem="", problems=()):
    devices = tuple(Accelerator(n, "cuda", model, memory, memory, problem=problem) for n in names)
    return Found(devices, problems)


class TestProblem:
    def test_devices_that_are_there_are_no_problem(self):
        assert problem_of(assignment("GPU-b"), found("GPU-a", "GPU-b")) == ""
        # Ray numbers the devices of an actor.
        assert problem_of(assignment("1", "0"), found("GPU-a", "GPU-b")) == ""

    def test_a_device_that_is_gone_is_named(self):
        said = problem_of(assignment("GPU-a", "GPU-c"), found("GPU-a", "GPU-b"))
        assert said.startswith("accelerator GPU-c of ")
        assert said.endswith(" is lost: its driver finds 2 others")

    def test_a_driver_that_fails_is_named(self):
        said = problem_of(assignment("GPU-a"), Found(problems=("Driver Not Loaded",)))
        assert said.endswith("is lost: its driver finds 0 others (Driver Not Loaded)")

    def test_a_device_in_trouble_is_named(self):
        said = problem_of(assignment("GPU-a"), found("GPU-a", problem="Unknown Error"))
        assert said.endswith("cannot be used: Unknown Error")

    def test_a_node_that_is_declared_with_another_model_says_so(self):
        said = problem_of(assignment("0", slot_type="H100"), found("GPU-a", model="A100"))
        assert "is declared with H100, and its driver finds A100 (GPU-a): correct the pool" in said

    def test_a_node_without_a_library_to_ask_is_not_judged(self):
        assert problem_of(assignment("0", slot_type="TPU-v5"), Found()) == ""


class Loop:
    def __init__(self):
        self.calls, self.came, self.later = [], threading.Event(), []

    def call_from_outside(self, call):
        self.calls.append(call)
        self.came.set()

    def call_later(self, seconds, call):
        self.later.append(call)

    def turn(self):
        assert self.came.wait(60)
        self.calls.pop()()


class TestCheck:
    @pytest.fixture
    def run(self, monkeypatch):
        def run(said, *devices):
            monkeypatch.setattr(accelerators, "discover", lambda env: said)
            loop, failures, started = Loop(), [], []
            generation = SimpleNamespace(
                records=SimpleNamespace(phase=""),
                ending=False,
                fail=lambda message, cause: failures.append(cause),
            )
            check = DeviceCheck(assignment(*devices), SimpleNamespace(loop=loop))
            check.run(generation, lambda: started.append(1))
            return loop, failures, started

        return run

    def test_ranks_start_when_the_devices_are_there(self, run):
        loop, failures, started = run(found("GPU-a"), "GPU-a")
        assert started == []
        loop.turn()
        loop.later[0]()
        assert (failures, started) == ([], [1])

    def test_ranks_do_not_start_on_a_device_that_is_lost(self, run):
        loop, failures, started = run(found("GPU-b"), "GPU-a")
        loop.turn()
        assert (failures, started) == ([Cause.START_FAILED], [])

    def test_a_driver_that_does_not_answer_does_not_stop_the_ranks(self, run):
        loop, failures, started = run(found("GPU-a"), "GPU-a")
        loop.later[0]()
        loop.turn()
        assert (failures, started) == ([], [1])

    def test_a_job_without_devices_asks_no_driver(self, run):
        loop, _, started = run(found())
        assert started == [1]
        assert not loop.came.is_set()
