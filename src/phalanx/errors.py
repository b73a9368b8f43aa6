"""Every error that Phalanx raises on purpose.

    PlatformError(code, message, hint, retryable)
      UserError
        SpecInvalid(problems)      NotFound      AlreadyExists      Conflict
        PermissionDenied           NotSupported  QuotaExceeded
      ExecutorError
        ExecutorUnavailable*       LaunchFailed
      StoreError
        LeaseLost    StaleRow    StoreCorrupt    StoreUnavailable*
      ServerError
        ServerUnavailable*         ServerBusy*
      TrainingError
        CheckpointCorrupt    CheckpointNotFound    RestoreMismatch    RankDesync
        CheckpointUnavailable*
        Diverged             DivergedForGood
        DataCorrupt          DataUnavailable*
        PreflightFailed
      Bug
        InvalidTransition(story)   InvariantBroken
                                                        (* worth trying again)

"Cannot be placed" and "the job failed" are values with reasons (`core.reasons`), never exceptions.
Each error survives pickling, and maps to one HTTP status and one exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class PlatformError(Exception):
    """Root of the tree. `message` says what happened; `hint` says what to do about it."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.hint))

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UserError(PlatformError):
    """Something the caller can put right."""

    code = "invalid"
    http_status = 400


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in a spec: where, what is there, what would be right."""

    path: str
    message: str
    value: str | None = None

    def __str__(self) -> str:
        got = f" (got {self.value})" if self.value is not None else ""
        return f"{self.path}: {self.message}{got}" if self.path else f"{self.message}{got}"


class SpecInvalid(UserError):
    """A spec that cannot be accepted; lists every problem found, not only the first."""

    code = "spec_invalid"
    http_status = 422

    def __init__(self, problems: Sequence[Problem], hint: str | None = None) -> None:
        super().__init__("\n".join(str(p) for p in problems), hint)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems, self.hint))


class NotFound(UserError):
    """No such job, checkpoint, pool or project."""

    code = "not_found"
    http_status = 404
    exit_code = 102


class AlreadyExists(UserError):
    """The name is taken."""

    code = "already_exists"
    http_status = 409


class Conflict(UserError):
    """The thing is not in a state that allows this."""

    code = "conflict"
    http_status = 409


class PermissionDenied(UserError):
    """The token is missing, wrong, or not allowed to do this."""

    code = "permission_denied"
    http_status = 403


class NotSupported(UserError):
    """Understood, but not built yet or not possible with this executor."""

    code = "not_supported"
    http_status = 422


class QuotaExceeded(UserError):
    """The project may not use that much."""

    code = "quota_exceeded"
    http_status = 403


class ExecutorError(PlatformError):
    """What starts processes could not."""

    code = "executor"


class ExecutorUnavailable(ExecutorError):
    """The executor cannot be reached for now."""

    code = "executor_unavailable"
    http_status = 503
    retryable = True


class LaunchFailed(ExecutorError):
    """A process could not be started."""

    code = "launch_failed"


class StoreError(PlatformError):
    """The database refused."""

    code = "store"


class LeaseLost(StoreError):
    """Somebody else holds the lease; the result must not be applied."""

    code = "lease_lost"


class StaleRow(StoreError):
    """The row changed since it was read; load it again and decide again."""

    code = "stale_row"
    http_status = 409


class StoreCorrupt(StoreError):
    """The database file is damaged or was written by something else."""

    code = "store_corrupt"


class StoreUnavailable(StoreError):
    """The database cannot be reached or is locked for now."""

    code = "store_unavailable"
    http_status = 503
    retryable = True


class ServerError(PlatformError):
    """The control plane could not be used."""

    code = "server"


class ServerUnavailable(ServerError):
    """No control plane answers."""

    code = "server_unavailable"
    http_status = 503
    retryable = True


class ServerBusy(ServerError):
    """The control plane asks to come back later."""

    code = "server_busy"
    http_status = 429
    retryable = True


class TrainingError(PlatformError):
    """Raised inside a user's training process."""

    code = "training"


class CheckpointCorrupt(TrainingError):
    """A checkpoint does not match its manifest."""

    code = "checkpoint_corrupt"


class CheckpointNotFound(TrainingError):
    """No valid checkpoint where one was asked for."""

    code = "checkpoint_not_found"
    http_status = 404
    exit_code = 102


class CheckpointUnavailable(TrainingError):
    """The store of checkpoints cannot be reached for now."""

    code = "checkpoint_unavailable"
    http_status = 503
    retryable = True


class RestoreMismatch(TrainingError):
    """The checkpoint belongs to another model, optimizer or data set."""

    code = "restore_mismatch"


class RankDesync(TrainingError):
    """The ranks no longer do the same thing at the same step."""

    code = "rank_desync"


class Diverged(TrainingError):
    """A guard ends this generation; the next one goes on from before the bad step."""

    code = "diverged"


class DivergedForGood(TrainingError):
    """A guard ends the job: another generation would come to the same."""

    code = "diverged_for_good"


class PreflightFailed(TrainingError):
    """The ranks do not fit together, or cannot reach one another; nothing was trained."""

    code = "preflight_failed"


class DataCorrupt(TrainingError):
    """Training data does not match its index, or cannot be decoded."""

    code = "data_corrupt"


class DataUnavailable(TrainingError):
    """Training data cannot be fetched for now, or the node's cache has no room for it."""

    code = "data_unavailable"
    http_status = 503
    retryable = True


class Bug(PlatformError):
    """A broken promise of our own code; never caught below a program's main loop."""

    code = "bug"


class InvalidTransition(Bug):
    """The job machine refuses this event in this state; carries the job's story."""

    code = "invalid_transition"

    def __init__(self, message: str, story: Sequence[str] = ()) -> None:
        super().__init__(message, None)
        self.story = tuple(story)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.story))

    def __str__(self) -> str:
        return "\n".join([self.message, *self.story])


class InvariantBroken(Bug):
    """A state that must never exist does."""

    code = "invariant_broken"
