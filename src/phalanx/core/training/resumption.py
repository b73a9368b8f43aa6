"""Whether a start goes on with the checkpoints that it finds, waits for others, or fails.

A job that has committed checkpoints never starts without them unless its owner says so: a folder that is
away, as a late mount, and a folder that is empty look the same. Pure: `checkpoint.search` looks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.training.checkpoints import Manifest, is_of_job, lineages, step_of
from phalanx.kit.units import format_duration

AWAITING = "checkpoint"
"""The phase of a rank or supervisor that waits for checkpoints."""
DEFAULT_WAIT_S = 600.0
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FoundCheckpoints:
    """One look at all places."""

    #: checkpoints with a sound manifest, in the folder or the object store, by name
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    #: names of corrupt or quarantined ones in the folder
    damaged: frozenset[str] = frozenset()
    #: errors of the folder, or of checkpoints in it
    unread: tuple[str, ...] = ()
    #: error of the object store; empty: none
    store_error: str = ""


class StartAction(enum.Enum):
    """What a start does next."""

    RESUME = "resume"  # from the first checkpoint of the order that is valid
    WAIT = "wait"  # and look again
    BEGIN = "begin"  # at step 0
    FAIL = "fail"  # the checkpoints did not appear in time


@dataclass(frozen=True, slots=True)
class StartDecision:
    """What a start does next; `message` is for the user, and empty where all is as expected.

    `passed_over` says which checkpoints of other jobs are there; empty: none.
    """

    action: StartAction
    order: tuple[Manifest, ...] = ()
    message: str = ""
    passed_over: str = ""


class StartWait:
    """Decides for one start. Times are seconds of a monotonic clock.

    `wanted` is the name of the newest checkpoint that the control plane knows; None: it knows none, or
    there is no control plane. Checkpoints from before `beginning` are passed over. `suits` selects those
    that this kind of run can read. With `job_uid` those of other jobs are passed over: a job of another
    database may have had the same number.
    """

    def __init__(
        self,
        place: str,
        wanted: str | None = None,
        wait_s: float = DEFAULT_WAIT_S,
        beginning: int = 0,
        suits: Callable[[Manifest], bool] = lambda _manifest: True,
        job_uid: str | None = None,
    ) -> None:
        self._place, self._wanted, self._wait_s = place, wanted, wait_s
        self._beginning, self._suits, self._job_uid = beginning, suits, job_uid
        self._deadline_s: float | None = None
        self._failed: dict[str, str] = {}
        self._pausing = ""

    def could_not_read(self, name: str, why: str) -> None:
        """Record that a checkpoint could not be read; it is tried again until the wait is over."""
        self._failed[name] = self._pausing = why

    def decide(self, found: FoundCheckpoints, now_s: float) -> StartDecision:
        """Decide after one look."""
        there = found.manifests.values()
        others = [one for one in there if not is_of_job(one, self._job_uid)]
        if others:
            mine = {one.name: one for one in there if is_of_job(one, self._job_uid)}
            decision = self._decide(replace(found, manifests=mine), now_s)
            return replace(decision, passed_over=self._of_others(others))
        return self._decide(found, now_s)

    def _decide(self, found: FoundCheckpoints, now_s: float) -> StartDecision:
        known = lineages(found.manifests, self._beginning)
        order = tuple(one for one in known if self._suits(one))
        lacking, self._pausing = self._pausing or self._lacking(found, known), ""
        if lacking and self._deadline_s is None:
            self._deadline_s = now_s + self._wait_s
        over = self._deadline_s is not None and now_s >= self._deadline_s
        if lacking and not over:
            waits = f"{lacking}; waiting for it, at most {format_duration(self._wait_s)}"
            return StartDecision(StartAction.WAIT, message=waits)
        if over:
            order = tuple(one for one in order if one.name not in self._failed)
            lacking = lacking or next(iter(self._failed.values()), "")
        if order:
            return StartDecision(StartAction.RESUME, order, self._goes_on(lacking, order[0]))
        if lacking:
            said = f"{lacking}; it did not come within {format_duration(self._wait_s)}"
            return StartDecision(StartAction.FAIL, message=said)
        if found.damaged:
            return StartDecision(StartAction.BEGIN, message=self._all_quarantined(found))
        return StartDecision(StartAction.BEGIN)

    def _goes_on(self, lacking: str, first: Manifest) -> str:
        """An older checkpoint costs the steps after it once more; a start from step 0 would cost all."""
        if not lacking:
            return ""
        waited = format_duration(self._wait_s)
        return f"{lacking}; after {waited} training goes on from step {first.step}"

    def _lacking(self, found: FoundCheckpoints, known: list[Manifest]) -> str:
        """What has to appear before a start may go on; empty: nothing."""
        errors = [*found.unread[:_SHOWN], *([found.store_error] if found.store_error else [])]
        because = f" ({'; '.join(errors)})" if errors else ""
        if self._wanted is not None and self._wanted not in found.damaged:
            step = step_of(self._wanted) or 0
            if any(one.name == self._wanted or one.step >= step for one in known):
                return ""
            return f"checkpoint {self._wanted} is not in {self._place}{because}"
        if self._wanted is None and self._beginning and not known:
            return ""  # the owner has said so, and nothing was committed since
        if found.unread or (found.store_error and not known):
            return f"checkpoints in {self._place} cannot be read{because}"
        return ""

    def _of_others(self, others: Sequence[Manifest]) -> str:
        names = sorted({_shown(one.job or "a job", one.job_uid or "") for one in others})
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        count = "a checkpoint" if len(others) == 1 else f"{len(others)} checkpoints"
        mine = _shown("this job", self._job_uid or "")
        return (
            f"{self._place} has {count} of {', '.join(names[:_SHOWN])}{more}, not of {mine}: neither used"
            " nor deleted; to continue from there, submit with --continue (checkpoint.continue: true)"
        )

    def _all_quarantined(self, found: FoundCheckpoints) -> str:
        count = len(found.damaged)
        what = "the only checkpoint" if count == 1 else f"all {count} checkpoints"
        verb = "is" if count == 1 else "are"
        return f"{what} in {self._place} {verb} quarantined: the job begins anew, from step 0"


def _shown(name: str, uid: str) -> str:
    """A job with the database that it belongs to, both cut short: numbers of jobs recur."""
    database, _, random = uid.rpartition("-")
    return f"{name} (database {database[:8] or '?'}, job {random[:8]})"
