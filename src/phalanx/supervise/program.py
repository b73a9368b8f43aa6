"""The supervisor of one node: follows orders, reports what happens, and leaves nothing running.

Reading order: `run` starts the loop; `_apply` compares an order with what runs; `_start` starts a
generation of ranks; `_ended` reports its end; `_leave` ends the supervisor.

An order describes the desired state, so it may arrive twice, late or out of turn, and it names its
generation. A generation runs at most once.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.contract.records import MetricRecord
from phalanx.core.jobs.desired import Action
from phalanx.core.jobs.model import NodeOutcome
from phalanx.core.reasons import Cause
from phalanx.kit.clock import Clock
from phalanx.launch.command import PythonCommand
from phalanx.launch.files import write_file
from phalanx.launch.identity import EXIT_NAME
from phalanx.launch.ports import HeldPort, own_addresses
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
from phalanx.supervise.packages.plan import EnvironmentPlan
from phalanx.supervise.preparation import Preparation
from phalanx.supervise.processes import ProcessTree
from phalanx.supervise.ranks.generation import Generation, GenerationContext
from phalanx.supervise.ranks.host import HostMeter
from phalanx.supervise.tunnels.doorway import TunnelDoorway
from phalanx.supervise.uplink.bulk_shipper import BulkShipper
from phalanx.supervise.uplink.link import ControlPlaneLink, Outbox
from phalanx.supervise.uplink.orphan_reports import OrphanReports, mark_reported

_LOG = logging.getLogger(__name__)
# Interval at which report files and log backlogs are read while ranks run.
TICK_S = 0.15
HEARTBEAT_S = 1.0
# How long the last reports may take; while output arrives, those of ranks that succeeded may take longer.
_FINAL_REPORTS_S = 10.0
_FINAL_OUTPUT_S = 300.0
# The last words about output that is not sent any more.
_LAST_WORDS_S = 2.0


@dataclass(slots=True)
class FinalReports:
    """The time for the last reports: until `quiet`, which each stored report moves, and `end` at most.

    `told` is the limit for the report of what is not sent any more; None until then.
    """

    end: float
    quiet: float
    acked: int
    told: float | None = None

    def is_over(self, now: float, acked: int) -> bool:
        """Whether the time has passed; `acked` is the number of the last stored report."""
        if acked > self.acked:
            self.acked, self.quiet = acked, now + _FINAL_REPORTS_S
        return now > min(self.quiet, self.end)


class Supervisor:
    """One node rank of one attempt."""

    def __init__(
        self,
        assignment: Assignment,
        command: PythonCommand | None,
        processes: ProcessTree,
        environment: EnvironmentPlan,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`command` is None where the job runs no Python program."""
        self._assignment, self._clock, self._rng = assignment, clock, rng
        self._processes, self._loop = processes, processes.loop
        self._node_dir = Path(assignment.node_dir)
        self._outbox = Outbox(self._node_dir / "spool")
        # No other user can take the port of the next rendezvous before the ranks listen there.
        self._port = HeldPort(rng)
        self._link = ControlPlaneLink(assignment, self._outbox, clock, self._deliver)
        self._shipper = BulkShipper(self._outbox, clock, assignment.log_limit)
        self._orphans, self._host = OrphanReports(assignment, clock), HostMeter(self._node_dir)
        self._context = GenerationContext(
            assignment=assignment,
            command=command,
            processes=processes,
            loop=self._loop,
            clock=clock,
            put=self._link.put,
            ended=self._ended,
            acked=lambda: self._outbox.acked,
            server=self._link.server,
        )
        self._preparation = Preparation(self._context, environment)
        self._tunnels = TunnelDoorway(self._context, lambda: self._current)
        self._current: Generation | None = None
        self._next: Orders | None = None
        self._last_ended, self._last_step = -1, 0
        self._leaving, self._beat_at, self._final = False, 0.0, FinalReports(0.0, 0.0, 0)
        self._last_report: RanksEndedReport | None = None
        processes.limits = (assignment.limit_cpus, assignment.limit_memory_bytes)
        processes.on_lost, processes.on_warning = self._lost, self._warn

    def run(self) -> None:
        """Check in, then follow orders until released, drained, or out of contact for too long."""
        self._processes.listen()
        port, host, own = self._port.number, socket.gethostname(), self._assignment.address
        self._link.put(
            lambda seq: NodeReadyReport(
                seq=seq, port=port, pid=os.getpid(), host=host, addresses=own_addresses(own)
            )
        )
        self._link.start()
        self._orphans.start()
        self._tick()
        self._loop.run()

    def drain(self) -> None:
        """Stop the ranks with the job's grace period, then leave: the node is going away (SIGTERM)."""
        if self._leaving:
            return
        self._leaving = True
        if self._current is None:
            self._leave()
        else:
            self._current.stop(self._assignment.gang.role.grace_s)

    # -- orders ------------------------------------------------------------------------------------

    def _deliver(self, orders: Orders) -> None:
        """Hand an order from a thread of the link to the main thread."""
        self._loop.call_from_outside(lambda: self._apply(orders))

    def _apply(self, orders: Orders) -> None:
        self._ship_bulk()
        action, number = orders.action, orders.generation
        if self._leaving and self._current is None:
            return
        if action is Action.RELEASE:
            self._release(orders)
        elif action is Action.RUN:
            if not self._leaving:
                self._start_if_new(orders)
                self._show_stacks(orders)
                self._tell_first_rank(orders)
                self._tunnels.look(orders.tunnels)
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

    def _start_if_new(self, orders: Orders) -> None:
        if orders.generation <= self._last_ended:
            return
        if self._current is None:
            self._start(orders)
        elif orders.generation > self._current.number:
            self._next = orders
            self._current.end()

    def _start(self, orders: Orders) -> None:
        """Start a generation of ranks, after the preparation of the node where that is still due."""
        # What this node has seen itself may be newer than what is stored.
        last_step = max(orders.last_step, self._last_step)
        orders = orders.model_copy(update={"last_step": last_step})
        generation = Generation(self._context, orders, self._port)
        self._current = generation
        self._shipper.add(generation)
        self._preparation.run(generation, generation.start, resumes=bool(orders.resume_path))

    def _release(self, orders: Orders) -> None:
        """Leave; ranks that the job does not need any more may save within the grace."""
        self._leaving = True
        if self._current is None:
            self._leave()
        elif orders.grace_left_s > 0:
            self._current.stop(orders.grace_left_s)
        else:
            self._current.end()

    def _is_due(self, number: int) -> bool:
        """Whether an order to end generation `number` still applies."""
        self._next = None
        current = self._current
        return number > self._last_ended and (current is None or current.number == number)

    def _show_stacks(self, orders: Orders) -> None:
        current = self._current
        if current is not None and current.number == orders.generation:
            current.stalls.request_stacks(orders.stacks)

    def _tell_first_rank(self, orders: Orders) -> None:
        current = self._current
        order = orders.profile
        if current is None or current.number != orders.generation or not current.leads:
            return
        # The gang's ranks agree on the step among themselves, so the other nodes have nothing to do.
        first = next((one for one in current.ranks if one.rank == 0), None)
        if first is not None and first.running:
            if order is not None:
                first.request_profile(order)
            first.request_save(orders.saves)
            if orders.until is not None:
                first.raise_target(orders.until)

    # -- what happens ------------------------------------------------------------------------------

    def _warn(self, message: str) -> None:
        number = self._current.number if self._current else max(0, self._last_ended)
        at = self._clock.now()
        self._link.put(
            lambda seq: WarningReport(seq=seq, generation=number, message=message, at=at)
        )

    def _lost(self, message: str) -> None:
        """Fail the current generation: the reaper or the warm process died with ranks below it."""
        _LOG.warning("%s", message)
        if self._current is not None:
            self._current.fail(message, Cause.RANK_CRASH)
        else:
            self._warn(message)

    def _ended(self, generation: Generation) -> None:
        """Report the end of a generation, then leave or start the next one that was ordered."""
        self._current = None
        self._last_step = max(self._last_step, generation.records.step or 0)
        self._shipper.ship_now()
        self._report_ended(generation.number, generation.outcome, generation)
        upcoming, self._next = self._next, None
        if self._leaving:
            self._leave()
        elif upcoming is not None:
            self._start(upcoming)

    def _report_ended(
        self, number: int, outcome: NodeOutcome, generation: Generation | None
    ) -> None:
        """Write the end to the exit record first, then queue its report."""
        self._last_ended = max(self._last_ended, number)
        self._port.release()
        self._port = HeldPort(self._rng)
        port = self._port.number
        reached = generation if outcome is NodeOutcome.AT_TARGET else None

        def make(seq: int) -> Report:
            report = RanksEndedReport(
                seq=seq,
                generation=number,
                outcome=outcome,
                port=port,
                step=generation.records.reached if generation else None,
                failure=generation.fault if generation else None,
                unsaved=generation.unsaved if generation else "",
                target=reached.records.target if reached else None,
            )
            self._last_report = report
            self._write_exit(report)
            return report

        self._link.put(make)

    def _write_exit(self, report: RanksEndedReport | None) -> None:
        gang = self._assignment.gang
        record = ExitRecord(
            attempt=gang.attempt,
            node_rank=self._assignment.node_rank,
            released=self._leaving,
            ended=report,
            results=self._link.results(),
        )
        try:
            write_file(self._node_dir / EXIT_NAME, record.model_dump_json().encode())
        except OSError as error:
            _LOG.warning("the exit record could not be written: %s", error)

    # -- regular work ------------------------------------------------------------------------------

    def _tick(self) -> None:
        current = self._current
        if current is not None:
            current.records.read()
            current.stalls.check()
            _measure_host(self._host, current, self._clock)
            self._link.heartbeat = current.records.heartbeat()
        self._ship_bulk()
        now = self._clock.monotonic()
        if now - self._beat_at >= HEARTBEAT_S and current is not None:
            self._beat_at = now
            self._link.beat()
        if self._link.silent_s > self._assignment.contact_lost_after_s and not self._leaving:
            _LOG.warning("no contact for %.0f s: stopping the ranks", self._link.silent_s)
            self.drain()
        self._loop.call_later(TICK_S, self._tick)

    def _ship_bulk(self) -> None:
        if self._shipper.ship():
            self._link.push()

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Kill what is left of the process tree, send the final reports, and end the loop."""
        self._processes.stop_warm_process()
        self._processes.kill_all(self._begin_final_reports)

    def _begin_final_reports(self) -> None:
        self._write_exit(self._last_report)
        alone = self._link.silent_s > self._assignment.contact_lost_after_s
        now = self._clock.monotonic()
        last = self._last_report
        # The slots of ranks that were stopped or failed are waited for, or the executor kills this process.
        succeeded = last is not None and last.outcome is NodeOutcome.SUCCEEDED
        end = 0.0 if alone else _FINAL_OUTPUT_S if succeeded else _FINAL_REPORTS_S
        self._final = FinalReports(now + end, now + min(end, _FINAL_REPORTS_S), self._outbox.acked)
        self._send_final_reports()

    def _send_final_reports(self) -> None:
        """Ship the rest of the logs and metrics until all is acknowledged or the time is over.

        Then say how much output was not sent.
        """
        self._ship_bulk()
        now, final = self._clock.monotonic(), self._final
        whole = self._outbox.empty and self._orphans.over and self._shipper.backlog == 0
        if final.told is None and whole:
            self._link.put(lambda seq: LeavingReport(seq=seq))
            self._send_leaving(now + _FINAL_REPORTS_S)
        elif final.told is not None and (self._outbox.empty or now > final.told):
            self._leave_unsent(now)
        else:
            if final.told is None and final.is_over(now, self._outbox.acked):
                self._shipper.give_up()
                self._shipper.close()
                self._link.push()
                final.told = now + _LAST_WORDS_S
            self._loop.call_later(0.01, self._send_final_reports)

    def _leave_unsent(self, now: float) -> None:
        if self._outbox.empty and self._orphans.over:
            self._link.put(lambda seq: LeavingReport(seq=seq))
            self._send_leaving(now + _LAST_WORDS_S)
        else:
            self._loop.stop()

    def _send_leaving(self, deadline: float) -> None:
        if self._outbox.empty or self._clock.monotonic() > deadline:
            if self._outbox.empty:
                mark_reported(self._node_dir)
            self._link.close()
            self._orphans.close()
            self._loop.stop()
        else:
            self._loop.call_later(0.005, lambda: self._send_leaving(deadline))


def _measure_host(meter: HostMeter, current: Generation, clock: Clock) -> None:
    """Add what the node uses to the metrics of its first rank, once a period while ranks live."""
    if all(rank.exit is not None for rank in current.ranks):
        return
    values, step = meter.measure(clock.monotonic()), current.records.step
    # A point without a step would be taken for the first step of the job.
    if values and step is not None:
        record = MetricRecord(step=step, values=values)
        current.metrics.add(current.ranks[0].rank, clock.now(), record)
