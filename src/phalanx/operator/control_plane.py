"""The jobs of objects at the control plane, over its public API."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.core.reasons import ReasonCode
from phalanx.core.serving.life import (
    JobPhase,
    NodeRange,
    ReplicaCounts,
    SeenJob,
    ServedObject,
)
from phalanx.errors import Conflict, NotFound
from phalanx.operator.kinds import ObjectKey
from phalanx.operator.submission import OWNER, idempotency_key, key_labels, uid_in, uid_labels
from phalanx.schemas.api.jobs import ChangeRequest, JobView, SubmitRequest
from phalanx.sdk import PhalanxClient

ACTIVE = ("waiting", "queued", "starting", "running", "recovering", "stopping", "paused")
_MOST_KNOWN = 20_000
_HOME_USER = "user:admin"
_PHASES = {
    "waiting": JobPhase.WAITING,
    "queued": JobPhase.WAITING,
    "starting": JobPhase.WAITING,
    "running": JobPhase.RUNNING,
    "recovering": JobPhase.RESTARTING,
    "stopping": JobPhase.STOPPING,
    "paused": JobPhase.PAUSED,
    "succeeded": JobPhase.SUCCEEDED,
    "failed": JobPhase.FAILED,
    "cancelled": JobPhase.CANCELLED,
}
_NO_MORE = (ReasonCode.CRASH_LOOP.value, ReasonCode.BUDGET_SPENT.value)


class ObjectJobs:
    """The jobs that objects of one cluster have. For one thread.

    Jobs of other owners are no jobs of objects, whatever their labels say.
    """

    def __init__(self, client: PhalanxClient, cluster: str) -> None:
        self.client, self.cluster = client, cluster
        self._nums: dict[str, int] = {}  # by uid of the object
        self._owner: str | None = None

    @property
    def owner(self) -> str:
        """The owner of the jobs that this token submits."""
        if self._owner is None:
            account = self.client.accounts.who_am_i().id
            self._owner = OWNER if account == _HOME_USER else account.removeprefix("user:")
        return self._owner

    def find(self, uid: str) -> JobView | None:
        """The job of an object, with its details; None where there is none."""
        num = self._nums.get(uid)
        if num is None:
            page = self.client.jobs(
                labels=uid_labels(self.cluster, uid),
                owner=self.owner,
                archived="include",
                sort="num",
                limit=1,
            )
            if not page.jobs:
                return None
            num = page.jobs[0].num
            self._know(uid, num)
        try:
            return self.client.job(num)
        except NotFound:
            self._nums.pop(uid, None)
            return None

    def submit(self, uid: str, request: SubmitRequest) -> JobView:
        """Submit the job of an object; a second submission makes no second job."""
        answer = self.client.submit(request, key=idempotency_key(self.cluster, uid))
        assert answer.job is not None
        self._know(uid, answer.job.num)
        return self.client.job(answer.job.num)

    def pause(self, num: int) -> JobView:
        """Pause a job; nothing for one that has ended meanwhile."""
        return self._unless_over(num, lambda: self.client.stop(num, goal="pause"))

    def resume(self, num: int) -> JobView:
        """Resume a paused job; nothing for one in another state."""
        return self._unless_over(num, lambda: self.client.resume(num))

    def resize(self, num: int, nodes: NodeRange) -> JobView:
        """Give a job another number of nodes. Raises SpecInvalid, and Conflict for one that has ended."""
        least, most = nodes
        wanted = most if least == most else f"{least}..{most}"
        self.client.change(num, ChangeRequest(nodes=wanted))
        return self.client.job(num)

    def cancel(self, num: int) -> JobView:
        """Cancel a job; nothing for one that has ended meanwhile."""
        return self._unless_over(num, lambda: self.client.stop(num, goal="cancel"))

    def _unless_over(self, num: int, ask: Callable[[], JobView]) -> JobView:
        try:
            ask()
        except Conflict:
            pass
        return self.client.job(num)

    def active_of(self, key: ObjectKey) -> list[JobView]:
        """Jobs that have not ended of all objects that ever had this name."""
        return list(
            self.client.every_job(
                states=ACTIVE, labels=key_labels(self.cluster, key), owner=self.owner
            )
        )

    def all_active(self) -> list[JobView]:
        """Jobs of all objects of the cluster that have not ended."""
        labels = {"kubernetes-cluster": self.cluster}
        return list(self.client.every_job(states=ACTIVE, labels=labels, owner=self.owner))

    def _know(self, uid: str, num: int) -> None:
        self._nums[uid] = num
        if len(self._nums) > _MOST_KNOWN:
            self._nums.pop(next(iter(self._nums)))

    def forget(self, uid: str) -> None:
        """Forget the job of an object that is gone."""
        self._nums.pop(uid, None)


def uid_of(job: JobView) -> str:
    """The uid of the object that a job was submitted for."""
    return uid_in(job.labels)


def seen(job: JobView | None, wanted: ServedObject) -> SeenJob | None:
    """A job as its object shows it."""
    if job is None:
        return None
    phase = _PHASES[job.state]
    failed = "" if job.failure is None else wanted.role_of(job.failure.node_rank)
    counts = {role: [0, 0, 0] for role in wanted.replicas}
    for node in job.nodes:
        role = wanted.role_of(node.node_rank)
        if node.phase == "up" and role in counts:
            counts[role][0] += 1
    if failed in counts and phase in (JobPhase.RESTARTING, JobPhase.FAILED):
        counts[failed][2] = 1
        counts[failed][0] = min(counts[failed][0], wanted.replicas[failed] - 1)
    return SeenJob(
        phase=phase,
        replicas={role: ReplicaCounts(*one) for role, one in counts.items()},
        restarts=job.restarts,
        failed_role=failed,
        no_more_restarts=phase is JobPhase.FAILED and _used_up(job, wanted),
        message=_why(job) if phase is JobPhase.FAILED else "",
        nodes=_nodes(job),
    )


def _nodes(job: JobView) -> NodeRange | None:
    found = ((job.spec or {}).get("resources") or {}).get("nodes")
    least, dots, most = str(found).partition("..")
    if not least.isdecimal() or (dots and not most.isdecimal()):
        return None
    return int(least), int(most or least)


def _used_up(job: JobView, wanted: ServedObject) -> bool:
    never = wanted.backoff_limit == 0 and job.reason.code == ReasonCode.RANK_CRASH.value
    return never or job.reason.code in _NO_MORE


def _why(job: JobView) -> str:
    failure = job.failure
    return job.reason.message if failure is None else f"{failure.where}: {failure.message}"
