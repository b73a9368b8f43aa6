"""Restart budgets: how often a job may restart, by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.core.codec import earlier_names
from phalanx.core.gang.failures import Failure
from phalanx.core.reasons import Cause

_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `count` restarts within any `per_s` seconds; `count` None is unlimited.

    `killed`, where it is more, is the limit after a rank was killed by a signal from outside. The wait
    before a restart grows from `first_wait_s` only while no progress is made.
    """

    count: int | None = None
    per_s: float | None = None
    first_wait_s: float = 1.0
    max_wait_s: float = 300.0
    killed: int | None = None

    def most(self, killed: bool) -> int | None:
        """The limit after a failure; None: no limit."""
        if self.count is None or not killed or self.killed is None:
            return self.count
        return max(self.count, self.killed)


DEFAULT_BUDGETS: Mapping[Cause, Budget] = {
    # With the growing waits, eight restarts outlast a minute of kills that end every start.
    Cause.RANK_CRASH: Budget(count=3, per_s=3600.0, killed=8),
    Cause.NODE_LOST: Budget(),
    Cause.PREEMPTED: Budget(first_wait_s=0.0),
    Cause.STALLED: Budget(count=3, per_s=3600.0),
    Cause.START_FAILED: Budget(count=3, per_s=3600.0, first_wait_s=5.0),
    # Down to a sixteenth of the micro-batch.
    Cause.OOM: Budget(count=4),
    Cause.USER_ERROR: Budget(count=0),
    # One bad batch may cost two: the second time tells data from hardware.
    Cause.DIVERGED: Budget(count=4),
    # Each start waits for `checkpoint.wait` before it fails: a disk or a mount that is away.
    Cause.CHECKPOINT_MISSING: Budget(count=3, first_wait_s=30.0),
    # The owner asked for a failure (`checkpoint.on_final_failure`), after the same wait.
    Cause.FINAL_CHECKPOINT_NOT_SAVED: Budget(count=0),
    # The script says that its parameters make no sense.
    Cause.PARAMS_REJECTED: Budget(count=0),
    # A secret was removed, or its master key is away: either may be repaired by hand.
    Cause.SECRET_UNAVAILABLE: Budget(count=3, first_wait_s=30.0),
    # Nothing is wrong with the job: it waits for as long as the manager is away.
    Cause.SECRET_MANAGER_UNAVAILABLE: Budget(first_wait_s=15.0),
    # Nor here: other programs of the cluster hold what the job needs.
    Cause.CLUSTER_QUOTA: Budget(first_wait_s=15.0),
    Cause.UNSCHEDULABLE: Budget(first_wait_s=5.0),
    Cause.NODE_DRAINED: Budget(first_wait_s=0.0),
}


@earlier_names(max_no_progress="max_barren")
@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """Restart budgets by cause, the meaning of exit codes and exceptions, and the limit of a crash loop.

    `retry_codes` and `retry_exceptions` restart under the rank_crash budget even where the cause would
    forbid it; `fail_codes` and `fail_exceptions` end the job at once. `max_no_progress` bounds, where a
    budget is unlimited, the generations in a row without progress.
    """

    budgets: tuple[tuple[Cause, Budget], ...] = tuple(DEFAULT_BUDGETS.items())
    retry_codes: tuple[int, ...] = ()
    fail_codes: tuple[int, ...] = ()
    max_no_progress: int = 5
    retry_exceptions: tuple[str, ...] = ()  # names of classes, without their modules
    fail_exceptions: tuple[str, ...] = ()

    def budget(self, cause: Cause) -> Budget:
        """The budget of one cause; the default where the policy names none."""
        return dict(self.budgets).get(cause, DEFAULT_BUDGETS[cause])

    def retries(self, failure: Failure) -> bool:
        """Whether its exit code or exception restarts the job, whatever the cause."""
        return failure.exit_code in self.retry_codes or failure.exception in self.retry_exceptions

    def fails(self, failure: Failure) -> str:
        """The option that makes a failure final by its exit code or exception; empty: none does."""
        if failure.exit_code in self.fail_codes:
            return "recovery.exit_codes makes this code final"
        # A code that the owner names says more than the exception that led to it.
        known = failure.exit_code in self.retry_codes
        if not known and failure.exception in self.fail_exceptions:
            return "recovery.exceptions makes this type final"
        return ""


@dataclass(frozen=True, slots=True)
class RestartsUsed:
    """Restarts already used, as times per cause, since progress was last made."""

    restarts: tuple[tuple[Cause, int], ...] = field(default=())

    def within(self, cause: Cause, budget: Budget, now: int) -> int:
        """Restarts of `cause` that still count against `budget`."""
        floor = -1 if budget.per_s is None else now - round(budget.per_s * _US)
        return sum(1 for kind, at in self.restarts if kind is cause and at > floor)

    def spend(self, cause: Cause, now: int) -> RestartsUsed:
        """One more restart of `cause`."""
        return RestartsUsed((*self.restarts, (cause, now)))
