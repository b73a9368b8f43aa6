"""Stacks of all threads of a rank, on demand: SIGUSR1 writes them to a file beside its report.

Written by a handler in C that needs no interpreter lock, so it answers in a rank that hangs in a
collective, where no Python code runs any more. The rank goes on as if nothing had happened.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from phalanx.core.gang import stacks

SIGNAL = signal.SIGUSR1  # what `supervise.stacks` sends
_open: list[IO[Any]] = []


def stacks_file(report_file: Path) -> Path:
    """Return the path of the stacks file beside a report file."""
    return report_file.with_suffix(stacks.SUFFIX)


def install_handler(report_file: Path | None) -> None:
    """Install the signal handler; does nothing without a writable report file."""
    if report_file is None:
        return
    try:
        file = open(stacks_file(report_file), "a")  # noqa: SIM115 - open as long as the process lives
    except OSError:
        return
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    _open.append(file)


def request_stacks(pids: Iterable[int]) -> None:
    """Send the signal to these ranks; ranks that have ended are ignored."""
    for pid in pids:
        try:
            os.kill(pid, SIGNAL)
        except ProcessLookupError:
            continue
