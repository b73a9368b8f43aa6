"""One look at one object: compare what should be with what is, and do the next thing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from phalanx.core.serving import life
from phalanx.core.serving.life import ObjectDemand, ObjectEvent, Reflection, ServedObject
from phalanx.errors import (
    Conflict,
    NotSupported,
    PermissionDenied,
    SecretRefused,
    SpecInvalid,
    TooLarge,
)
from phalanx.operator.cluster import ServedCluster
from phalanx.operator.control_plane import ObjectJobs, seen, uid_of
from phalanx.operator.kinds import Object, ObjectKey
from phalanx.operator.pod_events import node_rank, troubles
from phalanx.operator.submission import KINDS, SPEC_LABEL, SubmissionTarget, submission
from phalanx.schemas.api.jobs import JobView

# A job that stops is looked at again soon: the feed tells of its end, unless its connection is lost.
_SOON_S = 2.0
# No other try helps: the object has to be written anew.
_FINAL = (SpecInvalid, NotSupported, TooLarge, SecretRefused)


@dataclass(slots=True)
class Reconciler:
    """Looks at objects one at a time. Everything that it does may be repeated after a crash.

    Errors of both APIs are raised: the caller looks again later.
    """

    cluster: ServedCluster
    jobs: ObjectJobs
    target: SubmissionTarget
    #: `namespace.name` of the pods that were seen, by uid of the object and of the pod
    known_pods: dict[str, dict[str, str]] = field(default_factory=dict)
    #: is told the number of the job of an object, while it has not ended
    noticed: Callable[[int, ObjectKey], None] = lambda num, key: None

    def reconcile(self, key: ObjectKey, now_s: int) -> float | None:
        """Look at one object; returns the seconds until the next look, None: when something changes."""
        if not self.cluster.scope.covers(key.namespace):
            return None  # another operator may serve it
        one = self.cluster.find(key)
        if one is None or one["metadata"].get("deletionTimestamp"):
            self._cancel_jobs(key)
            return None
        if not self.cluster.is_served(key, one):
            return None
        # An object that was deleted and made anew has another uid: what ran for the old one is cancelled.
        kind, uid = KINDS[key.kind], one["metadata"]["uid"]
        status, what = kind.read_status(one), kind.asked_for(one)
        if status.start_s is None and not status.finished:
            self._cancel_jobs(key, but=uid)
        job = self.jobs.find(uid)
        demand = life.demand(status, what, seen(job, what), now_s)
        if demand is ObjectDemand.RESIZE and job is not None:
            job = self._resize(key, one, what, job, now_s)
            demand = life.demand(status, replace(what, nodes=None), seen(job, what), now_s)
        if demand is ObjectDemand.DELETE:
            self.cluster.delete(key, uid)
            said = ObjectEvent("SuccessfulDeletePod", f"Deleted job: {key.name}", about="ttl")
            self.cluster.tell(key, one, said, now_s)
            return None
        try:
            job = self._do(demand, key, one, job)
            found = life.reflect(status, what, seen(job, what), now_s)
        except _FINAL as error:
            found = life.refuse(status, what, _text(error), now_s)
        except PermissionDenied as error:
            self._tell_refusal(key, one, error, now_s)
            raise
        if job is not None and not job.is_terminal:
            self.noticed(job.num, key)
        self._tell_change(key, one, job, now_s)
        self._tell_pods(key, one, what, now_s)
        one = self._write(key, one, job, found, now_s)
        return self._next_s(what, found, job, now_s)

    def _do(
        self, demand: ObjectDemand, key: ObjectKey, one: Object, job: JobView | None
    ) -> JobView | None:
        if demand is ObjectDemand.SUBMIT:
            project = self.cluster.project(key.namespace)
            request = submission(self.target, key, one, project)
            return self.jobs.submit(one["metadata"]["uid"], request)
        if job is None or demand is ObjectDemand.NOTHING:
            return job
        ask = {
            ObjectDemand.PAUSE: self.jobs.pause,
            ObjectDemand.RESUME: self.jobs.resume,
            ObjectDemand.CANCEL: self.jobs.cancel,
        }
        return ask[demand](job.num)

    def _resize(
        self, key: ObjectKey, one: Object, what: ServedObject, job: JobView, now_s: int
    ) -> JobView:
        """Give the job the nodes of its object; a number that it cannot have is told, and it goes on."""
        if what.nodes is None:
            return job
        try:
            return self.jobs.resize(job.num, what.nodes)
        except (*_FINAL, Conflict) as error:
            said = f"the number of nodes stays: {_text(error)}"
            about = hashlib.sha256(said.encode()).hexdigest()
            event = ObjectEvent(f"{key.kind}ChangeRefused", said, warning=True, about=about)
            self.cluster.tell(key, one, event, now_s)
            return job

    def _cancel_jobs(self, key: ObjectKey, but: str = "") -> None:
        """Cancel the jobs of objects of this name that are gone; `but` is the uid of the one that is there.

        Nothing was found in the mirror and in the store of the API, so that the objects are gone indeed.
        """
        for job in self.jobs.active_of(key):
            uid = uid_of(job)
            if uid == but:
                continue
            if job.goal != "cancel":
                self.jobs.cancel(job.num)
            self.jobs.forget(uid)
            self.known_pods.pop(uid, None)

    def _write(
        self, key: ObjectKey, one: Object, job: JobView | None, found: Reflection, now_s: int
    ) -> Object:
        # Events first: after a crash in between the same ones are told again, and are there already.
        for event in found.events:
            self.cluster.tell(key, one, event, now_s)
        one = self.cluster.annotate(key, one, "" if job is None else job.url)
        restarts = 0 if job is None else job.restarts
        return self.cluster.write_status(key, one, found.status, restarts)

    def _next_s(
        self, what: ServedObject, found: Reflection, job: JobView | None, now_s: int
    ) -> float | None:
        waits = [_SOON_S] if job is not None and job.state == "stopping" else []
        at_s = life.next_look_s(found.status, what)
        if at_s is not None:
            waits.append(max(0.1, float(at_s - now_s)))
        return min(waits, default=None)

    # -- events ------------------------------------------------------------------------------------

    def _tell_change(self, key: ObjectKey, one: Object, job: JobView | None, now_s: int) -> None:
        """Tell once that a change of the spec has no effect."""
        kind = KINDS[key.kind]
        if job is None or job.is_terminal or not kind.differs(one, job.labels.get(SPEC_LABEL, "")):
            return
        said = (
            f"the spec was changed after its job was submitted: only {kind.changeable} take effect; "
            "delete the object and apply it again"
        )
        event = ObjectEvent(
            f"{key.kind}ChangeRefused", said, warning=True, about=kind.spec_digest(one)
        )
        self.cluster.tell(key, one, event, now_s)

    def _tell_refusal(self, key: ObjectKey, one: Object, error: Exception, now_s: int) -> None:
        said = _text(error)
        about = hashlib.sha256(said.encode()).hexdigest()
        event = ObjectEvent(f"{key.kind}SubmissionFailed", said, warning=True, about=about)
        self.cluster.tell(key, one, event, now_s)

    def _tell_pods(self, key: ObjectKey, one: Object, what: ServedObject, now_s: int) -> None:
        """Tell of new, ended and removed pods, and label them as their roles."""
        uid = one["metadata"]["uid"]
        known, here = self.known_pods.get(uid, {}), {}
        for pod in self.cluster.pods(uid):
            meta = pod["metadata"]
            here[meta["uid"]] = f"{meta['namespace']}.{meta['name']}"
            labels = KINDS[key.kind].rank_labels(what, node_rank(meta["name"]))
            if not labels.keys() <= meta["labels"].keys():
                said = f"Created pod: {meta['name']}"
                self._tell_pod(key, one, "SuccessfulCreatePod", said, meta, now_s)
                # Pods of a pool with a namespace of its own are not found by selectors of this one.
                if meta["namespace"] == key.namespace:
                    self.cluster.label_pod(pod, labels)
            for event in troubles(pod):
                self.cluster.tell(key, one, event, now_s)
        for pod_uid, place in (known | here).items():
            meta, code = {"uid": pod_uid}, self.cluster.exit_of(pod_uid)
            if code is not None:
                said = f"Pod: {place} exited with code {code}"
                self._tell_pod(key, one, "ExitedWithCode", said, meta, now_s)
            if pod_uid not in here:
                said = f"Deleted pod: {place.partition('.')[2]}"
                self._tell_pod(key, one, "SuccessfulDeletePod", said, meta, now_s)
        if here:
            self.known_pods[uid] = here
        else:
            self.known_pods.pop(uid, None)

    def _tell_pod(
        self, key: ObjectKey, one: Object, reason: str, said: str, meta: Object, now_s: int
    ) -> None:
        self.cluster.tell(key, one, ObjectEvent(reason, said, about=meta["uid"]), now_s)


def _text(error: Exception) -> str:
    problems = getattr(error, "problems", ())
    return "; ".join(str(one) for one in problems) or str(error)
