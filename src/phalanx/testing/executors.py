# ruff: noqa: D102 - the names of the tests say what they promise
"""A fake executor and contracts of small gangs for tests, and the tests that every executor passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from phalanx.core.contract.gang import GangContract, WorldShape
from phalanx.core.contract.job import JobIdentity, RankCommand, RoleContract
from phalanx.core.gang.placement import Node
from phalanx.core.gang.roles import WORKER
from phalanx.core.reasons import Cause
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.protocol import (
    Executor,
    NodeReplacer,
    OutputSize,
    SupervisorRef,
    SupervisorStatus,
)
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import ExitRecord

ref_of = SupervisorRef.of


def gang_contract(
    job: int,
    *,
    attempt: int = 1,
    num_nodes: int = 1,
    ranks_per_node: int = 1,
    checkpoint_dir: str = "/nowhere",
    job_started_at: int | None = None,
    **role: Any,
) -> GangContract:
    """The contract of a gang with one role; `role` are fields of its `RoleContract`."""
    world = WorldShape(num_nodes, ranks_per_node)
    fields: dict[str, Any] = {
        "name": WORKER,
        "command": RankCommand(("true",)),
        "reference_world": world.size,
        **role,
    }
    return GangContract(
        job=JobIdentity(job, "probe", "tests"),
        attempt=attempt,
        world=world,
        role=RoleContract(**fields),
        checkpoint_dir=checkpoint_dir,
        job_started_at=job_started_at,
    )


@dataclass
class FakeExecutor:
    """An executor that records calls and starts nothing; tests act as the supervisors.

    Each `start` call raises the next error of `refuse`. With `slow_deaths`, a stopped supervisor
    stays alive until `bury`.
    """

    #: the inventory
    nodes: tuple[Node, ...] = (Node("local", "local", "127.0.0.1", 4, 4, 8 << 30, splittable=True),)
    started: dict[SupervisorRef, Assignment] = field(default_factory=dict)  # by supervisor
    alive: set[SupervisorRef] = field(default_factory=set)  # running ones
    exits: dict[SupervisorRef, ExitRecord] = field(default_factory=dict)  # exit records
    #: what ranks wrote on nodes of another machine, by supervisor
    outputs: dict[SupervisorRef, tuple[OutputSize, ...]] = field(default_factory=dict)
    stopped: list[SupervisorRef] = field(default_factory=list)  # in order of `stop` calls
    refuse: list[LaunchError | ExecutorUnavailable] = field(default_factory=list)  # errors to raise
    slow_deaths: bool = False  # `stop` does not end it
    #: message and cause of supervisors that ended, where the cluster tells them
    causes: dict[SupervisorRef, tuple[str, Cause]] = field(default_factory=dict)
    #: images that ranks run in, where the cluster tells them
    images: dict[SupervisorRef, str] = field(default_factory=dict)
    num_starts: int = 0  # first starts only
    replaces: bool = True  # lost supervisors may be replaced while the others of their gang stay
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards every field

    def inventory(self) -> Sequence[Node]:
        """See `Executor`."""
        return self.nodes

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`."""
        with self._lock:
            if self.refuse:
                raise self.refuse.pop(0)
            ref = ref_of(assignment)
            if ref not in self.started:
                self.num_starts += 1
                self.started[ref] = assignment
                self.alive.add(ref)

    def may_replace(self, pool: str) -> bool:
        """See `NodeReplacer`."""
        return self.replaces

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        with self._lock:
            self.stopped.append(ref)
            if not self.slow_deaths:
                self.alive.discard(ref)

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`."""
        with self._lock:
            return [
                SupervisorStatus(
                    ref,
                    alive=ref in self.alive,
                    exit=self.exits.get(ref),
                    output=self.outputs.get(ref, ()),
                    message=self.causes[ref][0] if ref in self.causes else "",
                    cause=self.causes[ref][1] if ref in self.causes else None,
                    image=self.images.get(ref, ""),
                )
                for ref in refs
            ]

    def bury(self, ref: SupervisorRef, exit: ExitRecord | None = None) -> None:
        """End a supervisor, with an exit record or without."""
        with self._lock:
            self.alive.discard(ref)
            if exit is not None:
                self.exits[ref] = exit


class ExecutorRig(Protocol):
    """The functions that a backend supplies to the contract suite."""

    executor: Executor

    def assignment(self, job: int) -> Assignment:
        """Work for a supervisor that stays until it is stopped."""
        ...

    def pair(self, job: int) -> tuple[Assignment, Assignment]:
        """Start the supervisors of a gang of two nodes; their assignments."""
        ...

    def kill_supervisor(self, ref: SupervisorRef) -> None:
        """Kill the supervisor, as in a crash."""
        ...

    def num_started(self, ref: SupervisorRef) -> int:
        """How many supervisors were ever started for `ref`."""
        ...

    def reborn(self) -> Executor:
        """Another executor over the same machines, as after a crash of the control plane."""
        ...


class ExecutorContract:
    """Contract tests of `Executor`: a subclass supplies the `rig` fixture."""

    def test_inventory_names_each_node_once(self, rig: ExecutorRig) -> None:
        nodes = rig.executor.inventory()
        assert nodes
        assert len({node.id for node in nodes}) == len(nodes)
        assert all(node.num_slots > 0 for node in nodes)

    def test_unknown_supervisors_are_not_alive_and_can_be_stopped(self, rig: ExecutorRig) -> None:
        ref = SupervisorRef(99, 1, 0)
        rig.executor.stop(ref)
        assert [one.alive for one in rig.executor.poll([ref])] == [False]

    def test_starting_twice_starts_once(self, rig: ExecutorRig) -> None:
        assignment, ref = _started(rig, 1)
        rig.executor.start(rig.executor.inventory()[0], assignment)
        assert rig.executor.poll([ref])[0].alive
        assert rig.num_started(ref) == 1

    def test_stop_is_confirmed_by_poll_and_may_be_repeated(self, rig: ExecutorRig) -> None:
        _, ref = _started(rig, 2)
        rig.executor.stop(ref)
        rig.executor.stop(ref)
        _wait_until(lambda: not rig.executor.poll([ref])[0].alive)

    def test_a_crash_is_seen(self, rig: ExecutorRig) -> None:
        _, ref = _started(rig, 3)
        rig.kill_supervisor(ref)
        _wait_until(lambda: not rig.executor.poll([ref])[0].alive)

    def test_a_new_control_plane_finds_what_runs(self, rig: ExecutorRig) -> None:
        assignment, ref = _started(rig, 4)
        successor = rig.reborn()
        assert successor.poll([ref])[0].alive
        successor.start(successor.inventory()[0], assignment)
        assert rig.num_started(ref) == 1
        successor.stop(ref)
        _wait_until(lambda: not successor.poll([ref])[0].alive)

    def test_the_dead_are_not_started_again(self, rig: ExecutorRig) -> None:
        assignment, ref = _started(rig, 5)
        rig.kill_supervisor(ref)
        _wait_until(lambda: not rig.executor.poll([ref])[0].alive)
        rig.executor.start(rig.executor.inventory()[0], assignment)
        assert not rig.executor.poll([ref])[0].alive

    def test_a_replacement_is_started_beside_the_dead(self, rig: ExecutorRig) -> None:
        executor: object = rig.executor
        pool = rig.executor.inventory()[0].pool
        if not (isinstance(executor, NodeReplacer) and executor.may_replace(pool)):
            pytest.skip("this executor replaces no supervisors")
        assignment, neighbour = rig.pair(6)
        ref, stays = ref_of(assignment), ref_of(neighbour)
        rig.kill_supervisor(ref)
        _wait_until(lambda: not rig.executor.poll([ref, stays])[0].alive)
        changes = {"incarnation": 1, "node_dir": f"{assignment.node_dir}.1"}
        again = assignment.model_copy(update=changes)
        for _ in range(2):
            rig.executor.start(rig.executor.inventory()[0], again)
        fresh = ref_of(again)
        alive = [one.alive for one in rig.executor.poll([ref, fresh, stays])]
        assert alive == [False, True, True]
        # A control plane that takes over finds both.
        assert [one.alive for one in rig.reborn().poll([fresh, stays])] == [True, True]
        for one in (fresh, stays):
            rig.executor.stop(one)
        _wait_until(lambda: not any(one.alive for one in rig.executor.poll([fresh, stays])))


def _started(rig: ExecutorRig, job: int) -> tuple[Assignment, SupervisorRef]:
    assignment = rig.assignment(job)
    rig.executor.start(rig.executor.inventory()[0], assignment)
    return assignment, ref_of(assignment)


def _wait_until(true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError("timed out")
        time.sleep(0.01)
