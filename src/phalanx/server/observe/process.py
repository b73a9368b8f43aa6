"""The families of the control plane: of this process, and of all replicas of the database."""

from __future__ import annotations

import threading

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

import phalanx
from phalanx.server.context import Context
from phalanx.server.leadership import LEADER
from phalanx.server.observe.sheet import Sheet

_US = 1e-6
_RESOURCES = ProcessCollector(namespace="phalanx", registry=CollectorRegistry())


def put_process(sheet: Sheet, context: Context) -> None:
    """Add what is known of this process."""
    sheet.put("phalanx_build_info", 1, phalanx.__version__)
    sheet.put("phalanx_leader", int(context.leadership.role == LEADER))
    now = context.clock.monotonic()
    for loop, beat in sorted(context.beats.items()):
        sheet.put("phalanx_loop_idle_seconds", max(0.0, now - beat), loop)
    sheet.put("phalanx_requests_open", context.presence.num_open)
    sheet.put("phalanx_event_streams_open", context.presence.num_streams)
    for metric in resources():
        sheet.take(metric)
    sheet.put("phalanx_process_threads", threading.active_count())


def resources() -> list[Metric]:
    """Processor time, memory and file descriptors of this process, as the Prometheus library reads them."""
    return list(_RESOURCES.collect())


def put_shared(
    sheet: Sheet, context: Context, *, last_event: int, commands: tuple[int, int | None], now: int
) -> None:
    """Add what all replicas have in common: the event log, and the open commands with the oldest time."""
    num_open, oldest = commands
    sheet.put("phalanx_replicas", max(1, len(context.leadership.living())))
    sheet.put("phalanx_events", last_event)
    sheet.put("phalanx_commands_open", num_open)
    age_us = 0 if oldest is None else max(0, now - oldest)
    sheet.put("phalanx_commands_oldest_seconds", age_us * _US)
