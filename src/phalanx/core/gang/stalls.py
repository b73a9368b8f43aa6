"""Stall detection: how long a gang may make no progress, learned from its own pace.

Reading order: `StallWatch.look` says when a pause is suspicious, `StallWatch.judge` decides from what the
ranks do whether it is a stall, and `with_culprit` names the rank at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.core.gang.activities import Activity, activity_of
from phalanx.core.gang.collectives import LastCollective, compare
from phalanx.core.gang.failures import Failure
from phalanx.core.gang.stacks import elsewhere, place, waits_for_others
from phalanx.kit.units import format_duration

GRACE_S = 45.0
"""A pause this much longer than the longest one before it is suspicious."""
REPEATED_GRACE_S = 300.0
"""The same in a generation that follows a stall: what ended the one before may have been no hang."""
FEW_STEPS_S = 300.0
"""Least limit until `KNOWN_STEPS` steps have shown the pace."""
KNOWN_STEPS = 3
BUSY_S = 300.0
"""Further limit for a pause in which no rank is known to wait for another."""
SILENT_S = 1800.0
"""Limit for ranks that compute and cannot say where they are."""
STOPPED_S = 30.0
"""How long a rank may be stopped by a signal."""
WORKED_S = 60.0
"""Seconds in which all ranks of a silent gang have computed, before their pauses count."""
_RECHECK_S = 15.0  # interval of looks during a pause with a good reason
_REPEAT_S = 60.0  # least interval of reports of one stall that goes on
# A longer gap between two checks is not counted: the machine slept, or this process did not run.
_BLINK_S = 1.0
_EXCUSES = (Activity.COMPILING, Activity.SAVING, Activity.VALIDATING)
_PHASES = {"evaluating": Activity.VALIDATING, "saving": Activity.SAVING}


@dataclass(frozen=True, slots=True)
class StallPolicy:
    """When a gang that makes no progress counts as stalled; times in seconds."""

    watch: bool = True
    #: limit between two steps; None: learned from the steps
    after_s: float | None = None
    #: limit before the first step of a generation
    start_s: float = 1800.0
    #: limit while ranks validate
    validation_s: float = 1800.0
    #: limit while ranks save
    save_s: float = 1800.0
    #: limit while ranks compile
    compile_s: float = 1800.0
    #: limit without a new metric; None: none
    metrics_s: float | None = None

    def allowance_s(self, activity: Activity | None) -> float:
        """The limit while ranks do this; None: before their first step."""
        own = {
            Activity.COMPILING: self.compile_s,
            Activity.SAVING: self.save_s,
            Activity.VALIDATING: self.validation_s,
        }
        allowed_s = self.start_s if activity is None else own.get(activity, self.start_s)
        return max(allowed_s, self.after_s or 0.0)


@dataclass(frozen=True, slots=True)
class RankUsage:
    """Which ranks of a node computed, printed or moved data since the sample before."""

    active: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()  # by a signal
    num_ranks: int = 1


class PauseKind(StrEnum):
    """What is missing in a pause."""

    STEPS = "steps"
    METRICS = "metrics"
    ACTIVITY = "activity"  # of any rank, in a gang that reports no steps
    EVENNESS = "evenness"  # some ranks of such a gang are idle while others compute
    LIFE = "life"  # a rank is stopped by a signal


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A pause beyond its limit: `said` is a sentence for the user."""

    kind: PauseKind
    said: str
    pause_s: float


class StallWatch:
    """Watches one generation on one node. Times are seconds of a monotonic clock.

    `look` is called regularly. When it returns a suspicion, the caller finds out what the ranks do, and
    `judge` decides.
    """

    def __init__(
        self, policy: StallPolicy, now_s: float, *, repeated: bool = False, gang_size: int = 1
    ) -> None:
        """`repeated`: the generation before ended by a stall. `gang_size` counts the ranks of all nodes."""
        self._policy, self._gang_size = policy, gang_size
        self._grace_s = REPEATED_GRACE_S if repeated else GRACE_S
        self._looked_s = now_s
        self._time_s = 0.0  # that was watched; the times below are on this scale
        self._usage = RankUsage()
        self._watching = self._began = False
        self._step: int | None = None
        self._num_steps = 0
        self._between: Activity | None = Activity.OTHER  # what the script does between steps
        self._stepped_at = self._measured_at = self._active_at = self._even_at = 0.0
        self._free_at = 0.0  # when no rank was stopped
        self._worked_s = 0.0
        self._pace_s = self._idle_pace_s = self._uneven_pace_s = 0.0  # the longest pauses so far
        self._is_pace = False  # the time since the last step was nothing but training
        self._measured = False
        self._excused_at = self._again_at = 0.0
        self._excuse: tuple[Activity, float] | None = None  # and when it began

    # -- what the ranks report ---------------------------------------------------------------------

    def began(self) -> None:
        """Expect steps from now on, because the script uses the library; later calls do nothing."""
        if not self._began:
            self._began = self._watching = True
            self._stepped_at = self._measured_at = self._time_s

    def stepped(self, step: int) -> None:
        """A rank has completed a step."""
        self._began = self._watching = True
        if step != self._step:
            self._num_steps += 1
            self._step = step
        if self._is_pace:
            self._pace_s = max(self._pace_s, self._time_s - self._stepped_at)
        self._is_pace, self._between = True, None
        self._progressed()

    def entered(self, phase: str) -> None:
        """The script is between steps: it saves, validates or begins a pass."""
        self._is_pace, self._between = False, _PHASES.get(phase, Activity.OTHER)
        self._progressed()

    def _progressed(self) -> None:
        self._stepped_at = self._time_s
        self._again_at, self._excuse = 0.0, None

    def measured(self) -> None:
        """A rank has reported a metric."""
        self._measured, self._measured_at = True, self._time_s

    def ended(self) -> None:
        """Stop expecting steps."""
        self._began, self._watching = True, False

    def used(self, usage: RankUsage) -> None:
        """Take a sample of what the ranks use; called about every two seconds."""
        self._usage, now_s = usage, self._time_s
        worked = self._worked_s >= WORKED_S
        if usage.active:
            self._idle_pace_s = max(self._idle_pace_s, (now_s - self._active_at) * worked)
            self._active_at = now_s
        if len(usage.active) >= usage.num_ranks:
            self._uneven_pace_s = max(self._uneven_pace_s, (now_s - self._even_at) * worked)
            self._worked_s += min(now_s - self._even_at, 10.0)
            self._even_at = now_s
        if not usage.stopped:
            self._free_at = now_s

    # -- suspicion ---------------------------------------------------------------------------------

    def look(self, now_s: float) -> Suspicion | None:
        """The pause that is too long by now, if any; called regularly."""
        self._time_s += min(now_s - self._looked_s, _BLINK_S)
        self._looked_s = now_s
        if self._time_s < self._again_at:
            return None
        found = self._suspicion()
        if found is not None:
            self._again_at = self._time_s + _RECHECK_S
        return found

    def _suspicion(self) -> Suspicion | None:
        if not self._policy.watch or not (self._watching or self._is_silent):
            return None
        stopped_s = self._time_s - self._free_at
        if self._usage.stopped and stopped_s >= STOPPED_S:
            ranks = ", ".join(map(str, sorted(self._usage.stopped)))
            said = f"rank {ranks} has been stopped by a signal for {format_duration(stopped_s)}"
            return Suspicion(PauseKind.LIFE, said, stopped_s)
        if self._is_silent:
            return self._without_activity()
        metrics_s = self._policy.metrics_s if self._measured or self._num_steps else None
        return self._beyond(
            PauseKind.STEPS, "no step for", self._stepped_at, self.limit_s
        ) or self._beyond(PauseKind.METRICS, "no metric for", self._measured_at, metrics_s)

    def _without_activity(self) -> Suspicion | None:
        idle_s = uneven_s = self._policy.start_s
        if self._worked_s >= WORKED_S:
            uneven_s = self._uneven_pace_s + BUSY_S
            idle_s = self._policy.after_s or self._idle_pace_s + self._grace_s
        return self._beyond(
            PauseKind.ACTIVITY, "all ranks have been idle for", self._active_at, idle_s
        ) or self._beyond(
            PauseKind.EVENNESS, "some ranks have been idle for", self._even_at, uneven_s
        )

    def _beyond(
        self, kind: PauseKind, words: str, since: float, limit_s: float | None
    ) -> Suspicion | None:
        """A pause since then, without what was excused in it, where it exceeds its limit."""
        if limit_s is None or self._time_s - max(since, self._excused_at) < limit_s:
            return None
        pause_s = self._time_s - since
        said = f"{words} {format_duration(pause_s)}, the limit is {format_duration(limit_s)}"
        return Suspicion(kind, said, pause_s)

    @property
    def _is_silent(self) -> bool:
        """Whether the ranks report no steps, in a gang: a single process may well wait for something."""
        return not self._began and self._gang_size > 1

    @property
    def limit_s(self) -> float:
        """The current limit without a step, in seconds."""
        if self._between is not None:
            return self._policy.allowance_s(self._between)
        if self._policy.after_s is not None:
            return self._policy.after_s
        learned_s = self._pace_s + self._grace_s
        return learned_s if self._num_steps >= KNOWN_STEPS else max(learned_s, FEW_STEPS_S)

    # -- verdict -----------------------------------------------------------------------------------

    def judge(self, suspicion: Suspicion, seen: Collection[Activity]) -> str:
        """Why the ranks may go on for now; empty: they are stalled. `seen` is what they do."""
        if self._suspicion() is None:
            return "the ranks have gone on"
        why = "" if suspicion.kind is PauseKind.LIFE else self._excused(suspicion, frozenset(seen))
        if not why:
            # Where another node has a good reason for the pause, it is none of the steps' pace.
            self._is_pace = False
            self._again_at = self._time_s + max(_REPEAT_S, suspicion.pause_s / 2)
        return why

    def _excused(self, suspicion: Suspicion, seen: frozenset[Activity]) -> str:
        if Activity.STOPPED in seen:
            return ""
        for activity in _EXCUSES:
            if activity in seen:
                return self._allow(activity, suspicion)
        if self._excuse is not None:
            # What was allowed has ended: the ranks have their usual limit from here on.
            self._excuse, self._excused_at = None, self._time_s
            return "the ranks have ended what they did between steps"
        is_set = self._policy.after_s is not None or suspicion.kind is PauseKind.METRICS
        if is_set or Activity.WAITING in seen:
            return ""
        if suspicion.kind is PauseKind.EVENNESS:
            return "no rank is known to wait for another"
        if not self._usage.active and self._gang_size > 1:
            return ""
        limit_s = SILENT_S if seen <= {Activity.UNKNOWN} else self._pace_s + BUSY_S
        return "" if suspicion.pause_s >= limit_s else "no rank is known to wait for another"

    def _allow(self, activity: Activity, suspicion: Suspicion) -> str:
        """Why ranks with this activity may go on, within its limit. The pause is not of the steps' pace."""
        if self._excuse is None:
            since = self._time_s - suspicion.pause_s
            self._excuse = (activity, max(since, self._excused_at))
        elif self._excuse[0] is not activity:
            self._excuse = (activity, self._time_s)
        if self._time_s - self._excuse[1] >= self._policy.allowance_s(activity):
            return ""
        self._is_pace = False
        return f"ranks are {activity.value}"

    def excuse(self, seen: Collection[Activity]) -> str:
        """Why another node's ranks have to wait for these; empty where these have no reason for it."""
        if not self._policy.watch or self._usage.stopped:
            return ""
        for activity in _EXCUSES:
            if activity in seen or self._between is activity:
                began_at = self._stepped_at if self._excuse is None else self._excuse[1]
                allowed = self._time_s - began_at < self._policy.allowance_s(activity)
                return f"ranks are {activity.value}" if allowed else ""
        computes = self._is_silent and bool(self._usage.active)
        return "ranks compute" if computes and Activity.WAITING not in seen else ""

    @property
    def is_on(self) -> bool:
        """Whether steps are expected."""
        return self._watching


@dataclass(frozen=True, slots=True)
class CapturedStack:
    """What one rank of a stalled gang could tell; `why` says why `text` is empty."""

    node_rank: int
    text: str
    why: str = ""
    collectives: Sequence[LastCollective] = ()


def with_culprit(failure: Failure, stacks: Mapping[int, CapturedStack]) -> Failure:
    """The failure of a stalled gang, of the rank that the others wait for.

    `stacks` are those of all ranks that are known, by rank. A node that compares only its own ranks names
    the victim where the culprit is on another node. No rank is named where nothing tells.
    """
    odd, said = culprits(stacks)
    said = "; ".join(part for part in (failure.message.partition("; ")[0], said) if part)
    if not odd:
        return replace(failure, rank=None, message=said, traceback="")
    culprit = stacks[odd[0]]
    return replace(
        failure,
        rank=odd[0],
        node_rank=culprit.node_rank,
        message=said,
        traceback=culprit.text,
    )


def culprits(stacks: Mapping[int, CapturedStack]) -> tuple[tuple[int, ...], str]:
    """The ranks that the others wait for, the likeliest one first, and a sentence with the evidence.

    In this order: ranks that a signal has stopped, collectives that differ, ranks that have not joined a
    collective, ranks that are at another place of the script than most.
    """
    stopped = tuple(
        rank for rank, one in stacks.items() if activity_of(one.text, one.why) is Activity.STOPPED
    )
    odd = elsewhere({rank: one.text for rank, one in stacks.items()})
    if stopped:
        return stopped, _differences(stacks, stopped)
    found = compare({rank: one.collectives for rank, one in stacks.items() if one.collectives})
    if found is None:
        return odd, _differences(stacks, odd)
    if found.mismatch:
        ranks = found.ranks or odd
        return ranks, f"{found.said}; {_differences(stacks, ranks)}"
    # A rank that waits in an older collective of its own is the victim of another one.
    silent = [rank for rank, one in stacks.items() if not one.collectives and not one.text]
    ranks = tuple(sorted(found.ranks, key=lambda rank: (waits_for_others(stacks[rank].text), rank)))
    return (*silent, *ranks), f"{found.said}; {_differences(stacks, (*silent, *ranks))}"


def _differences(stacks: Mapping[int, CapturedStack], odd: tuple[int, ...]) -> str:
    """Which ranks are elsewhere than most, and where; else where the first one is."""
    where = {rank: str(place(one.text) or one.why) for rank, one in stacks.items()}
    if odd:
        return "; ".join(
            f"rank {rank} differs from the other ranks: {where[rank]}" for rank in odd[:4]
        )
    rank = next(iter(stacks), None)
    if rank is None:
        return ""
    if waits_for_others(stacks[rank].text):
        return f"rank {rank} waits for other ranks: {where[rank]}"
    return f"rank {rank}: {where[rank]}"
