"""The supervisor: follows orders, reports what happens, and leaves nothing behind.

Orders say what should be, not what to do: each may come twice, late or out of turn, and names the
generation it is for. A generation runs at most once.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.model import NodeOutcome
from phalanx.core.reasons import Cause
from phalanx.kit.clock import Clock
from phalanx.launch.capture import open_append
from phalanx.launch.command import PythonCommand
from phalanx.launch.durable import write_file
from phalanx.launch.identity import EXIT_NAME
from phalanx.launch.ports import free_port
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import (
    ExitRecord,
    LeavingReport,
    NodeReadyReport,
    Orders,
    RanksEndedReport,
    Report,
    WarningReport,
)
from phalanx.supervise.eventloop import EventLoop
from phalanx.supervise.packages.plan import EnvironmentPlan
from phalanx.supervise.packages.step import EnvironmentBuild
from phalanx.supervise.processes import ProcessTree
from phalanx.supervise.ranks import profiles
from phalanx.supervise.ranks.generation import Generation, GenerationContext
from phalanx.supervise.ranks.setup import SetupCommand
from phalanx.supervise.uplink.bulk_shipper import BulkShipper
from phalanx.supervise.uplink.link import ControlPlaneLink
from phalanx.supervise.uplink.orphan_reports import OrphanReports, mark_told
from phalanx.supervise.uplink.outbox import Outbox

_LOG = logging.getLogger(__name__)
# How often report files and log backlogs are looked at while ranks run.
LOOK_S = 0.15
HEARTBEAT_S = 1.0
_LAST_WORDS_S = 10.0


@dataclass(slots=True)
class SupervisorParts:
    """What the program is made of; built by `__main__`."""

    assignment: Assignment
    command: PythonCommand | None
    processes: ProcessTree
    loop: EventLoop
    clock: Clock
    rng: random.Random
    packages: EnvironmentPlan = field(default_factory=EnvironmentPlan)
    opener: Callable[[Path], tuple[int, Callable[[bytes], int]]] = open_append


class Supervisor:
    """One node rank of one attempt."""

    def __init__(self, parts: SupervisorParts) -> None:
        self._parts = parts
        self._assignment = parts.assignment
        self._loop, self._clock = parts.loop, parts.clock
        self._node_dir = Path(parts.assignment.node_dir)
        self._outbox = Outbox(self._node_dir / "spool")
        self._link = ControlPlaneLink(self._assignment, self._outbox, self._clock, self._deliver)
        self._carrier = BulkShipper(self._outbox, self._clock)
        self._earlier = OrphanReports(self._assignment, self._clock)
        self._current: Generation | None = None
        self._next: Orders | None = None
        self._ended = -1
        self._leaving = False
        self._last: RanksEndedReport | None = None
        self._beat_at = 0.0
        setup = SetupCommand(parts.assignment, parts.processes)
        self._packages = EnvironmentBuild(
            parts.assignment, parts.processes, parts.packages, then=setup.before
        )
        parts.processes.lost = self._lost
        parts.processes.warned = self._warn

    def run(self) -> None:
        """Check in, then follow orders until released, drained, or alone for too long."""
        self._parts.processes.attend()
        port, host = free_port(self._parts.rng), socket.gethostname()
        self._put(lambda seq: NodeReadyReport(seq=seq, port=port, pid=os.getpid(), host=host))
        self._link.start()
        self._earlier.start()
        self._look()
        self._loop.run()

    def drain(self) -> None:
        """The node is going away (SIGTERM): let the ranks save, then leave."""
        if self._leaving:
            return
        self._leaving = True
        if self._current is None:
            self._leave()
        else:
            self._current.stop(self._assignment.gang.grace_s)

    # -- orders ------------------------------------------------------------------------------------

    def _deliver(self, orders: Orders) -> None:
        """Called by the link's threads."""
        self._loop.call_from_outside(lambda: self._follow(orders))

    def _follow(self, orders: Orders) -> None:
        self._load()
        action, number = orders.action, orders.generation
        if self._leaving and self._current is None:
            return
        if action is Action.RELEASE:
            self._released(orders)
        elif action is Action.RUN:
            if not self._leaving:
                self._run(orders)
                self._show_stacks(orders)
                self._profile(orders)
        elif action is Action.END and self._is_due(number):
            if self._current is None:
                self._report_ended(number, NodeOutcome.FAILED, None)
            else:
                self._current.end()
        elif action is Action.STOP and self._is_due(number):
            if self._current is None:
                self._report_ended(number, NodeOutcome.STOPPED, None)
            else:
                self._show_stacks(orders)
                self._current.stop(orders.grace_left_s)

    def _released(self, orders: Orders) -> None:
        """Leave; ranks that the job does not need any more may save within the grace."""
        self._leaving = True
        if self._current is None:
            self._leave()
        elif orders.grace_left_s > 0:
            self._current.stop(orders.grace_left_s)
        else:
            self._current.end()

    def _show_stacks(self, orders: Orders) -> None:
        current = self._current
        if current is not None and current.number == orders.generation:
            current.vigil.asked(orders.stacks)

    def _profile(self, orders: Orders) -> None:
        current = self._current
        if current is not None and current.number == orders.generation and current.leads:
            profiles.ask(current.ranks, orders.profile)

    def _is_due(self, number: int) -> bool:
        """Whether an order to end `number` still means anything here."""
        self._next = None
        current = self._current
        return number > self._ended and (current is None or current.number == number)

    def _run(self, orders: Orders) -> None:
        if orders.generation <= self._ended:
            return
        if self._current is None:
            self._begin(orders)
        elif orders.generation > self._current.number:
            self._next = orders
            self._current.end()

    def _begin(self, orders: Orders) -> None:
        parts = self._parts
        around = GenerationContext(
            assignment=self._assignment,
            command=parts.command,
            processes=parts.processes,
            loop=self._loop,
            clock=self._clock,
            put=self._put,
            over=self._over,
            opener=parts.opener,
            acked=lambda: self._outbox.acked,
        )
        generation = Generation(around, orders)
        self._current = generation
        self._carrier.add(generation)
        self._packages.before(generation)

    # -- what happens ------------------------------------------------------------------------------

    def _put(self, make: Callable[[int], Report]) -> Report:
        report = self._outbox.put(make)
        self._link.push()
        return report

    def _warn(self, said: str) -> None:
        number = self._current.number if self._current else max(0, self._ended)
        at = self._clock.now()
        self._put(lambda seq: WarningReport(seq=seq, generation=number, message=said, at=at))

    def _lost(self, said: str) -> None:
        _LOG.warning("%s", said)
        if self._current is not None:
            self._current.fail(said, Cause.RANK_CRASH)
        else:
            self._warn(said)

    def _over(self, generation: Generation) -> None:
        """Every rank is gone: say so, first on disk."""
        self._current = None
        self._carrier.load_last()
        self._report_ended(generation.number, generation.outcome, generation)
        upcoming, self._next = self._next, None
        if self._leaving:
            self._leave()
        elif upcoming is not None:
            self._begin(upcoming)

    def _report_ended(
        self, number: int, outcome: NodeOutcome, generation: Generation | None
    ) -> None:
        self._ended = max(self._ended, number)
        port = free_port(self._parts.rng)
        ended: list[RanksEndedReport] = []

        def make(seq: int) -> Report:
            report = RanksEndedReport(
                seq=seq,
                generation=number,
                outcome=outcome,
                port=port,
                step=generation.records.reached if generation else None,
                failure=generation.fault if generation else None,
            )
            ended.append(report)
            self._write_exit(report)
            return report

        self._put(make)
        self._last = ended[0]

    def _write_exit(self, report: RanksEndedReport | None) -> None:
        gang = self._assignment.gang
        record = ExitRecord(
            attempt=gang.attempt,
            node_rank=self._assignment.node_rank,
            released=self._leaving,
            ended=report,
        )
        try:
            write_file(self._node_dir / EXIT_NAME, record.model_dump_json().encode())
        except OSError as error:
            _LOG.warning("the exit record could not be written: %s", error)

    # -- regular work ------------------------------------------------------------------------------

    def _look(self) -> None:
        current = self._current
        if current is not None:
            current.records.read()
            current.vigil.look()
            self._link.heartbeat = current.records.heartbeat()
        self._load()
        now = self._clock.monotonic()
        if now - self._beat_at >= HEARTBEAT_S and current is not None:
            self._beat_at = now
            self._link.beat()
        if self._link.silent_s > self._assignment.contact_lost_after_s and not self._leaving:
            _LOG.warning("no contact for %.0f s: stopping the ranks", self._link.silent_s)
            self.drain()
        self._loop.call_later(LOOK_S, self._look)

    def _load(self) -> None:
        if self._carrier.load():
            self._link.push()

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Nothing runs any more: make sure, say the last words, and go."""
        self._parts.processes.retire_warm()
        self._parts.processes.kill_all(self._say_goodbye)

    def _say_goodbye(self) -> None:
        self._write_exit(self._last)
        alone = self._link.silent_s > self._assignment.contact_lost_after_s
        deadline = self._clock.monotonic() + (0.0 if alone else _LAST_WORDS_S)
        self._unload(deadline)

    def _unload(self, deadline: float) -> None:
        """Carry the rest of the logs and metrics, as long as somebody listens."""
        self._load()
        if self._clock.monotonic() > deadline:
            self._loop.stop()
        elif self._outbox.empty and self._earlier.over:
            self._put(lambda seq: LeavingReport(seq=seq))
            self._part(deadline)
        else:
            self._loop.call_later(0.01, lambda: self._unload(deadline))

    def _part(self, deadline: float) -> None:
        if self._outbox.empty or self._clock.monotonic() > deadline:
            if self._outbox.empty:
                mark_told(self._node_dir)
            self._link.close()
            self._earlier.close()
            self._loop.stop()
        else:
            self._loop.call_later(0.005, lambda: self._part(deadline))
