"""Classification of rank failures: the cause, and whether another rank's failure led to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.core.reasons import Cause

_OOM_TYPES = frozenset({"OutOfMemoryError", "MemoryError"})
_OOM_WORDS = ("can't allocate memory", "CUDA out of memory", "std::bad_alloc")
_START_TYPES = frozenset({"PreflightFailed"})
_DIVERGED_TYPES = frozenset({"Diverged", "DivergedForGood"})
_MISTAKES = frozenset(
    {
        "AttributeError", "FileNotFoundError", "ImportError", "IndentationError", "KeyError",
        "ModuleNotFoundError", "NameError", "NotImplementedError", "SyntaxError", "TabError",
        "TypeError", "UnboundLocalError", "ValueError",
        # Errors of the library for arguments, data and checkpoints that do not match.
        "NotFound", "NotSupported", "PermissionDenied", "RestoreMismatch", "SpecInvalid", "UserError",
    }
)  # fmt: skip
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
_NETWORK_TYPES = frozenset(
    {
        "RuntimeError", "ConnectionError", "ConnectionResetError", "JaxRuntimeError", "XlaRuntimeError",
        "HorovodInternalError",
    }
)  # fmt: skip
_COLLATERAL_TYPES = frozenset(
    {"DistBackendError", "DistNetworkError", "DistStoreError", "UnavailableError"}
)


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
    if not stepped and exit.exception in _MISTAKES:
        return Cause.USER_ERROR
    return Cause.RANK_CRASH


def is_final(failure: Failure) -> bool:
    """Whether the rank reported that another generation would fail in the same way."""
    return failure.exception == "DivergedForGood"


def describe(exit: RankExit, signal_name: str | None = None) -> str:
    """One line: which rank, and what happened to it."""
    if exit.out_of_memory:
        return f"rank {exit.rank} was killed by the kernel: its memory group is full"
    if exit.signal is not None:
        return f"rank {exit.rank} was killed by {signal_name or f'signal {exit.signal}'}"
    if exit.exception:
        first = exit.message.strip().splitlines()[0] if exit.message.strip() else ""
        return f"rank {exit.rank}: {exit.exception}: {first}".rstrip(": ")
    return f"rank {exit.rank} exited with code {exit.exit_code}"


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The earliest failure that is not collateral; the earliest of all when every one is."""
    found = sorted(failures, key=lambda f: (f.collateral, f.at, f.node_rank, f.rank or 0))
    return found[0] if found else None
