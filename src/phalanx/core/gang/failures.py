"""How ranks end: their exit, the exception that they printed, and the cause of a failure.

Reading order: `rank_exit` (one rank), `failure_of_node` (the first that failed on a node), `classify`
and `is_collateral` (why), `first_failure` (among nodes), `from_error_file` and `from_stderr` (texts).
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.core.reasons import Cause


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_OOM_TYPES = _names("OutOfMemoryError MemoryError")
_OOM_WORDS = ("can't allocate memory", "CUDA out of memory", "std::bad_alloc")
PREFLIGHT_FAILED = "PreflightFailed"
"""The exception of ranks that do not fit together: the gang would not form, or compute wrongly."""
_START_TYPES = _names(PREFLIGHT_FAILED)
_DIVERGED_TYPES = _names("Diverged DivergedForGood")
_MISSING_TYPES = _names("CheckpointMissing CheckpointUnavailable")
_REJECTED_TYPES = _names("ParamsRejected")
_UNSAVED_TYPES = _names("FinalCheckpointNotSaved")
_MISTAKES = _names(
    "AttributeError FileNotFoundError ImportError IndentationError KeyError ModuleNotFoundError",
    "NameError NotImplementedError SyntaxError TabError TypeError UnboundLocalError ValueError",
    # Errors of the library for arguments, data and checkpoints that do not match.
    "NotFound NotSupported PermissionDenied RestoreMismatch SpecInvalid UserError",
)
_COLLATERAL_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "ncclRemoteError",
    "ncclSystemError",
    "Timed out waiting",
    "timed out after",
    "Socket Timeout",
    "recvValue failed",
    "sendBytes failed",
    "failed to connect",
    "Application timeout caused pair closure",
)
_NETWORK_TYPES = _names(
    "RuntimeError ConnectionError ConnectionResetError JaxRuntimeError XlaRuntimeError",
    "HorovodInternalError",
)
_COLLATERAL_TYPES = _names("DistBackendError DistNetworkError DistStoreError UnavailableError")

_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
_SHELL_KILLS = frozenset(
    128 + number for number in _KILLS
)  # the exit code of a shell around the rank

_MAX_TRACEBACK = 16_000
_MAX_MESSAGE = 2_000
_HEAD = "Traceback (most recent call last):"
_LAST = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)|phalanx\.errors\.\w+)"
    r"(?:: (.*))?$"
)
_LINE = re.compile(r'^  File ".*", line \d+')
_CANNOT_OPEN = re.compile(r"can't open file '.*': \[Errno \d+\] .*")
_NO_MODULE = re.compile(r"No module named \S+$")
# torch puts this before every line once a process group exists.
_PREFIX = re.compile(r"^\[rank\d+\]: ")
_FATAL = "Fatal Python error"


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended. `signal` is set for a death by signal, `exit_code` otherwise.

    `out_of_memory`: the kernel killed it for want of memory.
    """

    rank: int
    at: int
    exit_code: int | None = None
    signal: int | None = None
    exception: str | None = None
    message: str = ""
    traceback: str = ""
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a generation on one node, with details of the node's first failing rank."""

    cause: Cause  # decides the budget of the restart
    rank: int | None  # None: no single rank failed
    node_rank: int  # node rank in the gang
    at: int  # microseconds UTC, the control plane's clock
    message: str  # one line for users
    collateral: bool = False  # caused by another rank's failure
    exit_code: int | None = None  # None: killed by a signal, or unknown
    signal: int | None = None  # number of the signal that killed the rank
    exception: str | None = None  # type of the exception, where reported
    traceback: str = ""  # of that exception; empty: none


@dataclass(frozen=True, slots=True)
class ErrorText:
    """The exception that ended a rank: its name (or None), its message, the traceback."""

    exception: str | None
    message: str
    traceback: str


def rank_exit(
    rank: int, exit_code: int, at: int, error_file: str | None, stderr: bytes
) -> RankExit:
    """The end of one rank. `exit_code` is minus the signal after a death by signal.

    `error_file` is the text of its error file, `stderr` the last that it printed there.
    """
    if exit_code == 0:
        return RankExit(rank=rank, at=at, exit_code=0)
    text = stderr.decode("utf-8", "replace")
    if exit_code < 0:
        return RankExit(rank=rank, at=at, signal=-exit_code, traceback=_fatal(text))
    words = (from_error_file(error_file) if error_file else None) or from_stderr(text)
    return RankExit(
        rank=rank,
        at=at,
        exit_code=exit_code,
        exception=words.exception,
        message=words.message[:_MAX_MESSAGE],
        traceback=words.traceback[-_MAX_TRACEBACK:],
    )


def failure_of_node(
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
        message=describe(first),
        collateral=is_collateral(first),
        exit_code=first.exit_code,
        signal=first.signal,
        exception=first.exception,
        traceback=first.traceback,
    )


def is_collateral(exit: RankExit) -> bool:
    """Whether another rank's failure led to this one, as in connection errors of NCCL."""
    if exit.exception in _COLLATERAL_TYPES:
        return True
    # JAX raises a different type of exception for each status code.
    network = exit.exception in _NETWORK_TYPES or "Gloo " in exit.message
    return network and any(word in exit.message for word in _COLLATERAL_WORDS)


def classify(exit: RankExit, *, stepped: bool) -> Cause:
    """The cause of one rank's failure. `stepped`: some optimizer step was completed before it."""
    said = exit.exception in _OOM_TYPES or any(word in exit.message for word in _OOM_WORDS)
    if said or exit.out_of_memory:
        return Cause.OOM
    if exit.exception in _DIVERGED_TYPES:
        return Cause.DIVERGED
    if exit.exception in _START_TYPES:
        return Cause.START_FAILED
    if exit.exception in _MISSING_TYPES:
        return Cause.CHECKPOINT_MISSING
    if exit.exception in _REJECTED_TYPES:
        return Cause.PARAMS_REJECTED
    if exit.exception in _UNSAVED_TYPES:
        return Cause.FINAL_CHECKPOINT_NOT_SAVED
    if not stepped and exit.exception in _MISTAKES:
        return Cause.USER_ERROR
    return Cause.RANK_CRASH


def is_final(failure: Failure) -> bool:
    """Whether the rank reported that another generation would fail in the same way."""
    return failure.exception == "DivergedForGood"


def is_killed_from_outside(failure: Failure) -> bool:
    """Whether a signal that a script cannot raise by a mistake ended the rank, which says nothing of it."""
    return failure.signal in _KILLS or failure.exit_code in _SHELL_KILLS


def describe(exit: RankExit) -> str:
    """One line: which rank, and what happened to it."""
    if exit.out_of_memory:
        return f"rank {exit.rank} was killed by the kernel: its cgroup is out of memory"
    if exit.signal is not None:
        return f"rank {exit.rank} was killed by {signal_name(exit.signal)}"
    if exit.exception:
        first = exit.message.strip().splitlines()[0] if exit.message.strip() else ""
        return f"rank {exit.rank}: {exit.exception}: {first}".rstrip(": ")
    return f"rank {exit.rank} exited with code {exit.exit_code}"


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The earliest failure that is not collateral; the earliest of all when every one is."""
    found = sorted(failures, key=lambda f: (f.collateral, f.at, f.node_rank, f.rank or 0))
    return found[0] if found else None


def signal_name(number: int) -> str:
    """The name of a signal, or `signal` and its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
        # A message may have several lines.
        message = "\n".join([found[2] or "", *lines[number + 1 : number + 6]]).rstrip()
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


def _fatal(text: str) -> str:
    """The stack that faulthandler printed, if it did."""
    at = text.rfind(_FATAL)
    return text[at:][:_MAX_TRACEBACK] if at >= 0 else ""
