"""The placement groups and actors of one Ray cluster, and their states, for the driver.

Everything is looked up by name when it is not known, so a driver that was killed is no loss.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.executors.ray.actor import SupervisorActor
from phalanx.executors.ray.node_watch import GROUP_PREFIX, NodeWatch, look_at_ray
from phalanx.kit.text import job_label
from phalanx.launch.authentication import NotAuthenticated, authenticate

# Ray's NodeDeathInfo: an announced end. The machine was removed, or is about to be.
_ANNOUNCED = (1, 3, 4)
_BEGIN_S = 90.0
_REMOVE_S = 0.5
_ASK_AGAIN_S = 1.0
# Time for an actor to return the exit record after its shim has ended.
_EXIT_RECORD_S = 3.0
Key = tuple[int, int, int, int]


def namespace(owner: str) -> str:
    """The Ray namespace of one home: two control planes never see each other's attempts."""
    return f"phalanx-{owner}"


def group_name(owner: str, job: int, attempt: int) -> str:
    """The placement group of an attempt; it carries the owner, because lists of groups do not."""
    return f"{GROUP_PREFIX}-{owner}-{job_label(job)}-a{attempt:03d}"


def actor_name(job: int, attempt: int, node_rank: int, incarnation: int = 0) -> str:
    """The actor that holds one supervisor of a node rank."""
    name = f"phalanx-node-{job_label(job)}-a{attempt:03d}-n{node_rank}"
    return f"{name}-{incarnation}" if incarnation else name


def _key(ref: Mapping[str, Any]) -> Key:
    return ref["job"], ref["attempt"], ref["node_rank"], ref["incarnation"]


class OperationRefused(Exception):
    """It cannot be done, and nothing of it is left."""


@dataclass(slots=True)
class TrackedSupervisor:
    """One supervisor. `line` is an open connection to its shim."""

    handle: Any = None
    future: Any = None
    line: socket.socket | None = None
    result: dict[str, Any] | None = None
    refused_at: float | None = None
    unknown_at: float | None = None
    asked_at: float = field(default=-1e9)

    def shim_state(self, shim: Mapping[str, Any] | None) -> str:
        """`here`, `gone` or `unknown`, from the connection to the shim."""
        if shim is None:
            return "unknown"
        if self.line is not None:
            try:
                if self.line.recv(64):
                    return "here"
            except BlockingIOError:
                return "here"
            except OSError:
                pass
            self.disconnect()
        if self.refused_at is not None:
            return "gone"
        now = time.monotonic()
        if self.unknown_at is not None and now - self.asked_at < _ASK_AGAIN_S:
            return "unknown"
        self.asked_at = now
        return self._connect(shim)

    def _connect(self, shim: Mapping[str, Any]) -> str:
        try:
            line = socket.create_connection((shim["address"], shim["port"]), timeout=1.0)
        except ConnectionRefusedError:
            self.refused_at = time.monotonic()
            return "gone"
        except OSError:
            return "unknown"
        try:
            authenticate(line, shim["word"].encode(), within_s=1.0)
        except NotAuthenticated:
            # Another program has the port now: the shim is gone.
            line.close()
            self.refused_at = time.monotonic()
            return "gone"
        except OSError:
            line.close()
            return "unknown"
        line.setblocking(False)
        self.line, self.unknown_at = line, None
        return "here"

    def disconnect(self) -> None:
        """Close the connection to the shim."""
        line, self.line = self.line, None
        if line is not None:
            line.close()


def _actor(
    name: str, bundle: Mapping[str, float], place: tuple[Any, int], env: Mapping[str, Any]
) -> Any:
    """Create the actor of a supervisor; `place` is its group and the number of its bundle there."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    rest = {name: value for name, value in bundle.items() if name not in ("CPU", "GPU")}
    group, index = place
    return (
        ray.remote(SupervisorActor)
        .options(
            name=name,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=0,
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources=rest,
            runtime_env=dict(env) or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group,
                placement_group_bundle_index=index,
                placement_group_capture_child_tasks=False,
            ),
        )
        .remote()
    )


class RayCluster:
    """The attempts of one control plane in one Ray cluster. Safe for several threads, as Ray's API is."""

    def __init__(self, owner: str, actor_env: Mapping[str, Any]) -> None:
        self._owner = owner
        self._actor_env = dict(actor_env)
        self._tracked: dict[Key, TrackedSupervisor] = {}
        self._node_watch = NodeWatch(look_at_ray)

    @classmethod
    def connect(cls, address: str, owner: str, actor_env: Mapping[str, Any]) -> RayCluster:
        """Join a running cluster."""
        import ray

        ray.init(
            address=address,
            namespace=namespace(owner),
            log_to_driver=False,
            logging_level="warning",
        )
        cluster = cls(owner, actor_env)
        cluster._node_watch.start()
        return cluster

    def hello(self) -> dict[str, Any]:
        """The version of Ray, as a sign of life."""
        import ray

        return {"ray": ray.__version__}

    def nodes(self) -> list[dict[str, Any]]:
        """Every living node, with the fields of `node_watch.RayNodeState`."""
        return [asdict(one) for one in self._node_watch.nodes() if one.alive]

    # -- starting ----------------------------------------------------------------------------------

    def reserve(
        self,
        job: int,
        attempt: int,
        bundles: Sequence[Mapping[str, float]],
        nodes: Sequence[str],
        wait_s: float,
    ) -> None:
        """Hold the whole gang: one group with a bundle on each of the nodes, and an actor in each.

        Raises OperationRefused when Ray does not give all of it in time; then nothing is held.
        """
        import ray

        gone = [node for node in nodes if self._node_watch.raylet_is_gone(node)]
        name = group_name(self._owner, job, attempt)
        try:
            group = ray.util.get_placement_group(name)
        except ValueError:
            if gone:
                raise OperationRefused(f"the raylet of {gone[0][:12]} is gone") from None
            group = ray.util.placement_group(
                [dict(one) for one in bundles],
                strategy="PACK",
                name=name,
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node} for node in nodes],
            )
        if not group.wait(wait_s):
            self._remove_group(job, attempt)
            raise OperationRefused(
                f"Ray has not reserved all {len(nodes)} nodes within {wait_s:g} s"
            )
        for node_rank, bundle in enumerate(bundles):
            self._host(group, (job, attempt, node_rank, 0), bundle)

    def _host(self, group: Any, key: Key, bundle: Mapping[str, float]) -> None:
        """Create the actor of one bundle, holding all of it, without waiting for it."""
        tracked = self._tracked.setdefault(key, TrackedSupervisor())
        if tracked.handle is not None:
            return
        tracked.handle = _actor(actor_name(*key), bundle, (group, key[2]), self._actor_env)

    def start(
        self, job: int, attempt: int, node_rank: int, text: str, incarnation: int = 0
    ) -> dict[str, Any]:
        """Have the actor start its supervisor; returns the address of its shim.

        Raises OperationRefused, and then releases all that the attempt holds: it cannot run.
        """
        try:
            return self._begin((job, attempt, node_rank, incarnation), text)
        except OperationRefused:
            self._remove_group(job, attempt)
            raise

    def host(
        self,
        job: int,
        attempt: int,
        node_rank: int,
        incarnation: int,
        bundle: Mapping[str, float],
        node: str,
    ) -> None:
        """Create another actor in the bundle of a node rank that lost its supervisor.

        Raises OperationRefused when the raylet of the node or the group of the attempt is gone.
        """
        if self._node_watch.raylet_is_gone(node):
            # Ray would move the bundle once it has noticed, and the actor would wait for that.
            raise OperationRefused(f"the raylet of {node[:12]} is gone")
        import ray

        try:
            group = ray.util.get_placement_group(group_name(self._owner, job, attempt))
        except ValueError:
            raise OperationRefused("the placement group of the attempt is gone") from None
        self._host(group, (job, attempt, node_rank, incarnation), bundle)

    def _begin(self, key: Key, text: str) -> dict[str, Any]:
        import ray

        tracked = self._find(key)
        if tracked.handle is None:
            raise OperationRefused("the actor of the supervisor is gone")
        try:
            begun: dict[str, Any] = ray.get(tracked.handle.begin.remote(text), timeout=_BEGIN_S)
        except ray.exceptions.GetTimeoutError:
            raise
        except ray.exceptions.RayError as error:
            raise OperationRefused(
                f"the actor of the supervisor died: {first_line(error)}"
            ) from error
        if "error" in begun:
            raise OperationRefused(str(begun["error"]))
        return begun

    def _find(self, key: Key) -> TrackedSupervisor:
        import ray

        tracked = self._tracked.setdefault(key, TrackedSupervisor())
        if tracked.handle is None:
            with contextlib.suppress(ValueError):
                tracked.handle = ray.get_actor(actor_name(*key))
        return tracked

    # -- ending ------------------------------------------------------------------------------------

    def stop(self, job: int, attempt: int, node_rank: int, incarnation: int = 0) -> None:
        """Kill the actor; its shim ends the rest."""
        import ray

        tracked = self._find((job, attempt, node_rank, incarnation))
        if tracked.handle is not None:
            ray.kill(tracked.handle, no_restart=True)

    def _remove_group(self, job: int, attempt: int) -> bool:
        """Give the resources back; says whether Ray has confirmed it."""
        import ray

        name = group_name(self._owner, job, attempt)
        try:
            group = ray.util.get_placement_group(name)
        except ValueError:
            return True
        ray.util.remove_placement_group(group)
        until = time.monotonic() + _REMOVE_S
        while time.monotonic() < until:
            if ray.util.placement_group_table(group).get("state") == "REMOVED":
                return True
            time.sleep(0.005)
        return False

    # -- polling -----------------------------------------------------------------------------------

    def poll(self, refs: Sequence[Mapping[str, Any]], fence_s: float) -> list[dict[str, Any]]:
        """The state of these supervisors: `alive`, `message`, `exit`, in the same order.

        Once all that are asked for of an attempt are gone, its group is removed before that is said.
        """
        self._forget(refs)
        found = [self._look(ref, fence_s) for ref in refs]
        living = {
            (ref["job"], ref["attempt"])
            for ref, one in zip(refs, found, strict=True)
            if one["alive"]
        }
        for pair in {(ref["job"], ref["attempt"]) for ref in refs} - living:
            if not self._remove_group(*pair):
                for ref, one in zip(refs, found, strict=True):
                    if (ref["job"], ref["attempt"]) == pair:
                        one.update(alive=True, message="its placement group is being removed")
        return found

    def _forget(self, refs: Sequence[Mapping[str, Any]]) -> None:
        """Drop supervisors that are gone and not polled any more."""
        asked = {_key(ref) for ref in refs}
        for key, one in list(self._tracked.items()):
            if one.result is not None and key not in asked:
                self._tracked.pop(key, None)

    def _look(self, ref: Mapping[str, Any], fence_s: float) -> dict[str, Any]:
        key = _key(ref)
        tracked = self._find(key)
        shim = ref["shim"]
        actor_gone = tracked.handle is None or self._ended(tracked, shim)
        if tracked.result is not None:
            return dict(tracked.result)
        shim_state = tracked.shim_state(shim)
        if shim_state == "gone":
            return self._without_shim(tracked, shim, actor_gone)
        if not actor_gone:
            return _alive("")
        if shim is None:
            return _gone(tracked, "the actor of the supervisor is gone")
        if shim_state == "here":
            return _alive("the actor is gone; its shim is killing the processes that are left")
        return self._fenced(tracked, shim, fence_s)

    def _ended(self, tracked: TrackedSupervisor, shim: Mapping[str, Any] | None) -> bool:
        """Whether the actor is gone; stores the exit record that it returned."""
        import ray

        if tracked.result is not None:
            return True
        if tracked.future is None:
            tracked.future = tracked.handle.watch.remote()
        ready, _ = ray.wait([tracked.future], timeout=0)
        if not ready:
            return False
        try:
            said: dict[str, Any] = ray.get(tracked.future)
        except ray.exceptions.RayError:
            return True
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(tracked.handle, no_restart=True)
        tracked.result = {
            "alive": False,
            "exit": said["exit"],
            "message": "" if said["exit"] is not None else self._without_record(shim),
            "output": said.get("output", []),  # an actor of an earlier release does not count
        }
        tracked.disconnect()
        return True

    def _without_shim(
        self, tracked: TrackedSupervisor, shim: Mapping[str, Any] | None, actor_gone: bool
    ) -> dict[str, Any]:
        """Find out how a supervisor ended of which nothing is left on the node."""
        assert shim is not None
        if not actor_gone and not self._node_watch.raylet_is_gone(shim["node"]):
            assert tracked.refused_at is not None
            if time.monotonic() - tracked.refused_at < _EXIT_RECORD_S:
                return _alive("the supervisor has ended; its exit record has not arrived yet")
            return _gone(tracked, self._without_record(shim))
        if self._node_watch.raylet_is_gone(shim["node"]):
            return _gone(tracked, self._without_record(shim))
        return _gone(tracked, "the actor of the supervisor was killed")

    def _without_record(self, shim: Mapping[str, Any] | None) -> str:
        """Why a supervisor left no exit record. Its actor may outlive the raylet and tell of its end."""
        if shim is not None and self._node_watch.raylet_is_gone(shim["node"]):
            return f"the raylet of node {shim['label']} died"
        return "the supervisor ended without an exit record"

    def _fenced(
        self, tracked: TrackedSupervisor, shim: Mapping[str, Any], fence_s: float
    ) -> dict[str, Any]:
        """Distinguish a dead node from an unreachable one; actor and shim do not answer."""
        node = self._node_watch.node(shim["node"])
        if node is not None and not node.alive and node.death in _ANNOUNCED:
            return _gone(tracked, f"node {shim['label']} was removed from the cluster")
        now = time.monotonic()
        if tracked.unknown_at is None:
            tracked.unknown_at = now
        if now - tracked.unknown_at >= fence_s:
            return _gone(tracked, f"node {shim['label']} has not answered for {fence_s:g} s")
        return _alive(
            f"node {shim['label']} does not answer; it counts as lost after {fence_s:g} s"
        )

    # -- the autoscaler ----------------------------------------------------------------------------

    def demand(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Ask Ray's autoscaler for room for these bundles; an empty list withdraws the request."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[dict(one) for one in bundles])


def _alive(message: str) -> dict[str, Any]:
    return {"alive": True, "exit": None, "message": message}


def _gone(tracked: TrackedSupervisor, message: str) -> dict[str, Any]:
    tracked.result = {"alive": False, "exit": None, "message": message}
    tracked.disconnect()
    return dict(tracked.result)


def first_line(error: BaseException) -> str:
    """The type of an error of Ray and the first line of its message, which may have hundreds."""
    name, lines = type(error).__name__, str(error).strip().splitlines()
    return f"{name}: {lines[0]}" if lines else name
