"""What the nodes alone allow: whether a gang could ever start, and the narrowest level of each pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from phalanx.core.gang.placement import Node
from phalanx.core.residency import LABEL
from phalanx.core.scheduling.index.slots import SlotIndex
from phalanx.core.scheduling.index.topology import NodeRequest, place, request_of, suitable
from phalanx.core.scheduling.model.planning_input import QueuedJob

_KNOWN_AT_MOST = 4096
_INDEXES_AT_MOST = 16


class EmptyCluster:
    """The cluster as if nothing ran on it and no node were closed; answers are kept by request."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = tuple(replace(node, closed="", closed_slots=()) for node in nodes)
        self._indexes: dict[frozenset[str], SlotIndex] = {}
        self._known: dict[NodeRequest, bool] = {}

    def can_hold(self, job: QueuedJob) -> bool:
        """Return whether the gang could start, at its least size, if it were alone."""
        least = job.shape.nodes if job.min_nodes is None else job.min_nodes
        request = replace(request_of(job), shape=replace(job.shape, nodes=least))
        known = self._known.get(request)
        if known is None:
            if len(self._known) >= _KNOWN_AT_MOST:
                self._known.clear()
            index = self._index_for(request)
            known = self._known[request] = any(
                place(index, one, suitable(index, one), one.shape) is not None
                for one in (request, *(replace(request, shape=shape) for shape in request.splits))
            )
        return known

    def _index_for(self, request: NodeRequest) -> SlotIndex:
        """The nodes with those labels alone that the request selects by: others would divide their kinds.

        A node of Kubernetes has a label with its own name.
        """
        wanted = frozenset([LABEL, *(key for key, _ in request.selector)])
        known = self._indexes.get(wanted)
        if known is None:
            if len(self._indexes) >= _INDEXES_AT_MOST:
                self._indexes.clear()
            known = self._indexes[wanted] = SlotIndex(with_labels(self._nodes, wanted))
        return known


def with_labels(nodes: Iterable[Node], wanted: Collection[str]) -> tuple[Node, ...]:
    """The nodes with only these of their labels."""
    return tuple(
        replace(node, labels=tuple(label for label in node.labels if label[0] in wanted))
        if node.labels
        else node
        for node in nodes
    )


class EmptyClusters:
    """The empty cluster of the nodes that were asked about last, which is asked about again most often."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[Node], EmptyCluster] = ((), EmptyCluster(()))

    def of(self, nodes: Sequence[Node]) -> EmptyCluster:
        """The empty cluster of these nodes."""
        known, made = self._last
        if known is not nodes:
            made = made if known == nodes else EmptyCluster(nodes)
            self._last = (nodes, made)
        return made


def fits_ever(job: QueuedJob, nodes: Iterable[Node]) -> bool:
    """Return whether the gang could start on these nodes if nothing else ran and none were closed."""
    return EmptyCluster(nodes).can_hold(job)


def narrowest_levels(nodes: Iterable[Node]) -> dict[str, str | None]:
    """The name of the narrowest level of each pool; None where its nodes do not agree on one."""
    found: dict[str, set[str | None]] = {}
    for node in nodes:
        found.setdefault(node.pool, set()).add(node.domains[-1][0] if node.domains else None)
    return {pool: next(iter(names)) if len(names) == 1 else None for pool, names in found.items()}
