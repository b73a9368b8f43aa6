"""What a rank's end means: its cause, and whether it only fell because another rank fell."""

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
        # What the library says of arguments, data and checkpoints that do not go together.
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
    """The failure of a generation on one node: its first failing rank and what is known of it.

    `at` is on the control plane's clock. `step` is the last step that rank's node reported, or None
    when it reported none.
    """

    cause: Cause
    rank: int | None
    node_rank: int
    at: int
    message: str
    collateral: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exception: str | None = None
    traceback: str = ""


def is_collateral(exit: RankExit) -> bool:
    """Whether it died of another rank's death: connection errors of gloo and NCCL are symptoms."""
    if exit.exception in _COLLATERAL_TYPES:
        return True
    # JAX says it with whatever exception suits its status code.
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
    """Whether a rank has said itself that another generation would come to the same."""
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
