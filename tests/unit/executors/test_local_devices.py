"""The accelerators behind the slots of this machine's pool."""

import os
import subprocess
import sys

import pytest

from phalanx.core.gang.placement import GangShape
from phalanx.core.scheduling import PlanningInput, QueuedJob, plan
from phalanx.executors.local import LocalExecutor
from phalanx.executors.local import devices as local_devices
from phalanx.executors.local.devices import BUSY, LOST, SILENT
from phalanx.executors.routing import RoutedExecutor
from phalanx.kit.clock import SystemClock
from phalanx.launch.accelerators import discover, discovery
from phalanx.schemas.home import HomeLayout
from support.nvml import GB, FakeDevice, fake_driver
from support.nvml import LOST as LOST_CODE

pytestmark = pytest.mark.unit


class Clock(SystemClock):
    ahead_s = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead_s


class Machine:
    def __init__(self, driver, root):
        self.driver, self.home, self.clock = driver, HomeLayout(root), Clock()
        self.home.root.mkdir(mode=0o700)
        self.executor = None

    def start(self, env=None, **more):
        if self.executor is not None:
            self.executor.close()
        self.executor = LocalExecutor(
            self.home,
            num_slots=more.pop("num_slots", 6),
            num_cpus=2,
            clock=self.clock,
            find=lambda: discover(env or {}),
            **more,
        )
        return self

    def look(self):
        self.driver.write()
        self.executor._devices.take(discover({}))
        return self.node

    @property
    def node(self):
        (node,) = self.executor.inventory()
        return node


@pytest.fixture
def machine(tmp_path_factory, tmp_path, monkeypatch):
    driver = fake_driver(tmp_path_factory, tmp_path)
    driver.load(monkeypatch)
    made = Machine(driver, tmp_path / "home")
    yield made
    if made.executor is not None:
        made.executor.close()


class TestSlots:
    def test_a_machine_without_devices_has_slots_of_cpus(self, machine):
        node = machine.start().node
        assert (node.num_slots, node.devices, node.device_kind, node.slot_type) == (6, (), "", "")
        assert not (machine.home.root / "accelerators.json").exists()

    def test_a_driver_that_fails_leaves_slots_of_cpus(self, machine):
        machine.driver.fail(999)
        assert machine.start().node.num_slots == 6

    def test_each_device_is_a_slot(self, machine):
        machine.driver.have_h100(3)
        node = machine.start().node
        assert node.devices == ("GPU-00000000-h100", "GPU-00000001-h100", "GPU-00000002-h100")
        assert (node.num_slots, node.slot_type, node.interconnect) == (3, "H100", "nvlink")
        assert (node.device_memory_bytes, node.device_kind) == (80 * GB, "cuda")

    def test_only_the_devices_that_were_left_to_the_process_are_offered(self, machine):
        machine.driver.have_h100(4)
        node = machine.start(env={"CUDA_VISIBLE_DEVICES": "2,3"}).node
        assert node.devices == ("GPU-00000002-h100", "GPU-00000003-h100")

    def test_each_kind_of_device_is_a_node_of_the_machine(self, machine):
        machine.driver.have(
            FakeDevice("GPU-a", instances=[("MIG-1", "1g.10gb"), ("MIG-2", "1g.10gb")]),
            FakeDevice("GPU-b"),
        )
        nodes = {node.id: node for node in machine.start().executor.inventory()}
        assert nodes["local"].devices == ("MIG-1", "MIG-2")
        assert nodes["local-h100"].devices == ("GPU-b",)
        assert {node.host for node in nodes.values()} == {"local"}

    def test_slots_that_the_operator_asks_for_share_the_devices(self, machine):
        machine.driver.have_h100(2)
        machine.start(num_slots=4, share_devices=True)
        assert machine.node.devices == ("GPU-00000000-h100", "GPU-00000001-h100") * 2
        machine.start(num_slots=1, share_devices=True)
        assert machine.node.devices == ("GPU-00000000-h100",)


class TestTrouble:
    def test_a_lost_device_closes_its_slot_and_moves_no_other(self, machine):
        machine.driver.have_h100(3)
        before = machine.start().node.devices
        machine.driver.devices[1].error = LOST_CODE
        assert machine.look().closed_slots == ((1, LOST),)
        # Also for a control plane that has never seen it.
        assert machine.start().node.devices == before
        assert machine.node.closed_slots == ((1, LOST),)
        machine.driver.devices[1].error = 0
        assert machine.look().closed_slots == ()

    def test_a_device_of_another_program_is_not_offered_until_it_is_free(self, machine):
        machine.driver.have_h100(2)
        machine.start()
        machine.driver.devices[0].users = {1: 20 * GB}
        assert machine.look().closed_slots == ((0, BUSY),)
        machine.driver.devices[0].users = {1: GB}  # a desktop, say
        assert machine.look().closed_slots == ()

    def test_a_device_of_our_own_job_stays_offered(self, machine):
        machine.driver.have_h100(1)
        machine.start()
        own = dict(os.environ, PHALANX_SUPERVISOR="abc")
        with subprocess.Popen([sys.executable, "-c", "input()"], env=own, stdin=-1) as job:
            try:
                machine.driver.devices[0].users = {job.pid: 70 * GB}
                assert machine.look().closed_slots == ((0, BUSY),)  # a stranger's tag
                machine.executor._markers.add("PHALANX_SUPERVISOR=abc")
                assert machine.look().closed_slots == ()
            finally:
                job.kill()

    def test_a_driver_that_no_longer_answers_closes_the_node(self, machine):
        machine.driver.have_h100(1)
        assert machine.start().node.closed == ""
        machine.clock.ahead_s = local_devices.SILENT_S + 1
        assert machine.node.closed == SILENT
        assert machine.look().closed == ""

    def test_the_first_answer_is_not_awaited_for_ever(self, machine, monkeypatch):
        import threading

        done = threading.Event()
        monkeypatch.setattr(discovery, "FIRST_S", 0.01)
        machine.executor = LocalExecutor(
            machine.home, num_slots=6, clock=machine.clock, find=lambda: done.wait(60) and None
        )
        assert machine.node.num_slots == 6
        done.set()


class TestPlanning:
    def test_a_closed_slot_is_given_to_no_job(self, machine):
        machine.driver.have_h100(3)
        machine.driver.devices[1].error = LOST_CODE
        machine.driver.have(*machine.driver.devices)
        machine.driver.devices[1].error = 0
        machine.driver.write()
        machine.start()
        machine.driver.devices[1].error = LOST_CODE
        node = machine.look()
        jobs = tuple(QueuedJob(num, GangShape(1, 1, 1), 50, num) for num in (1, 2, 3))
        decided = plan(PlanningInput((node,), (), jobs), 10)
        assert [start.placement.shares[0].slots for start in decided.starts] == [(0,), (2,)]

    def test_the_devices_are_known_through_the_routes_of_pools(self, machine):
        machine.driver.have_h100(2)
        routed = RoutedExecutor({"local": machine.start().executor})
        assert [(state.node, state.slot) for state in routed.devices()] == [
            ("local", 0),
            ("local", 1),
        ]
