"""How ranks ended, from the wait status, the error file and the last lines of stderr."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.core.gang.failures import Failure, RankExit, classify, describe, is_collateral
from phalanx.core.jobs.model import NodeOutcome

_MAX_TRACEBACK = 16_000
_MAX_MESSAGE = 2_000
_HEAD = "Traceback (most recent call last):"
_LAST = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration))(?:: (.*))?$"
)
_LINE = re.compile(r'^  File ".*", line \d+')
_CANNOT_OPEN = re.compile(r"can't open file '.*': \[Errno \d+\] .*")
_NO_MODULE = re.compile(r"No module named \S+$")
# torch puts this before every line once a process group exists.
_PREFIX = re.compile(r"^\[rank\d+\]: ")
_FATAL = "Fatal Python error"


@dataclass(frozen=True, slots=True)
class ErrorText:
    """The exception that ended a rank: its name (or None), its message, the traceback."""

    exception: str | None
    message: str
    traceback: str


def rank_exit(rank: int, status: int, at: int, error_file: str | None, stderr: bytes) -> RankExit:
    """The end of one rank. `status` as from waitpid; `error_file` the text of its error file."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return RankExit(rank=rank, at=at, exit_code=0)
    text = stderr.decode("utf-8", "replace")
    if code < 0:
        return RankExit(rank=rank, at=at, signal=-code, traceback=_fatal(text))
    words = (from_error_file(error_file) if error_file else None) or from_stderr(text)
    return RankExit(
        rank=rank,
        at=at,
        exit_code=code,
        exception=words.exception,
        message=words.message[:_MAX_MESSAGE],
        traceback=words.traceback[-_MAX_TRACEBACK:],
    )


def first_failure(
    exits: Sequence[RankExit], *, node_rank: int, stepped: bool, oom_killed: bool
) -> Failure:
    """The failure of a node from its failed ranks: that of the first one that was not collateral.

    `stepped`: the job has made a step, so its code can work. `oom_killed`: the kernel has killed a
    process here for want of memory, which explains a SIGKILL.
    """
    first = min(exits, key=lambda exit: (is_collateral(exit), exit.at, exit.rank))
    first = replace(first, out_of_memory=oom_killed and first.signal == signal.SIGKILL)
    return Failure(
        cause=classify(first, stepped=stepped),
        rank=first.rank,
        node_rank=node_rank,
        at=first.at,
        message=describe(first, signal_name(first)),
        collateral=is_collateral(first),
        exit_code=first.exit_code,
        signal=first.signal,
        exception=first.exception,
        traceback=first.traceback,
    )


def node_outcome(
    exits: Sequence[RankExit | None], *, stopping: bool, left_early: bool
) -> NodeOutcome:
    """How a generation without a failure ended on this node; None is a rank that did not run."""
    if all(exit is not None and exit.exit_code == 0 for exit in exits):
        return NodeOutcome.STOPPED if left_early else NodeOutcome.SUCCEEDED
    return NodeOutcome.STOPPED if stopping else NodeOutcome.FAILED


def signal_name(exit: RankExit) -> str | None:
    """The name of the signal that ended it, if one did."""
    if exit.signal is None:
        return None
    try:
        return signal.Signals(exit.signal).name
    except ValueError:
        return None


def from_error_file(text: str) -> ErrorText | None:
    """The exception in a torchelastic error file; None when the file cannot be understood."""
    try:
        body: Any = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(body, str):
        body = {"message": body}
    if not isinstance(body, dict):
        return None
    said = str(body.get("message", ""))
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    kind, _, rest = said.partition(": ")
    exception = str(extra.get("exc_type") or (kind if kind.isidentifier() else "")) or None
    message = rest if exception is not None and kind == exception else said
    return ErrorText(exception, message, str(extra.get("py_callstack", "")))


def from_stderr(text: str) -> ErrorText:
    """The last Python exception printed; without one, the last lines as they are."""
    lines = [_PREFIX.sub("", line) for line in text.rstrip().splitlines()]
    for number in range(len(lines) - 1, -1, -1):
        found = _LAST.match(lines[number])
        if found is None:
            continue
        start = _start_of_traceback(lines, number)
        if start is None:
            continue
        message = "\n".join([found[2] or "", *_continuation(lines, number)]).rstrip()
        return ErrorText(found[1].rpartition(".")[2], message, "\n".join(lines[start:]))
    tail = "\n".join(lines[-20:])
    for line in reversed(lines[-5:]):
        if found := _CANNOT_OPEN.search(line):
            return ErrorText("FileNotFoundError", found[0], tail)
        if found := _NO_MODULE.search(line):
            return ErrorText("ModuleNotFoundError", found[0], tail)
    return ErrorText(None, "", tail)


def _start_of_traceback(lines: list[str], end: int) -> int | None:
    """Where the traceback that ends at `end` begins; a SyntaxError has no headline."""
    for number in range(end - 1, -1, -1):
        if lines[number] == _HEAD:
            return number
    for number in range(end - 1, max(-1, end - 6), -1):
        if _LINE.match(lines[number]):
            return number
    return None


def _continuation(lines: list[str], end: int) -> list[str]:
    """Further lines of a message of several lines."""
    return lines[end + 1 : end + 6]


def _fatal(text: str) -> str:
    """The stack that faulthandler printed, if it did."""
    at = text.rfind(_FATAL)
    return text[at:][:_MAX_TRACEBACK] if at >= 0 else ""
