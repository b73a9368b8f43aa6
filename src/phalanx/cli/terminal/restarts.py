"""The restart budgets that apply to a spec, as comments of YAML: `submit --dry-run` prints them last."""

from __future__ import annotations

from phalanx.core.jobs.budgets import Budget, RecoveryPolicy
from phalanx.core.reasons import OUTSIDE_CAUSES, Cause
from phalanx.kit.units import format_duration

_HEADINGS = ("cause", "restarts", "within", "waits")


def restart_table(policy: RecoveryPolicy) -> str:
    """One line for each cause of a failure, and one for each exit code and exception that the spec names.

    Restarts count without progress in between.
    """
    rows = [_HEADINGS, *(_row(cause, policy.budget(cause), policy) for cause in Cause)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADINGS))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    named = [
        *((f"exit code {code}", "retry") for code in policy.retry_codes),
        *((f"exit code {code}", "fail") for code in policy.fail_codes),
        *((name, "retry") for name in policy.retry_exceptions),
        *((name, "fail") for name in policy.fail_exceptions),
    ]
    means = {"retry": "restarts as rank_crash", "fail": "ends the job"}
    lines += [f"{what}: {means[then]}" for what, then in named]
    return "\n".join(f"# {line}" for line in ("restarts without progress:", *lines))


def _row(cause: Cause, budget: Budget, policy: RecoveryPolicy) -> tuple[str, str, str, str]:
    count = "unlimited" if budget.count is None else str(budget.count)
    killed = budget.most(killed=True)
    if killed != budget.count:
        count += f", {killed} if killed"
    if budget.count is None and cause not in (
        {Cause.PREEMPTED, Cause.NODE_DRAINED} | OUTSIDE_CAUSES
    ):
        count = f"{policy.max_no_progress}"
    within = "-" if budget.per_s is None else format_duration(budget.per_s)
    if count == "0":
        return cause.value, count, "-", "-"
    if budget.first_wait_s == 0:
        return cause.value, count, within, "none"
    first, most = format_duration(budget.first_wait_s), format_duration(budget.max_wait_s)
    return cause.value, count, within, f"{first}, doubling to {most}"
