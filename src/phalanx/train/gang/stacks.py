"""What a rank that hangs can still tell: the stacks of all its threads, and its newest collectives.

SIGUSR1 writes the stacks to a file beside the rank's report. They are written by a handler in C that needs
no interpreter lock, so it answers in a rank that hangs in a collective, where no Python code runs any more.

A byte in the pipe beside the report asks for the collectives. A thread waits there; it needs the
interpreter lock, which a rank in a collective has released. The supervisor makes the pipe; without it there
is no thread.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from phalanx.core.gang import stacks
from phalanx.core.gang.collectives import ANSWER_SUFFIX, ASK_SUFFIX, MOST_GROUPS

SIGNAL = signal.SIGUSR1  # what `supervise.stacks` sends
_open: dict[Path, IO[Any]] = {}


def stacks_file(report_file: Path) -> Path:
    """Return the path of the stacks file beside a report file."""
    return report_file.with_suffix(stacks.SUFFIX)


def install_handler(report_file: Path | None) -> None:
    """Install the handler and the thread, once; does nothing without a writable report file."""
    if report_file is None or report_file in _open:
        return
    try:
        file = open(stacks_file(report_file), "a")  # noqa: SIM115 - open as long as the process lives
    except OSError:
        return
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    _open[report_file] = file
    if report_file.with_suffix(ASK_SUFFIX).is_fifo():
        with contextlib.suppress(OSError):
            # Open for writing too: there is always a writer, so a read waits and never finds an end.
            pipe = os.open(report_file.with_suffix(ASK_SUFFIX), os.O_RDWR | os.O_CLOEXEC)
            # Not of `threading`: a script that counts its threads finds only its own.
            _thread.start_new_thread(_answer_all, (report_file, pipe))


def request_stacks(pids: Iterable[int]) -> None:
    """Send the signal to these ranks; ranks that have ended are ignored."""
    for pid in pids:
        try:
            os.kill(pid, SIGNAL)
        except ProcessLookupError:
            continue


def _answer_all(report_file: Path, pipe: int) -> None:
    """Write the newest collectives whenever the pipe asks for them."""
    with contextlib.suppress(OSError):
        while os.read(pipe, 64):
            fresh = report_file.with_suffix(ANSWER_SUFFIX + ".new")
            fresh.write_text(json.dumps(newest_collectives()))
            fresh.replace(report_file.with_suffix(ANSWER_SUFFIX))


def newest_collectives() -> list[dict[str, Any]]:
    """Return the newest collective of each process group, from the flight recorder of torch."""
    recorder = sys.modules.get("torch._C._distributed_c10d")
    read = getattr(recorder, "_dump_fr_trace_json", None)
    if read is None:
        return []
    try:
        entries = json.loads(read()).get("entries", [])
    except (RuntimeError, TypeError, ValueError):
        return []
    newest: dict[str, dict[str, Any]] = {}
    for one in entries:
        if one.get("is_p2p"):
            continue
        name, title = (*one["process_group"], "", "")[:2]
        operation = str(one["profiling_name"]).rpartition(":")[2]
        newest[f"{title or name} {name}".strip()] = {
            "number": int(one["collective_seq_id"]),
            "operation": operation,
            "sizes": str(one.get("input_sizes", "")),
            "done": bool(one.get("retired")) or one.get("state") == "completed",
        }
    rows = [{"group": group, **facts} for group, facts in newest.items()]
    return rows[-MOST_GROUPS:]
