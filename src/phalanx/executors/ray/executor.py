"""The executor of a pool that is a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phalanx import __version__
from phalanx.core.gang.placement import Node, NodeShare, Placement
from phalanx.core.scaling.model import PoolDemand, ScalingBounds, ScalingPolicy
from phalanx.errors import ExecutorUnavailable, LaunchError
from phalanx.executors.outbound import outbound
from phalanx.executors.protocol import OutputSize, SupervisorRef, SupervisorStatus
from phalanx.executors.ray.driver_client import DriverClient
from phalanx.executors.ray.inventory import RayInventory
from phalanx.launch.files import write_file
from phalanx.schemas.home import HomeLayout
from phalanx.schemas.pools.ray_pools import RayPool
from phalanx.schemas.pools.scaling import ScalingSection
from phalanx.schemas.wire.assignments import Assignment
from phalanx.schemas.wire.supervision import ExitRecord

_NOTE = "ray.json"
_BEGIN_S = 120.0
_STARTS_AT_ONCE = 16


class RayExecutor:
    """The `Executor` of one Ray cluster. Safe for several threads.

    What it must know of a supervisor after a crash lies in a note in the home, written once the
    supervisor runs: where its shim listens. Everything else is found in Ray by its name.
    """

    def __init__(self, home: HomeLayout, pool: RayPool, *, owner: str, log: Path) -> None:
        """Does not wait for the cluster: until it answers, calls raise ExecutorUnavailable."""
        self._home = home
        self._pool = pool
        self._owner = owner
        told = {"address": pool.address, "owner": owner, "actor_env": pool.runtime_env}
        self._driver = DriverClient(told, log)
        self._inventory = RayInventory(pool)
        self._lock = threading.Lock()
        self._reserved: set[tuple[int, int]] = set()
        self._gone: set[SupervisorRef] = set()
        self._beginning: dict[SupervisorRef, Future[dict[str, Any]]] = {}
        self._threads = ThreadPoolExecutor(_STARTS_AT_ONCE, thread_name_prefix="ray-start")
        self._wanted: list[dict[str, float]] = []

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the cluster answers within this time."""
        return self._driver.wait_ready(timeout_s)

    def inventory(self) -> Sequence[Node]:
        """The cluster's nodes that have slots. Raises ExecutorUnavailable."""
        return self._inventory.read(self._driver.ask("nodes"))

    # -- starting ----------------------------------------------------------------------------------

    def reserve(self, placement: Placement, gang: Sequence[Assignment]) -> None:
        """See `GangReserver`: one placement group with exactly this placement."""
        facts = gang[0].gang
        if any(self._note(SupervisorRef.of(one)) is not None for one in gang):
            return  # begun by a control plane before this one: what is gone stays gone
        nodes, bundles = [], []
        for share, assignment in zip(placement.shares, gang, strict=True):
            found = self._inventory.known(share.node)
            if found is None:
                raise LaunchError(f"node {share.node} is no longer there")
            nodes.append(found.ray_id)
            bundles.append(self._inventory.bundle(found, len(share.slots), assignment.cpus))
        wait_s = self._pool.reserve_within
        self._driver.ask(
            "reserve",
            answer_s=wait_s + 15.0,
            job=facts.job.num,
            attempt=facts.attempt,
            bundles=bundles,
            nodes=nodes,
            wait_s=wait_s,
        )
        with self._lock:
            self._reserved.add((facts.job.num, facts.attempt))
            # Side by side: `start` comes for one after the other, and each takes a second or more.
            for one in gang:
                self._beginning[SupervisorRef.of(one)] = self._threads.submit(self._begin, one)

    def start(self, node: Node, assignment: Assignment) -> None:
        """See `Executor`. A gang of one node is reserved here unless it was before."""
        ref = SupervisorRef.of(assignment)
        if self._note(ref) is not None:
            return
        alone = assignment.gang.world.num_nodes == 1 and assignment.role is None
        if (ref.job, ref.attempt) not in self._reserved and alone:
            slots = tuple(range(assignment.num_ranks))
            share = NodeShare(node.id, node.address, slots)
            self.reserve(Placement(node.pool, (share,)), [assignment])
        if ref.incarnation:
            self._host(node, assignment)
        with self._lock:
            beginning = self._beginning.pop(ref, None)
        begun = self._begin(assignment) if beginning is None else beginning.result()
        self._write_note(ref, node, begun)

    def may_replace(self, pool: str) -> bool:
        """See `NodeReplacer`: the bundle of the node rank stays while others of the gang live."""
        return True

    def _host(self, node: Node, assignment: Assignment) -> None:
        ref, found = SupervisorRef.of(assignment), self._inventory.known(node.id)
        if found is None:
            raise LaunchError(f"node {node.id} is no longer there")
        num_slots = assignment.gang.role.slots_per_node
        self._driver.ask(
            "host",
            answer_s=_BEGIN_S,
            job=ref.job,
            attempt=ref.attempt,
            node_rank=ref.node_rank,
            incarnation=ref.incarnation,
            bundle=self._inventory.bundle(found, num_slots, assignment.cpus),
            node=found.ray_id,
        )

    def _begin(self, assignment: Assignment) -> dict[str, Any]:
        ref = SupervisorRef.of(assignment)
        begun: dict[str, Any] = self._driver.ask(
            "start",
            answer_s=_BEGIN_S,
            job=ref.job,
            attempt=ref.attempt,
            node_rank=ref.node_rank,
            incarnation=ref.incarnation,
            text=json.dumps(
                {
                    "assignment": outbound(assignment, self._pool, self._home).model_dump(
                        mode="json"
                    ),
                    "root": f"{self._pool.root}/{self._owner}",
                    "version": __version__,
                }
            ),
        )
        return begun

    def _write_note(self, ref: SupervisorRef, node: Node, begun: Mapping[str, Any]) -> None:
        found = self._inventory.known(node.id)
        # Where it can be reached is the address by which Ray knows the node.
        note = {
            "address": node.address,
            "port": begun["port"],
            "word": begun["word"],
            "node": "" if found is None else found.ray_id,
            "label": node.id,
        }
        path = self._note_path(ref)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, json.dumps(note).encode())

    # -- ending ------------------------------------------------------------------------------------

    def stop(self, ref: SupervisorRef) -> None:
        """See `Executor`."""
        if ref not in self._gone:
            self._driver.ask(
                "stop",
                job=ref.job,
                attempt=ref.attempt,
                node_rank=ref.node_rank,
                incarnation=ref.incarnation,
            )

    def poll(self, refs: Sequence[SupervisorRef]) -> Sequence[SupervisorStatus]:
        """See `Executor`. Nothing of an attempt is left in Ray once all its supervisors are gone."""
        asked = [
            {
                "job": ref.job,
                "attempt": ref.attempt,
                "node_rank": ref.node_rank,
                "incarnation": ref.incarnation,
                "shim": self._note(ref),
            }
            for ref in refs
        ]
        answers = self._driver.ask("poll", refs=asked, fence_s=self._pool.fence)
        # Supervisors that are not polled any more need not be remembered.
        self._gone.intersection_update(refs)
        statuses = []
        for ref, answer in zip(refs, answers, strict=True):
            if not answer["alive"]:
                self._mark_gone(ref)
            output = tuple(OutputSize(*one) for one in answer.get("output", ()))
            record = _record(answer["exit"])
            statuses.append(
                SupervisorStatus(ref, answer["alive"], record, answer["message"], output)
            )
        return statuses

    def _mark_gone(self, ref: SupervisorRef) -> None:
        self._gone.add(ref)
        with self._lock:
            self._reserved.discard((ref.job, ref.attempt))
            self._beginning.pop(ref, None)

    # -- the autoscaler ----------------------------------------------------------------------------

    def scaling_policies(self) -> Mapping[str, ScalingPolicy]:
        """See `ScalableExecutor`."""
        scaling = self._inventory.policy
        return {} if scaling is None else {self._pool.name: scaling.to_core()}

    def set_scaling(self, scaling: ScalingSection | None) -> None:
        """Use another section `scaling` of the pool from now on."""
        self._inventory.policy = scaling

    def set_bounds(self, bounds: ScalingBounds | None) -> None:
        """See `AdjustableExecutor`."""
        self._inventory.bounds = bounds

    def request(self, pool: str, demand: PoolDemand) -> Mapping[int, str]:
        """See `ScalableExecutor`. Ray takes one request for all that is to fit at the same time."""
        wanted = [one for gang in demand.gangs for one in gang.nodes]
        keep = [self._inventory.whole(node) for node in demand.keep]
        held = [self._inventory.asked(one) for one in demand.held] if wanted or keep else []
        bundles = [*held, *keep, *(self._inventory.asked(one) for one in wanted)]
        if bundles != self._wanted:
            self._driver.ask("demand", bundles=bundles)
            self._wanted = bundles
        return {}

    def growth(self, pool: str, jobs: Sequence[int]) -> Mapping[int, str]:
        """See `ScalableExecutor`. Ray's autoscaler gives no reasons to its drivers."""
        return {}

    def close(self) -> None:
        """End the driver. Supervisors in the cluster continue."""
        with contextlib.suppress(ExecutorUnavailable):
            self.request(self._pool.name, PoolDemand())
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._driver.close()

    # -- notes -------------------------------------------------------------------------------------

    def _note_path(self, ref: SupervisorRef) -> Path:
        where = ref.job, ref.attempt, ref.node_rank, ref.incarnation
        return self._home.node_dir(*where) / _NOTE

    def _note(self, ref: SupervisorRef) -> dict[str, Any] | None:
        try:
            note: dict[str, Any] = json.loads(self._note_path(ref).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise ExecutorUnavailable(f"the note of {ref} cannot be read: {error}") from error
        return note


def _record(text: str | None) -> ExitRecord | None:
    if text is None:
        return None
    try:
        return ExitRecord.model_validate_json(text)
    except ValidationError:
        return None
