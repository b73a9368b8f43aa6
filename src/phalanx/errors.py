"""Every error that Phalanx raises on purpose.

    PlatformError(code, message, hint, retryable)
      UserError
        SpecInvalid(problems)   NotFound   Conflict   Unauthenticated   PermissionDenied
        NotSupported   TooLarge   TooManyRequests*   PreconditionFailed   SecretRefused
      ExecutorError
        ExecutorUnavailable*    LaunchError
      StoreError
        LeaseLost   StaleRow    StoreCorrupt   StoreUnavailable*
      ServerError
        ServerUnavailable*      StorageFull*   SecretManagerUnavailable*
      TrainingError
        CheckpointCorrupt   CheckpointNotFound   CheckpointUnavailable*   CheckpointMissing
        FinalCheckpointNotSaved   RestoreMismatch
        RankDesync   Diverged   DivergedForGood   PreflightFailed
        DataCorrupt  DataUnavailable*
      Bug
        InvalidTransition(history)   InvariantBroken
                                                        (* retryable)

"Cannot be placed" and "the job failed" are values with reasons (`core.reasons`), never exceptions.
Each error survives pickling, and maps to one HTTP status and one exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class PlatformError(Exception):
    """The root of the tree: `message` says what happened, `hint` says what to do about it."""

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
    """A request that its sender can correct."""

    code = "invalid"
    http_status = 400


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in a spec: its path, what is wrong, and the value found."""

    path: str
    message: str
    value: str | None = None

    def __str__(self) -> str:
        got = f" (got {self.value})" if self.value is not None else ""
        return f"{self.path}: {self.message}{got}" if self.path else f"{self.message}{got}"


class SpecInvalid(UserError):
    """The spec cannot be accepted; `problems` lists every fault found, not only the first."""

    code = "spec_invalid"
    http_status = 422

    def __init__(self, problems: Sequence[Problem], hint: str | None = None) -> None:
        super().__init__("\n".join(str(p) for p in problems), hint)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems, self.hint))


class NotFound(UserError):
    """The named job, pool, node, project or other object does not exist."""

    code = "not_found"
    http_status = 404
    exit_code = 102


class Conflict(UserError):
    """The object is not in a state that allows this operation."""

    code = "conflict"
    http_status = 409


class PreconditionFailed(UserError):
    """The object is no longer the one that the caller has read; read it again and decide again."""

    code = "precondition_failed"
    http_status = 412


class Unauthenticated(UserError):
    """The request has no token, or a wrong one."""

    code = "unauthenticated"
    http_status = 401


class PermissionDenied(UserError):
    """The token or key does not allow this operation, or the key of a checkpoint is wrong."""

    code = "permission_denied"
    http_status = 403


class NotSupported(UserError):
    """The request is valid, but the feature is not built yet or not possible with this executor."""

    code = "not_supported"
    http_status = 422


class TooLarge(UserError):
    """The request is larger than the server reads."""

    code = "too_large"
    http_status = 413


class TooManyRequests(UserError):
    """The server serves as many requests of this kind as it can; try again."""

    code = "too_many_requests"
    http_status = 429
    retryable = True


class SecretRefused(UserError):
    """A secret manager does not give a value: its path, its key or a permission is missing."""

    code = "secret_refused"
    http_status = 422


class ExecutorError(PlatformError):
    """An executor failed."""

    code = "executor"


class ExecutorUnavailable(ExecutorError):
    """The executor cannot be reached at present."""

    code = "executor_unavailable"
    http_status = 503
    retryable = True


class LaunchError(ExecutorError):
    """A process could not be started. `cause` is the name of the cause that it is for the job."""

    code = "launch_failed"

    def __init__(self, message: str, hint: str | None = None, cause: str = "start_failed") -> None:
        super().__init__(message, hint)
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.hint, self.cause))


class StoreError(PlatformError):
    """The database refused an operation."""

    code = "store"


class LeaseLost(StoreError):
    """Another process holds the lease; the result must not be applied."""

    code = "lease_lost"


class StaleRow(StoreError):
    """The row changed after it was read; load it and decide again."""

    code = "stale_row"
    http_status = 409


class StoreCorrupt(StoreError):
    """The database file is damaged or was written by another program."""

    code = "store_corrupt"


class StoreUnavailable(StoreError):
    """The database cannot be reached or is locked at present."""

    code = "store_unavailable"
    http_status = 503
    retryable = True


class ServerError(PlatformError):
    """The control plane could not be used."""

    code = "server"


class ServerUnavailable(ServerError):
    """No control plane answers the request."""

    code = "server_unavailable"
    http_status = 503
    retryable = True


class StorageFull(ServerError):
    """The disk of the control plane has no space left, or its quota is used up; nothing was stored."""

    code = "storage_full"
    http_status = 507
    retryable = True


class SecretManagerUnavailable(ServerError):
    """A secret manager does not answer at present."""

    code = "secret_manager_unavailable"
    http_status = 503
    retryable = True


class TrainingError(PlatformError):
    """An error inside a user's training process."""

    code = "training"


class CheckpointCorrupt(TrainingError):
    """A checkpoint does not match its manifest."""

    code = "checkpoint_corrupt"


class CheckpointNotFound(TrainingError):
    """No valid checkpoint exists at the requested place."""

    code = "checkpoint_not_found"
    http_status = 404
    exit_code = 102


class CheckpointUnavailable(TrainingError):
    """The checkpoint store cannot be reached, or its files cannot be read, at present."""

    code = "checkpoint_unavailable"
    http_status = 503
    retryable = True


class CheckpointMissing(TrainingError):
    """The checkpoints that the job has committed did not appear in time; nothing was trained."""

    code = "checkpoint_missing"


class FinalCheckpointNotSaved(TrainingError):
    """Training is complete, but its last checkpoint could not be written in time."""

    code = "final_checkpoint_not_saved"


class ParamsRejected(TrainingError):
    """The script says that its parameters make no sense: `run.reject`."""

    code = "params_rejected"


class RestoreMismatch(TrainingError):
    """The checkpoint belongs to another model, optimizer or data set."""

    code = "restore_mismatch"


class RankDesync(TrainingError):
    """The ranks no longer execute the same operations at the same step."""

    code = "rank_desync"


class Diverged(TrainingError):
    """A training guard ends this generation; the next one resumes from before the bad step."""

    code = "diverged"


class DivergedForGood(TrainingError):
    """A training guard ends the job, because another generation would diverge again."""

    code = "diverged_for_good"


class PreflightFailed(TrainingError):
    """The ranks are incompatible or cannot reach one another; nothing was trained."""

    code = "preflight_failed"


class DataCorrupt(TrainingError):
    """Training data does not match its index, or cannot be decoded."""

    code = "data_corrupt"


class DataUnavailable(TrainingError):
    """Training data cannot be fetched at present, or the node's cache has no room for it."""

    code = "data_unavailable"
    http_status = 503
    retryable = True


class Bug(PlatformError):
    """A defect of Phalanx itself; never caught below a program's main loop."""

    code = "bug"


class InvalidTransition(Bug):
    """The job machine refuses this event in this state; `history` holds the job's last events."""

    code = "invalid_transition"

    def __init__(self, message: str, history: Sequence[str] = ()) -> None:
        super().__init__(message, None)
        self.history = tuple(history)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.history))

    def __str__(self) -> str:
        return "\n".join([self.message, *self.history])


class InvariantBroken(Bug):
    """An internal invariant does not hold."""

    code = "invariant_broken"
