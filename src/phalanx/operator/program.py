"""The operator as a program: threads that look at objects when something about them may have changed."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import ExecutorUnavailable, PlatformError, UserError
from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.credentials import ClusterAccess
from phalanx.kit.clock import Clock, SystemClock
from phalanx.operator.cluster import ServedCluster, WatchScope
from phalanx.operator.control_plane import ObjectJobs
from phalanx.operator.kinds import ObjectKey, ServedKind
from phalanx.operator.metrics import OperatorMetrics
from phalanx.operator.reconciler import Reconciler
from phalanx.operator.rivals import find_rival, refuse_rival, rival_error
from phalanx.operator.submission import KINDS, SubmissionTarget, key_in
from phalanx.operator.work_queue import WorkQueue
from phalanx.sdk import PhalanxClient

_LOG = logging.getLogger(__name__)
_READY_S = 60.0
_RESYNC_S = 60.0
_TAKE_S = 1.0
_RETRY_S = 2.0
# Changes of this time are looked through together.
_GATHER_S = 0.05
_STALE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """How an operator runs."""

    pool: str = ""  # pool of the jobs; empty: any that fits
    cluster: str = ""  # name of the cluster; empty: the uid of its namespace kube-system
    workers: int = 4
    scope: WatchScope = WatchScope()  # which objects are listed and watched
    feed_wait_s: float = 5.0  # how long the control plane is waited for to have news


class Operator:
    """Serves the objects of one cluster until it is stopped.

    `connect` makes a client of the control plane; each thread has its own.
    """

    def __init__(
        self,
        access: ClusterAccess,
        connect: Callable[[], PhalanxClient],
        options: OperatorOptions,
        clock: Clock | None = None,
    ) -> None:
        self._connect, self._options = connect, options
        self._clock = clock or SystemClock()
        self._kube = KubernetesClient(access)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(time.monotonic, random.Random())
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._error: PlatformError | None = None
        self._jobs: dict[int, ObjectKey] = {}  # objects by the number of their job
        self._pods: dict[str, dict[str, str]] = {}
        self.metrics = OperatorMetrics()

    def run(self) -> None:
        """Serve until `stop`. Raises UserError where a training-operator serves, or nothing can be."""
        cluster: ServedCluster | None = None
        try:
            refuse_rival(self._kube)
            kinds = self._installed()
            cluster = ServedCluster(self._kube, kinds, self._changed.set, self._options.scope)
            if not cluster.wait_ready(_READY_S):
                raise ExecutorUnavailable(
                    f"the objects of the cluster cannot be listed within {_READY_S:g} s: check the rights "
                    "of the operator"
                )
            target = SubmissionTarget(
                self._options.cluster or cluster.identity(), self._options.pool
            )
            _LOG.info("serving %s of cluster %s", ", ".join(kinds), target.cluster)
            self._serve(cluster, target)
        except KubernetesRefused as refused:
            raise UserError(
                f"the Kubernetes API refuses: {refused.message}",
                "give the operator the rights of deploy/kubernetes/operator/rbac.yaml",
            ) from refused
        finally:
            self.stop()
            if cluster is not None:
                cluster.close()
            self._kube.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End `run`. Jobs continue, and the next operator goes on."""
        self._stopped.set()
        self._changed.set()
        self._queue.close()

    def _installed(self) -> Mapping[str, ServedKind]:
        """The kinds that the cluster has."""
        found = {name: kind for name, kind in KINDS.items() if self._has(kind)}
        for name in KINDS.keys() - found.keys():
            _LOG.warning("the cluster has no %s: they are not served", KINDS[name].plural)
        return found

    def _has(self, kind: ServedKind) -> bool:
        answer = self._kube.get(f"/apis/{kind.group}/{kind.version}") or {}
        return any(one.get("name") == kind.plural for one in answer.get("resources") or ())

    # -- threads -----------------------------------------------------------------------------------

    def _serve(self, cluster: ServedCluster, target: SubmissionTarget) -> None:
        threads = [
            threading.Thread(target=self._work, args=(cluster, target), name=f"worker {number}")
            for number in range(self._options.workers)
        ]
        threads.append(threading.Thread(target=self._follow, name="feed"))
        for one in threads:
            one.start()
        try:
            self._watch(cluster, target)
        finally:
            self.stop()
            for one in threads:
                one.join()

    def _watch(self, cluster: ServedCluster, target: SubmissionTarget) -> None:
        """Make objects due that have changed, and every one now and then."""
        known: dict[ObjectKey, str] = {}
        resync_at = 0.0
        client = self._connect()
        jobs = ObjectJobs(client, target.cluster)
        while not self._stopped.is_set():
            self._changed.clear()
            now = time.monotonic()
            try:
                versions = cluster.versions()
                self.metrics.contact.set(1)
                for key in versions.keys() | known.keys():
                    if versions.get(key) != known.get(key) or now >= resync_at:
                        self._queue.add(key)
                known = versions
                self._count(versions)
                if now >= resync_at:
                    resync_at = now + _RESYNC_S
                    rival = find_rival(self._kube)
                    if rival is not None:
                        self._error = rival_error(rival)
                        return
                    self._find_jobs(jobs)
            except ExecutorUnavailable as error:
                self.metrics.contact.set(0)
                _LOG.warning("%s", error)
            except PlatformError as error:
                _LOG.warning("the control plane: %s", error)
            except KubernetesRefused as refused:
                _LOG.warning("the Kubernetes API refuses: %s", refused.message)
            self._changed.wait(_RETRY_S)
            self._stopped.wait(_GATHER_S)
        client.close()

    def _find_jobs(self, jobs: ObjectJobs) -> None:
        """Make due the objects of jobs that have not ended: some of these objects may be gone."""
        ended = set(self._jobs)
        for job in jobs.all_active():
            ended.discard(job.num)
            key = key_in(job.labels)
            if key is not None:
                self._jobs[job.num] = key
                self._queue.add(key)
        for num in ended:
            self._jobs.pop(num, None)

    def _follow(self) -> None:
        """Make the objects of jobs due about which the control plane has news."""
        client = self._connect()
        cursor: int | None = None
        while not self._stopped.is_set():
            try:
                if cursor is None:
                    cursor = _begin(client)
                page = client.live.feed(after=cursor, wait_s=self._options.feed_wait_s)
                cursor = page.cursor
                for num in {one.job for one in page.events} & self._jobs.keys():
                    self._queue.add(self._jobs[num])
                # News come together, also where they are not waited for.
                self._stopped.wait(_GATHER_S)
            except PlatformError as error:
                _LOG.warning("the control plane does not tell its events: %s", error.message)
                self._stopped.wait(_RETRY_S)
        client.close()

    def _work(self, cluster: ServedCluster, target: SubmissionTarget) -> None:
        client = self._connect()
        reconciler = Reconciler(
            cluster, ObjectJobs(client, target.cluster), target, self._pods, self._jobs.__setitem__
        )
        while not self._stopped.is_set():
            key = self._queue.take(_TAKE_S)
            self.metrics.due.set(len(self._queue))
            if key is not None:
                self._look(reconciler, key)
        client.close()

    def _look(self, reconciler: Reconciler, key: ObjectKey) -> None:
        with self.metrics.seconds.labels(key.kind).time():
            try:
                again_s = reconciler.reconcile(key, self._clock.now() // 1_000_000)
            except KubernetesRefused as refused:
                if refused.status in (404, 409):
                    # The object has changed since it was read.
                    self._queue.done(key, _STALE_S)
                else:
                    self._failed(key, refused.message)
            except PlatformError as error:
                self._failed(key, error.message)
            except Exception as error:
                _LOG.exception("%s", key)
                self._failed(key, str(error))
            else:
                self._queue.done(key, again_s)
                self.metrics.reconciles.labels(key.kind, "ok").inc()

    def _failed(self, key: ObjectKey, said: str) -> None:
        wait_s = self._queue.failed(key)
        self.metrics.reconciles.labels(key.kind, "error").inc()
        _LOG.warning("%s: %s; again in %.0f s", key, said, wait_s)

    def _count(self, versions: Mapping[ObjectKey, Any]) -> None:
        counts = dict.fromkeys(KINDS, 0)
        for key in versions:
            counts[key.kind] += 1
        for kind, count in counts.items():
            self.metrics.objects.labels(kind).set(count)


def _begin(client: PhalanxClient) -> int:
    """A place in the feed after which little has happened: the submission of the newest job."""
    newest = client.jobs(limit=1, archived="include").jobs
    events = client.events(newest[0].num).events if newest else []
    return events[0].feed if events else 0
