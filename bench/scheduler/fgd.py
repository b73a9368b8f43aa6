"""Packing parts of devices onto uneven machines: the openb replay on which FGD was published.

Pods arrive one by one in a shuffled order until they request `ratio` times the existing devices; no
pod leaves, and a pod that does not fit is rejected. The result is the share of all devices that is
allocated in the end. BestFit and FGD ("Beware of Fragmentation", ATC 2023) are reimplemented here
and compared with the figures of their authors' artifact. For the production placement a machine is
described in terms of Phalanx: each device is a node of a hundred slots, the machine is a topology
level that must hold the whole pod, and `host` states that all devices of a machine share its CPUs
and memory.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from phalanx.core.gang.placement import GangShape, Node
from phalanx.core.scheduling import ClusterIndex, QueuedJob, RunningJob
from phalanx.core.scheduling.index.slots import Allocation
from phalanx.core.scheduling.index.topology import place, request_of
from phalanx.errors import NotFound, UserError

MILLI = 1000
MOST_DEVICES = 8
_MOST_CPU_MILLI = 128_000.0
_MOST_GPU_MILLI = 8000.0
_POPULAR = 0.95
_GRAIN = 10
_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class PackingHost:
    """A host: `cpu_milli` thousandths of CPUs, memory in MiB, whole devices."""

    name: str
    cpu_milli: int
    memory_mib: int
    num_devices: int


@dataclass(frozen=True, slots=True)
class Pod:
    """The request of one pod: `gpu_milli` thousandths of each of `num_devices` devices."""

    cpu_milli: int
    memory_mib: int
    num_devices: int
    gpu_milli: int

    @property
    def total_milli(self) -> int:
        """Thousandths of devices in all."""
        return self.num_devices * self.gpu_milli


class Packer(Protocol):
    """A placement policy for pods that arrive one by one."""

    name: str

    def put(self, pod: Pod) -> bool:
        """Place the pod permanently, or return False to reject it."""
        ...


@dataclass(frozen=True, slots=True)
class PackingResult:
    """The result of a replay. `allocated` is the share of all devices that is allocated."""

    packer: str
    allocated: float
    num_pods: int
    num_turned_away: int


def machines(path: Path) -> list[PackingHost]:
    """Machines of the openb trace. Raises NotFound, or UserError with the line."""
    rows = _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu"))
    return [
        PackingHost(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"])) for r in rows
    ]


def pods(path: Path) -> list[Pod]:
    """Pods of the openb trace, those without devices among them."""
    rows = _rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    return [
        Pod(
            int(r["cpu_milli"]),
            int(r["memory_mib"]),
            int(r["num_gpu"]),
            int(r["gpu_milli"]) if int(r["num_gpu"]) else 0,
        )
        for r in rows
    ]


def _rows(path: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.exists():
        raise NotFound(f"no trace at {path}")
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise UserError(f"{path}: no column {', '.join(missing)}")
        rows = list(reader)
    for line, row in enumerate(rows, start=2):
        for name in needed:
            if name != "sn" and not row[name].isdigit():
                raise UserError(f"{path}, line {line}: {name} is {row[name]!r}, not a whole number")
    return rows


def arrivals(workload: Sequence[Pod], capacity_milli: int, ratio: float, seed: int) -> list[Pod]:
    """The pods in a shuffled order, some drawn again or left out, to `ratio` times the capacity."""
    rng = random.Random(seed)
    found = list(workload)
    rng.shuffle(found)
    total = sum(pod.total_milli for pod in found)
    most = ratio * capacity_milli
    while total > most:
        total -= found.pop(rng.randrange(len(found))).total_milli
    while total <= most:
        pod = workload[rng.randrange(len(workload))]
        total += pod.total_milli
        if total <= most:
            found.append(pod)
    return found


def replay(hosts: Sequence[PackingHost], arriving: Sequence[Pod], packer: Packer) -> PackingResult:
    """Offer every pod to the packer in order of arrival."""
    capacity = MILLI * sum(host.num_devices for host in hosts)
    given = turned_away = 0
    for pod in arriving:
        if packer.put(pod):
            given += pod.total_milli
        else:
            turned_away += 1
    return PackingResult(packer.name, given / capacity, len(arriving), turned_away)


class _Scored:
    """Places each pod on the machine with the best integer score, the first of equals.

    A random choice among equals gives FGD 90 % where its artifact has 95 %, because its scores are
    coarse. Scores are kept for each kind of pod and recomputed only for machines that changed
    since.
    """

    name = ""

    def __init__(self, hosts: Sequence[PackingHost]) -> None:
        self._cpu = np.array([host.cpu_milli for host in hosts], dtype=np.int64)
        self._memory = np.array([host.memory_mib for host in hosts], dtype=np.int64)
        counts = np.array([host.num_devices for host in hosts])
        # A missing device counts as one with nothing left.
        self._left = np.where(np.arange(MOST_DEVICES) < counts[:, None], MILLI, 0).astype(np.int64)
        self._changed: list[int] = []
        self._scores: dict[Pod, tuple[int, _Array]] = {}

    def put(self, pod: Pod) -> bool:
        scores = self._scores_of(pod)
        node = int(scores.argmax())
        if scores[node] < 0:
            return False
        self._cpu[node] -= pod.cpu_milli
        self._memory[node] -= pod.memory_mib
        for device in self._devices(node, pod):
            self._left[node, device] -= pod.gpu_milli
        self._changed.append(node)
        return True

    def _scores_of(self, pod: Pod) -> _Array:
        known = self._scores.get(pod)
        if known is None:
            stale = np.arange(len(self._cpu))
            scores = np.empty(len(self._cpu), dtype=np.int64)
        else:
            seen, scores = known
            stale = np.unique(np.array(self._changed[seen:], dtype=np.int64))
        if stale.size:
            scores[stale] = self._score_where_it_fits(stale, pod)
        self._scores[pod] = (len(self._changed), scores)
        return scores

    def _score_where_it_fits(self, nodes: _Array, pod: Pod) -> _Array:
        room = (self._left[nodes] >= max(pod.gpu_milli, 1)).sum(axis=1) >= pod.num_devices
        fits = room & (self._cpu[nodes] >= pod.cpu_milli) & (self._memory[nodes] >= pod.memory_mib)
        scores = np.full(nodes.size, -1, dtype=np.int64)
        if fits.any():
            scores[fits] = self._score(nodes[fits], pod)
        return scores

    def _score(self, nodes: _Array, pod: Pod) -> _Array:
        raise NotImplementedError

    def _devices(self, node: int, pod: Pod) -> list[int]:
        left = self._left[node]
        order = sorted(range(MOST_DEVICES), key=lambda d: (int(left[d]), d))
        return [d for d in order if left[d] >= max(pod.gpu_milli, 1)][: pod.num_devices]


class BestFit(_Scored):
    """The machine with the least left of CPU and devices together."""

    name = "best-fit"

    def _score(self, nodes: _Array, pod: Pod) -> _Array:
        cpu = (self._cpu[nodes] - pod.cpu_milli) / _MOST_CPU_MILLI
        gpu = (self._left[nodes].sum(axis=1) - pod.total_milli) / _MOST_GPU_MILLI
        return np.asarray(((1.0 - 0.5 * cpu - 0.5 * gpu) * 100.0).astype(np.int64))


class Fgd(_Scored):
    """FGD: the machine where a pod adds least fragmentation for the typical mix of pods."""

    name = "fgd"

    def __init__(self, hosts: Sequence[PackingHost], workload: Sequence[Pod]) -> None:
        super().__init__(hosts)
        self._typical(workload)

    def _typical(self, workload: Sequence[Pod]) -> None:
        """The most frequent kinds that together make 95 % of the pods; memory does not tell them apart."""
        counts = Counter((p.cpu_milli, p.gpu_milli, p.num_devices) for p in workload)
        ranked = sorted(counts.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
        chosen, total = [], 0
        for kind, count in ranked:
            if total >= _POPULAR * len(workload):
                break
            chosen.append((kind, count))
            total += count
        on_devices = [(kind, count) for kind, count in chosen if kind[1]]
        self._without = sum(count for kind, count in chosen if not kind[1]) / total
        self._kind_cpu = np.array([kind[0] for kind, _ in on_devices])
        self._kind_milli = np.array([kind[1] for kind, _ in on_devices])
        self._kind_devices = np.array([kind[2] for kind, _ in on_devices])
        self._part = np.array([count / total for _, count in on_devices])

    def _fragments(self, cpu: _Array, left: _Array) -> _Array:
        """Free thousandths that a pod of the mix could not use, on average."""
        total = left.sum(axis=1)
        wide = left[:, None, :] >= self._kind_milli[None, :, None]
        usable = (wide * left[:, None, :]).sum(axis=2)
        hosts = wide.sum(axis=2) >= self._kind_devices
        hosts &= cpu[:, None] >= self._kind_cpu
        wasted = total[:, None] - np.where(hosts, usable, 0)
        return np.asarray(self._without * total + wasted @ self._part)

    def _gain(self, before: _Array, cpu: _Array, left: _Array) -> _Array:
        steps = (before - self._fragments(cpu, left)) / MILLI
        return np.asarray((100.0 / (1.0 + np.exp(-steps))).astype(np.int64))

    def _score(self, nodes: _Array, pod: Pod) -> _Array:
        return np.asarray(self._by_device(nodes, pod).max(axis=1))

    def _by_device(self, nodes: _Array, pod: Pod) -> _Array:
        """Scores by device for a part of one; a single column for whole ones."""
        before = self._fragments(self._cpu[nodes], self._left[nodes])
        cpu = self._cpu[nodes] - pod.cpu_milli
        if pod.num_devices == 1 and pod.gpu_milli < MILLI:
            scores = np.full((nodes.size, MOST_DEVICES), -1, dtype=np.int64)
            for device in range(MOST_DEVICES):
                rows = np.flatnonzero(self._left[nodes, device] >= pod.gpu_milli)
                if rows.size:
                    left = self._left[nodes[rows]]
                    left[:, device] -= pod.gpu_milli
                    scores[rows, device] = self._gain(before[rows], cpu[rows], left)
            return scores
        left = self._left[nodes].copy()
        if pod.num_devices:
            whole = left == MILLI
            left[whole & (np.cumsum(whole, axis=1) <= pod.num_devices)] = 0
        return self._gain(before, cpu, left)[:, None]

    def _devices(self, node: int, pod: Pod) -> list[int]:
        if pod.num_devices == 1 and pod.gpu_milli < MILLI:
            return [int(self._by_device(np.array([node]), pod)[0].argmax())]
        return super()._devices(node, pod)


class ProductionPacking:
    """The production placement, on devices of a hundred slots that are parts of one machine.

    Rejected pods stay queued, so that the planner has the demand profile that it would have.
    """

    name = "phalanx"

    def __init__(self, hosts: Sequence[PackingHost]) -> None:
        self._devices: list[list[int]] = []
        nodes: list[Node] = []
        for number, host in enumerate(hosts):
            start = len(nodes)
            for device in range(host.num_devices):
                nodes.append(_device_node(number, device, host))
            self._devices.append(list(range(start, len(nodes))))
        self._world = ClusterIndex(nodes)
        self._num = 0

    def put(self, pod: Pod) -> bool:
        """Place through the production code."""
        if not pod.num_devices:
            return self._put_on_cpus(pod)
        self._num += 1
        slots = -(-pod.gpu_milli // _GRAIN)
        job = QueuedJob(
            self._num,
            GangShape(pod.num_devices, slots, 1),
            50,
            0,
            cpus_per_node=-(-pod.cpu_milli // pod.num_devices),
            memory_per_node_bytes=(pod.memory_mib << 20) // pod.num_devices,
            required="machine",
        )
        cluster, ask = self._world, request_of(job)
        cluster.submit(job)
        allocations = place(cluster.index, ask, cluster.groups_for(ask), job.shape)
        if allocations is None:
            return False
        held = RunningJob(
            job.num,
            cluster.index.placement(allocations),
            cpus_per_node=ask.cpus,
            memory_per_node_bytes=ask.memory_bytes,
        )
        cluster.hold(held)
        return True

    def _put_on_cpus(self, pod: Pod) -> bool:
        """Place a pod without devices on the machine where it adds least fragmentation."""
        index, wants = self._world.index, (pod.cpu_milli, pod.memory_mib << 20)
        fitting = [
            devices
            for devices in self._devices
            if index.cpus[devices[0]] >= wants[0] and index.memory[devices[0]] >= wants[1]
        ]
        if not fitting:
            return False
        typical = index.demand_profile.typical()

        def regret(devices: list[int]) -> float:
            cpus, memory = index.cpus[devices[0]], index.memory[devices[0]]
            if typical is None:
                return cpus
            frees = tuple(index.free[device].bit_count() for device in devices)
            return typical.regret(frees, cpus, memory, (0, 0), wants)

        index.take(Allocation(min(fitting, key=regret)[0], 0, *wants))
        index.settle()
        return True


def _device_node(number: int, device: int, host: PackingHost) -> Node:
    return Node(
        f"{number}/{device}",
        "openb",
        host.name,
        MILLI // _GRAIN,
        host.cpu_milli,
        host.memory_mib << 20,
        domains=(("machine", str(number)),),
        host=str(number),
    )
