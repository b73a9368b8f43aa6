"""Exit codes of `phalanx`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.schemas.api.jobs import JobView
    from phalanx.schemas.api.studies import StudyView

SUCCESS = 0
ERROR = 1
JOB_FAILED = 100
NOT_FINISHED = 101
NOT_FOUND = 102
CANCELLED = 103
STOP_ASKED = 104
INTERRUPTED = 130

MEANINGS = {
    SUCCESS: "success",
    ERROR: "wrong usage, a refused spec, or an error of the platform",
    JOB_FAILED: "the job failed",
    NOT_FINISHED: "the job has not ended",
    NOT_FOUND: "no such job or checkpoint",
    CANCELLED: "the job was cancelled",
    STOP_ASKED: "`report`: the script should save and exit",
    INTERRUPTED: "Ctrl-C",
}
_BY_STATE = {"succeeded": SUCCESS, "failed": JOB_FAILED, "cancelled": CANCELLED}


def code_of(view: JobView | StudyView) -> int:
    """The exit code for the state of a job or a study."""
    return _BY_STATE.get(view.state, NOT_FINISHED)
