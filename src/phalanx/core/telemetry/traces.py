"""Merging of several ranks' traces in Chrome's trace format on one clock.

Ranks' clocks are compared through collectives: no rank leaves one before every rank has entered it, so
every pair of readings bounds the difference of two clocks from both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Interval = tuple[float, float]
Event = Mapping[str, Any]
_WAITING = ("wait", "c10d", "gloo", "nccl", "barrier")
_PIDS = 100
"""Processes and devices of one rank in the merged trace."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace. `base_ns` is what its events' times (µs) count from, on its own clock.

    `sections` are (name, begin, end) in nanoseconds of that clock.
    """

    rank: int
    base_ns: int
    events: Sequence[Event] = ()
    sections: Sequence[tuple[str, int, int]] = ()


@dataclass(frozen=True, slots=True)
class TraceTotals:
    """Seconds of a whole trace. `busy_s` None: no GPU computed."""

    exposed_s: float = 0.0
    hidden_s: float = 0.0
    ops: int = 0
    busy_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Offset of a clock against that of rank 0, and its largest error, in nanoseconds."""

    ahead_ns: int = 0
    error_ns: int = 0


def offsets(readings: Sequence[Sequence[tuple[int, int]]]) -> list[ClockOffset]:
    """Every rank's clock against rank 0's, of (entered, left) readings around the same collectives."""
    found = []
    for mine in readings:
        pairs = list(zip(mine, readings[0], strict=True))
        least = max((own[0] - first[1] for own, first in pairs), default=0)
        most = min((own[1] - first[0] for own, first in pairs), default=0)
        found.append(ClockOffset((least + most) // 2, max(0, (most - least) // 2)))
    if found:
        found[0] = ClockOffset()
    return found


def figures(events: Iterable[Event]) -> TraceTotals:
    """Sum up the communication and computation in a trace.

    On a GPU, kernels count; without a GPU, operations of the script's threads that do not wait.
    """
    spans = [one for one in events if one.get("ph") == "X" and one.get("dur")]
    kernels = [one for one in spans if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    ops = _leaves(one for one in spans if one.get("cat") == "cpu_op")
    if kernels:
        sent = [_interval(one) for one in kernels if "nccl" in str(one["name"]).lower()]
        computed = [_interval(one) for one in kernels if "nccl" not in str(one["name"]).lower()]
    else:
        sent = [
            _interval(one)
            for one in spans
            if one.get("cat") == "user_annotation" and str(one["name"]).startswith("gloo:")
        ]
        computed = [_interval(one) for one in ops if not _waits(str(one["name"]))]
    travel, work = _union(sent), _union(computed)
    hidden = _overlap(travel, work)
    exposed = _length(travel) - hidden
    busy = _length(work) * 1e-6 if kernels else None
    return TraceTotals(exposed * 1e-6, hidden * 1e-6, len(ops), busy)


def merge(traces: Sequence[RankTrace], clocks: Sequence[ClockOffset]) -> dict[str, Any]:
    """One trace of all ranks on rank 0's clock, as a JSON document for chrome://tracing or Perfetto."""
    zeros = {
        one.rank: one.base_ns - clock.ahead_ns for one, clock in zip(traces, clocks, strict=True)
    }
    start = min(
        (
            at
            for one, clock in zip(traces, clocks, strict=True)
            for at in _begins(one, clock.ahead_ns)
        ),
        default=0,
    )
    merged: list[dict[str, Any]] = []
    for one, clock in zip(traces, clocks, strict=True):
        merged += _sections(one, start + clock.ahead_ns)
        merged += _events(one, (zeros[one.rank] - start) / 1e3)
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": start, "traceEvents": merged}


def _begins(trace: RankTrace, ahead_ns: int) -> Iterable[int]:
    yield from (begin - ahead_ns for _, begin, _ in trace.sections)
    yield from (
        trace.base_ns - ahead_ns + round(float(one["ts"]) * 1e3)
        for one in trace.events
        if one.get("ts") and one.get("ph") != "M"
    )


def _sections(trace: RankTrace, start_ns: int) -> list[dict[str, Any]]:
    pid = trace.rank * _PIDS
    head: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"rank {trace.rank}"}},
        {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "thread_name", "args": {"name": "step"}},
    ]
    base: dict[str, Any] = {"ph": "X", "cat": "phalanx", "pid": pid, "tid": 0}
    return head + [
        {**base, "name": name, "ts": (begin - start_ns) / 1e3, "dur": (end - begin) / 1e3}
        for name, begin, end in trace.sections
    ]


def _events(trace: RankTrace, shift_us: float) -> list[dict[str, Any]]:
    pids: dict[Any, int] = {}
    found = []
    for one in trace.events:
        event = dict(one)
        old = event.get("pid")
        pid = trace.rank * _PIDS + pids.setdefault(old, 1 + min(len(pids), _PIDS - 2))
        event["pid"] = pid
        if event.get("ph") != "M" and "ts" in event:
            event["ts"] = float(event["ts"]) + shift_us
        if event.get("name") == "process_name":
            was = dict(event.get("args") or {}).get("name", "")
            event["args"] = {"name": f"rank {trace.rank}: {was or old}"}
        elif event.get("name") == "process_sort_index":
            event["args"] = {"sort_index": pid}
        if "id" in event:
            event["id"] = f"{trace.rank}-{event['id']}"
        found.append(event)
    return found


def _interval(event: Event) -> Interval:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def _waits(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _WAITING)


def _leaves(events: Iterable[Event]) -> list[Event]:
    """Operations that contain no other one of the same thread."""
    threads: dict[Any, list[Event]] = {}
    for one in events:
        threads.setdefault(one.get("tid"), []).append(one)
    found = []
    for rows in threads.values():
        rows.sort(key=lambda one: (float(one["ts"]), -float(one["dur"])))
        for at, one in enumerate(rows):
            if at + 1 == len(rows) or float(rows[at + 1]["ts"]) >= _interval(one)[1]:
                found.append(one)
    return found


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _overlap(left: Sequence[Interval], right: Sequence[Interval]) -> float:
    """Of two unions, both in order."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return total
