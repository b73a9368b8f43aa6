"""The job machine: `decide(job, event, now) -> Decision` over one transition table.

Knows nothing of the scheduler, of search, of databases or of processes.
"""

from phalanx.core.jobs.machine import Decision, create, decide, rebuild
from phalanx.core.jobs.model import Job, JobState

__all__ = ["Decision", "Job", "JobState", "create", "decide", "rebuild"]
